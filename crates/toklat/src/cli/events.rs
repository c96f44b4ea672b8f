//! `toklat events`: what has happened in the daemon.

use std::io::Write;

use clap::Args;

use crate::api::{Event, Events};
use client::{Client, Global, Result};

/// Options of `toklat events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on with what happens from now on, until the daemon stops
    #[arg(long, short)]
    follow: bool,
    /// Only events from this number on
    #[arg(long, value_name = "NUMBER")]
    since: Option<u64>,
}

/// Seconds that a request waits for an event.
const WAIT: u8 = 30;

/// Prints events, a line or, with `--json`, an object each.
///
/// # Errors
/// If the daemon does not run, or ends while events are followed.
pub fn run(args: &EventsArgs, global: &Global) -> Result {
    let mut client = Client::connect(global)?.without_progress();
    let mut since = args.since.unwrap_or(0);
    let mut wait = 0;
    loop {
        let found: Events = client.get(&format!("/v1/events?since={since}&wait={wait}"))?;
        if found.missed {
            eprintln!("earlier events are not kept any more");
        }
        let mut out = std::io::stdout().lock();
        for event in &found.events {
            match global.json {
                true => writeln!(out, "{}", serde_json::to_string(event)?)?,
                false => writeln!(out, "{}", line(event))?,
            }
        }
        out.flush()?;
        let is_all = found.events.is_empty() && wait == 0;
        if is_all && !args.follow {
            return Ok(());
        }
        if is_all {
            wait = WAIT;
        }
        since = found.next;
    }
}

fn line(event: &Event) -> String {
    let Event { at_ms, kind, switch, port, user, text, .. } = event;
    let name = match (switch, port) {
        (Some(switch), Some(port)) => format!(" {switch}:{port}"),
        (Some(name), None) | (None, Some(name)) => format!(" {name}"),
        (None, None) => String::new(),
    };
    let user = user.map_or_else(String::new, |uid| format!(" uid {uid}"));
    format!("{} {:10}{name}{user} {text}", utc(*at_ms), kind.name())
}

/// A time as `2026-11-27T18:05:01.250Z` (days to dates as in Hinnant's `civil_from_days`).
fn utc(at_ms: u64) -> String {
    let (seconds, ms) = (at_ms / 1000, at_ms % 1000);
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        for at in [0, 951_782_399_000, 951_782_400_000, 1_709_208_000_123, 4_102_444_799_999] {
            let mut date = std::process::Command::new("date");
            date.args(["-u", "-d", &format!("@{}", at / 1000), "+%FT%T"]);
            let said = String::from_utf8(date.output().unwrap().stdout).unwrap();
            assert_eq!(utc(at), format!("{}.{:03}Z", said.trim(), at % 1000));
        }
    }
}
