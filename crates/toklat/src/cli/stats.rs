//! `toklat stats`: counters, and with `--watch` their rates.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use port::DropReason;

use super::port::state_name;
use super::rates::{PortRates, Rates};
use crate::api::{ApiError, ErrorCode, PortStats, Stats};
use client::Client;
use client::name::Name;
use client::table::{Table, bps, bytes, count, pps, scaled};
use client::{Global, Result, UsageError};

/// Options of `toklat stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// A switch (vale0) or a port (vale0:p1) [default: all]
    name: Option<Name>,
    /// Show rates, again and again, until interrupted
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_name = "SECONDS", value_parser = interval)]
    watch: Option<Duration>,
}

/// Seconds between two readings.
///
/// # Errors
/// If it is no number from 0.1 to 3600.
pub fn interval(text: &str) -> Result<Duration, &'static str> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("seconds from 0.1 to 3600"),
    }
}

/// Reads the counters of the switch or port `name`.
///
/// # Errors
/// If the daemon does not run, or there is no such switch or port.
pub fn read(client: &mut Client, name: Option<&Name>) -> Result<Stats> {
    let path = match name {
        Some(name) => format!("/v1/stats?switch={}", name.switch()),
        None => "/v1/stats".to_owned(),
    };
    let mut stats: Stats = client.get(&path)?;
    if let Some(Name::Port(port)) = name {
        for switch in &mut stats.switches {
            switch.ports.retain(|stats| stats.name == port.port);
        }
        if stats.switches.iter().all(|switch| switch.ports.is_empty()) {
            let reason = format!("There is no port {port}");
            let remedy = format!("see toklat port show {}", port.switch);
            return Err(ApiError::new(ErrorCode::NotFound, reason, remedy).into());
        }
    }
    Ok(stats)
}

/// Shows counters or rates.
///
/// # Errors
/// If the daemon does not run or goes away, or there is no such switch or port.
pub fn run(args: &StatsArgs, global: &Global) -> Result {
    let mut client = Client::connect(global)?;
    let stats = read(&mut client, args.name.as_ref()).map_err(|error| match &args.name {
        Some(Name::Switch(name))
            if args.watch.is_some() && name.as_str().parse::<f64>().is_ok() =>
        {
            UsageError::new("seconds are written with =, as in --watch=1").into()
        }
        _ => error,
    })?;
    if let Some(interval) = args.watch {
        return watch(args, global, &mut client, stats, interval);
    }
    match (&args.name, stats.switches.first().and_then(|switch| switch.ports.first())) {
        (Some(Name::Port(name)), Some(port)) if !global.json => {
            write!(std::io::stdout().lock(), "{}", details(&name.to_string(), port))?;
            Ok(())
        }
        _ => global.print_list(&stats, || table(&stats), "no ports"),
    }
}

/// The columns' widths for names and numbers of usual lengths, so that they keep their places from
/// the first table on.
const WIDTHS: [usize; 9] = [9, 9, 9, 9, 9, 5, 5, 8, 9];

/// With `--json` prints one object of counters a line, otherwise a table of rates each time.
fn watch(
    args: &StatsArgs,
    global: &Global,
    client: &mut Client,
    mut old: Stats,
    interval: Duration,
) -> Result {
    let mut widths = WIDTHS.to_vec();
    loop {
        if global.json {
            let mut line = serde_json::to_vec(&old)?;
            line.push(b'\n');
            std::io::stdout().lock().write_all(&line)?;
        }
        std::thread::sleep(interval);
        let new = read(client, args.name.as_ref())?;
        if !global.json {
            let rates = Rates::between(&old, &new);
            let text = rates_text(&rates, args.name.is_none(), &mut widths);
            std::io::stdout().lock().write_all(text.as_bytes())?;
        }
        old = new;
    }
}

