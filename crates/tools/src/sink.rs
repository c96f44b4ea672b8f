//! `toklat sink`: counts frames, and checks them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use frame::{MIN_FRAME, Mac, write_announcement};
use netring::{Interest, Port};

use crate::SINK_MAC;
use crate::session::{Idler, Meter, OpenArgs, RunArgs, Session, Totals, Volume, now};
use crate::tally::{Findings, Tally};
use client::units;
use client::{Client, Global};

/// Options of `toklat sink`.
#[derive(Clone, Debug, clap::Args)]
pub struct SinkArgs {
    /// The port to receive at, such as vale0:p2, or an end of a pipe, such as vale0:x}1
    port: String,
    /// Check number and content of every test frame; fail if any was lost, duplicated, reordered or
    /// changed
    #[arg(short, long)]
    check: bool,
    /// The sink's MAC address
    #[arg(long, default_value_t = SINK_MAC, value_name = "MAC")]
    mac: Mac,
    /// Interval of ARP announcements, by which the switch learns the address; 0 for none
    #[arg(long, default_value = "5s", value_parser = units::duration, value_name = "TIME")]
    announce: Duration,
    /// Maximum frames taken at a time
    #[arg(short, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    burst: u16,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// Takes frames from a port, and checks them if it has a tally.
#[derive(Debug)]
pub struct Sink {
    tally: Option<Tally>,
    burst: usize,
    buffer: Vec<u8>,
}

impl Sink {
    /// Takes up to `burst` frames a turn.
    #[must_use]
    pub fn new(check: bool, burst: usize) -> Self {
        Self { tally: check.then(Tally::new), burst, buffer: vec![0; 1 << 16] }
    }

    /// Takes all frames that are there, on all queues; the caller flushes.
    #[inline]
    pub fn turn(&mut self, port: &mut Port) -> Volume {
        let mut volume = Volume::default();
        for queue in 0..port.queues().1 {
            for frame in port.queue(queue).receive(self.burst) {
                volume += Volume { frames: 1, bytes: frame.len() as u64 };
                if let Some(tally) = &mut self.tally {
                    let len = frame.copy_out(&mut self.buffer);
                    tally.see(&self.buffer[..len]);
                }
            }
        }
        volume
    }

    /// The results of the checks; `None` without checks.
    #[must_use]
    pub fn findings(&self) -> Option<Findings> {
        self.tally.as_ref().map(Tally::findings)
    }
}

/// What a sink reports at its end.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// How many frames and bytes were received.
    #[serde(flatten)]
    pub totals: Totals,
    /// The results of the checks, if frames were checked.
    pub findings: Option<Findings>,
}

/// Runs `toklat sink`.
///
/// # Errors
/// If the port cannot be opened or fails, or the checks found flaws.
pub fn run(args: &SinkArgs, global: &Global) -> anyhow::Result<()> {
    let mut port = args.open.port(&args.port, global)?;
    let session = Session::start(&args.run)?;
    let report = receive(args, &mut port, &session)?;
    let line = format!("received at {}{}", report.totals, describe(report.findings));
    global.print_done(&report, &line)?;
    match report.findings.filter(|findings| !findings.is_flawless()) {
        Some(flaws) => anyhow::bail!("{}", lost(&flaws, &args.port, drops(&args.port, global))),
        None => Ok(()),
    }
}

/// The frames that the switch dropped on their way to a port, by reason; `None` for what is no port
/// of a switch, or if the daemon does not say.
fn drops(name: &str, global: &Global) -> Option<BTreeMap<String, u64>> {
    let (switch, port) = name.split_once(':').filter(|(_, port)| !port.contains(['{', '}']))?;
    let mut client = Client::connect(global).ok()?;
    let path = format!("/v1/stats?switch={switch}");
    let stats: serde_json::Value = client.get(&path).ok()?;
    let ports = stats["switches"][0]["ports"].as_array()?;
    let found = ports.iter().find(|found| found["name"] == port)?;
    serde_json::from_value(found["out_drops"].clone()).ok()
}

/// What was wrong with the test frames, why, and what changes it.
fn lost(flaws: &Findings, port: &str, drops: Option<BTreeMap<String, u64>>) -> String {
    let all = flaws.lost + flaws.probes;
    let percent = (100 * flaws.lost).checked_div(all).unwrap_or(0);
    let other = "`toklat stats` shows where frames are dropped";
    if flaws.lost == 0 {
        return format!("Test frames were damaged, repeated or out of order; {other}");
    }
    let what = format!("{} of {all} test frames ({percent} %) were lost", flaws.lost);
    let drops = drops.unwrap_or_default();
    if drops.get("full").is_none_or(|full| *full == 0) {
        return format!("{what}; {other}");
    }
    let reasons: Vec<_> = drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    format!(
        "{what}: they came faster than {port} took them, and a switch drops what a receiver has no \
         room for (dropped to {port}: {}). A sender waits for a lossless port: toklat port add \
         {port} --lossless before the sink starts, or toklat port set {port} --lossless while it \
         runs; or send slower: toklat gen --rate",
        reasons.join(", ")
    )
}

fn receive(args: &SinkArgs, port: &mut Port, session: &Session) -> anyhow::Result<Report> {
    let mut sink = Sink::new(args.check, args.burst.into());
    let mut idler = Idler::new(args.run.idle);
    let mut at = now();
    let mut meter = Meter::new(at, args.run.quiet);
    let every = args.announce.as_nanos() as u64;
    let mut announce_at = if every == 0 { u64::MAX } else { at };
    while session.goes_on(at) && args.run.count.is_none_or(|count| meter.total.frames < count) {
        if at >= announce_at {
            announce(port, args.mac);
            announce_at = at.saturating_add(every);
        }
        let volume = sink.turn(port);
        port.flush()?;
        meter.add(volume, at);
        meter.tick(at, "received", || describe(sink.findings()));
        if volume.frames > 0 {
            idler.worked();
        } else {
            idler.idle(at, announce_at).take(port, Interest::READ)?;
        }
        at = now();
    }
    if args.run.count.is_none() {
        // What had arrived before the end counts: at most full rings of it.
        for _ in 0..port.slots().1.div_ceil(args.burst.into()) {
            let volume = sink.turn(port);
            if volume.frames == 0 {
                break;
            }
            meter.add(volume, at);
        }
        port.flush()?;
    }
    Ok(Report { totals: meter.totals(port.name()), findings: sink.findings() })
}

/// Broadcasts an ARP announcement, from which switches learn where `mac` is. Without room it is
/// skipped, because another follows.
pub fn announce(port: &mut Port, mac: Mac) {
    let mut frame = [0; MIN_FRAME];
    if write_announcement(mac, Ipv4Addr::UNSPECIFIED, &mut frame).is_some() {
        port.send(1).push(&frame);
    }
}

/// The results as text that follows other text; empty without checks.
fn describe(findings: Option<Findings>) -> String {
    let Some(found) = findings else { return String::new() };
    let mut text = format!(", {} lost", found.lost);
    for (count, what) in [
        (found.duplicated, "duplicated"),
        (found.reordered, "reordered"),
        (found.too_late, "too late to judge"),
        (found.corrupt, "corrupt"),
        (found.before_first, "sent before the first seen"),
        (found.not_followed, "of streams not followed"),
        (found.foreign, "not test frames"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_frames_are_explained_by_the_ports_drops() {
        let flaws = Findings { probes: 350, lost: 650, ..Findings::default() };
        let drops = BTreeMap::from([("full".to_owned(), 650)]);
        let said = lost(&flaws, "vale0:b", Some(drops));
        assert!(said.starts_with("650 of 1000 test frames (65 %) were lost: "), "{said}");
        assert!(said.contains("(dropped to vale0:b: full 650)"), "{said}");
        assert!(said.contains("toklat port add vale0:b --lossless"), "{said}");
        for drops in [None, Some(BTreeMap::from([("rate_limit".to_owned(), 650)]))] {
            let said = lost(&flaws, "vale0:b", drops);
            assert!(
                said.ends_with("(65 %) were lost; `toklat stats` shows where frames are dropped")
            );
        }
        let said = lost(&Findings { corrupt: 1, ..Findings::default() }, "vale0:b", None);
        assert!(said.contains("damaged"), "{said}");
    }
}