/// Formats a table of rates. With `busy_only`, idle ports are only counted. Its columns are at
/// least as wide as those of earlier tables, kept in `widths`.
fn rates_text(rates: &Rates, busy_only: bool, widths: &mut Vec<usize>) -> String {
    let mut table = Table::new(&[
        "port",
        ">in",
        "",
        ">out",
        "",
        ">batch",
        ">kicks",
        ">wake-ups",
        ">dropped",
        "reasons",
    ]);
    let mut idle = 0;
    for port in &rates.ports {
        if busy_only && port.is_idle() {
            idle += 1;
            continue;
        }
        table.row([
            format!("{}:{}", port.switch, port.name),
            pps(port.ingress.pps),
            bps(port.ingress.bps),
            pps(port.egress.pps),
            bps(port.egress.bps),
            if port.batch > 0.0 { format!("{:.1}", port.batch) } else { "-".into() },
            scaled(port.kicks),
            scaled(port.wakeups),
            if port.drops.is_empty() { "-".into() } else { pps(port.dropped()) },
            drop_rates(port),
        ]);
    }
    let mut text = table.at_least(widths);
    if idle > 0 {
        // Writing to a string does not fail.
        let _ = writeln!(text, "(without traffic: {idle})");
    }
    text.push('\n');
    text
}

/// `full 1.20k, runt 3`: reasons and frames a second.
#[must_use]
pub fn drop_rates(port: &PortRates) -> String {
    let words: Vec<String> =
        port.drops.iter().map(|(why, rate)| format!("{} {}", why.name(), scaled(*rate))).collect();
    words.join(", ")
}

fn table(stats: &Stats) -> Table {
    let mut table = Table::new(&[
        "port",
        "state",
        ">in",
        ">in bytes",
        ">out",
        ">out bytes",
        ">dropped",
        "reasons",
    ]);
    for switch in &stats.switches {
        for port in &switch.ports {
            let drops = drops(port);
            let words: Vec<String> =
                drops.iter().map(|(why, n)| format!("{} {}", why.name(), count(*n))).collect();
            table.row([
                format!("{}:{}", switch.name, port.name),
                state_name(port.state).into(),
                count(port.counters.in_frames),
                bytes(port.counters.in_bytes),
                count(port.counters.out_frames),
                bytes(port.counters.out_bytes),
                count(drops.iter().map(|(_, n)| n).sum()),
                words.join(", "),
            ]);
        }
    }
    table
}

/// Frames dropped where they came in and where they would have gone out, most first.
fn drops(port: &PortStats) -> Vec<(DropReason, u64)> {
    let mut drops = port.counters.in_drops.clone();
    for (reason, frames) in &port.counters.out_drops {
        *drops.entry(*reason).or_default() += frames;
    }
    let mut drops: Vec<_> = drops.into_iter().filter(|(_, frames)| *frames > 0).collect();
    drops.sort_by_key(|(_, frames)| std::cmp::Reverse(*frames));
    drops
}

/// All there is to know about one port, exactly.
fn details(name: &str, port: &PortStats) -> String {
    let mut table = Table::new(&["", ">in", ">out"]);
    let c = &port.counters;
    for (what, ingress, egress) in
        [("frames", c.in_frames, c.out_frames), ("bytes", c.in_bytes, c.out_bytes)]
    {
        table.row([what.into(), ingress.to_string(), egress.to_string()]);
    }
    table.row(["copies".into(), c.in_copies.to_string(), "-".into()]);
    for reason in DropReason::ALL {
        let (ingress, egress) = (c.in_drops.get(&reason), c.out_drops.get(&reason));
        if ingress.or(egress).is_some() {
            let cell = |n: Option<&u64>| n.map_or_else(|| "0".to_owned(), ToString::to_string);
            table.row([format!("dropped: {}", reason.name()), cell(ingress), cell(egress)]);
        }
    }
    if c.out_segmented + c.out_checksums > 0 {
        let rows = [
            ("segmented in software", c.out_segmented),
            ("segments beyond one each", c.out_segments),
            ("checksums in software", c.out_checksums),
        ];
        for (what, egress) in rows {
            table.row([what.into(), "-".into(), egress.to_string()]);
        }
    }
    // Wake-ups: of the switch by the owner, and of the owner by the switch.
    table.row(["wake-ups".into(), c.wakeups.to_string(), c.kicks.to_string()]);
    if c.reads + c.posted_writes > 0 {
        let rows = [
            ("registers read", c.reads),
            ("registers written, waiting", c.writes),
            ("registers written, posted", c.posted_writes),
            ("interrupts acknowledged", c.acknowledgements),
        ];
        for (what, ingress) in rows {
            table.row([what.into(), ingress.to_string(), "-".into()]);
        }
        table.row(["interrupts".into(), "-".into(), c.interrupts.to_string()]);
    }
    let rest = format!(
        "faults {}, addresses refused for moving {}, for want of room {}",
        c.faults, c.flaps, c.unlearned
    );
    format!("{name}: {}\n{table}{rest}\n{}", state_name(port.state), histogram(&c.batches))
}

/// Batch sizes as bars, from the first to the last that occurred.
fn histogram(batches: &[u64]) -> String {
    let Some(last) = batches.iter().rposition(|n| *n > 0) else { return String::new() };
    let most = batches.iter().copied().max().unwrap_or(1);
    let mut table = Table::new(&["batches of", ">", ""]);
    for (bucket, n) in batches.iter().enumerate().take(last + 1) {
        let from = 1_u64 << bucket;
        let size = if from == 1 { "1".into() } else { format!("{from} to {}", 2 * from - 1) };
        let bar = usize::try_from(u128::from(*n) * 40 / u128::from(most)).unwrap_or(0);
        table.row([size, n.to_string(), "#".repeat(bar)]);
    }
    format!("\n{table}")
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::stats;
    use super::*;
    use crate::api::PortState;

    #[test]
    fn counters_make_a_table() {
        assert_eq!(
            table(&stats(1, &["p1", "p2"], 64_000)).to_string(),
            "PORT      STATE        IN  IN BYTES    OUT  OUT BYTES  DROPPED  REASONS\n\
             vale0:p1  attached  64.0k   4.10 MB  48.0k    3.07 MB    16.0k  full 16.0k\n\
             vale0:p2  attached  64.0k   4.10 MB  48.0k    3.07 MB    16.0k  full 16.0k\n"
        );
    }

    #[test]
    fn rates_make_a_table_and_idle_ports_a_line() {
        let (mut old, new) = (stats(1, &["p1", "p2"], 0), stats(2, &["p1", "p2"], 64_000));
        old.switches[0].ports[1] = new.switches[0].ports[1].clone();
        let rates = Rates::between(&old, &new);
        let mut widths = WIDTHS.to_vec();
        let text = rates_text(&rates, true, &mut widths);
        let words: Vec<&str> = text.lines().flat_map(str::split_whitespace).collect();
        let header = "PORT IN OUT BATCH KICKS WAKE-UPS DROPPED REASONS";
        assert_eq!(words[..8].join(" "), header, "{text}");
        let row = "vale0:p1 64.0 kpps 32.8 Mb/s 48.0 kpps 24.6 Mb/s 32.0";
        assert!(words[8..].join(" ").starts_with(row), "{text}");
        assert!(text.ends_with("full 16.0k\n(without traffic: 1)\n\n"), "{text}");
        assert_eq!(rates_text(&rates, false, &mut widths).lines().count(), 4);
        // The columns keep their places when the content gets shorter.
        let quiet = rates_text(&Rates::default(), true, &mut widths);
        let first = rates_text(&Rates::default(), true, &mut WIDTHS.to_vec());
        let place = |text: &str| text.find("REASONS");
        assert_eq!(place(&quiet), place(&text), "{quiet}{text}");
        assert_eq!(place(&first), place(&text), "{first}{text}");
    }

    #[test]
    fn one_port_is_shown_exactly() {
        let stats = stats(1, &["p1"], 64_000);
        let text = details("vale0:p1", &stats.switches[0].ports[0]);
        assert!(text.starts_with("vale0:p1: attached\n"), "{text}");
        assert!(text.contains("dropped: full        0    16000\n"), "{text}");
        assert!(
            text.contains("32 to 63    2000  ########################################\n"),
            "{text}"
        );
        assert_eq!(stats.switches[0].ports[0].state, PortState::Attached);
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
