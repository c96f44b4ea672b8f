//! `toklat demo`: a switch with isolated processes, and their figures, on any machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dataplane::config::{Idle, Policy, SwitchConfig, WorkerConfig};
use hyper::Method;
use port::stats::PortStats;

use self::processes::Process;
use self::watcher::Watcher;
use super::session::{self, Totals};
use super::{ping, sink};
use crate::api::{Applied, PortSpec, Stats, SwitchInfo, SwitchSpec, Topology};
use client::table::{Table, pps};
use client::units;
use client::{Client, Global};

mod guests;
mod hosts;
mod light;
mod processes;
mod taps;
pub mod watcher;

/// Options of `toklat demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Duration of each measurement
    #[arg(long, default_value = "5s", value_parser = units::duration, value_name = "TIME")]
    duration: Duration,
    /// Skip the taps
    #[arg(long)]
    no_taps: bool,
    /// Exit with status 1 if any part fails or loses a frame [default: only if nothing works]
    #[arg(long)]
    strict: bool,
    /// Skip the Linux guests
    #[arg(long)]
    no_vms: bool,
    /// Instead: hosts of network namespaces with one segment, two with toklat, one with Linux and
    /// FRR; as root
    #[arg(long)]
    hosts: bool,
}

/// A row of the table at the end.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Outcome {
    /// The action of this part of the demo.
    what: String,
    /// The result, or the reason why there is none.
    result: String,
    /// Whether this part of the demo worked.
    state: State,
}

/// The outcome of a part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Done,
    /// The part worked but lost frames or round trips, because other programs used the processors.
    Lossy,
    Skipped,
    Failed,
}

impl Outcome {
    fn result(what: impl Into<String>, result: impl Into<String>) -> Self {
        Self { what: what.into(), result: result.into(), state: State::Done }
    }

    /// Frames were counted.
    fn counted(what: impl Into<String>, result: impl Into<String>, complete: bool) -> Self {
        let state = if complete { State::Done } else { State::Lossy };
        Self { what: what.into(), result: result.into(), state }
    }

    fn skipped(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), result: why.into(), state: State::Skipped }
    }

    fn failed(what: impl Into<String>, why: &anyhow::Error) -> Self {
        Self { what: what.into(), result: format!("{why:#}"), state: State::Failed }
    }
}

/// A running daemon in a directory of its own. The fields are dropped in this order.
struct Demo {
    client: Client,
    daemon: Process,
    stop: Arc<AtomicBool>,
    cpus: Cpus,
    directory: tempfile::TempDir,
    /// The watcher is dropped last, so it has nothing left to clean up.
    _watcher: Watcher,
}

/// Which CPUs the demo uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cpus {
    /// For clients.
    clients: usize,
    /// The switch's CPU: the second one, if there are two.
    switch: usize,
}

impl Cpus {
    /// The first two CPUs that this process may use.
    fn choose(allowed: impl Iterator<Item = usize>) -> Self {
        let mut allowed = allowed.take(2);
        let clients = allowed.next().unwrap_or(0);
        Self { clients, switch: allowed.next().unwrap_or(clients) }
    }

    fn of_this_process() -> anyhow::Result<Self> {
        let set = rustix::thread::sched_getaffinity(None).context("Cannot ask for the CPUs")?;
        Ok(Self::choose((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu))))
    }
}

/// Runs `toklat demo`.
///
/// # Errors
/// If something that should work does not, or it is interrupted. Everything is cleaned up first.
pub fn run(args: &DemoArgs, global: &Global) -> anyhow::Result<()> {
    if args.hosts {
        let outcomes = hosts::run(args)?;
        global.print_list(&outcomes, || table(&outcomes), "")?;
        return verdict(&outcomes, args.strict);
    }
    let mut demo = Demo::start()?;
    let outcomes = demo.measure(args);
    if outcomes.is_err() && !demo.stop.load(Ordering::Relaxed) {
        demo.show_log();
    }
    drop(demo);
    let outcomes = outcomes?;
    global.print_list(&outcomes, || table(&outcomes), "")?;
    if !global.json {
        eprintln!("{NEXT}");
    }
    verdict(&outcomes, args.strict)
}

/// Fails if nothing worked; with --strict, if any part failed.
fn verdict(outcomes: &[Outcome], strict: bool) -> anyhow::Result<()> {
    let any = |state| outcomes.iter().any(|outcome| outcome.state == state);
    if strict {
        ensure!(
            !any(State::Failed) && !any(State::Lossy),
            "A part of the demo failed; the table says why"
        );
    }
    ensure!(
        any(State::Done) || any(State::Lossy) || !any(State::Failed),
        "Nothing worked; the table says why"
    );
    Ok(())
}

const NEXT: &str = "
To go on, start a daemon of your own in one terminal and try in others:
    toklat daemon
    toklat sink vale0:b --check
    toklat gen vale0:a --size imix
    toklat top
    toklat cap vale0:b -w - | wireshark -k -i -
    toklat ping vale0:x vale0:y --size 100
    toklat vm run --switch vale0 --test-guest --address 10.0.0.1/24
`toklat help` lists all commands; `toklat bench switch` and `toklat bench vm` measure each figure
beside its peers.";

/// The prefix of demos' directories.
const DIRECTORY: &str = "toklat-demo-";

const TAPS: &str = "taps in two network namespaces";

fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new(&["what", "result"]);
    for Outcome { what, result, state } in outcomes {
        let state = match state {
            State::Done => "",
            State::Skipped => "skipped: ",
            State::Lossy => "with losses: ",
            State::Failed => "failed: ",
        };
        table.row([what.clone(), format!("{state}{result}")]);
    }
    table
}

/// This program, as a command on the demo's daemon.
fn toklat(dir: &Path, args: &[&str]) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("Cannot tell where this program is")?;
    let mut command = Command::new(program);
    command.arg("--dir").arg(dir).args(args).env("TOKLAT_LOG", "warn").env_remove("TOKLAT_DIR");
    Ok(command)
}

impl Demo {
    /// Starts the daemon, with a switch whose port for the sink is lossless.
    fn start() -> anyhow::Result<Self> {
        let stop = session::stop_on_signals()?;
        let cpus = Cpus::of_this_process()?;
        let directory = tempfile::Builder::new().prefix(DIRECTORY).tempdir().context(
            "Cannot make a directory for the demo; set TMPDIR to one that can be written",
        )?;
        let mut watcher = Watcher::start(directory.path(), &taps::namespaces())?;
        eprintln!("starting a daemon in {} ...", directory.path().display());
        let log = directory.path().join("log");
        let daemon = Process::start("daemon", &mut toklat(directory.path(), &["daemon"])?, &log)?;
        watcher.watch(daemon.id())?;
        let global = Global { dir: Some(directory.path().to_owned()), json: true };
        let mut guard = (daemon, directory);
        let client = match connect(&global, &mut guard.0, &stop) {
            Ok(client) => client,
            Err(error) => {
                eprint!("{}", std::fs::read_to_string(&log).unwrap_or_default());
                return Err(error);
            }
        };
        let (daemon, directory) = guard;
        let mut demo = Self { client, daemon, stop, cpus, directory, _watcher: watcher };
        let topology = topology(cpus);
        let _: Applied = demo.client.send(Method::PUT, "/v1/topology", &topology)?;
        Ok(demo)
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Prints the log, which has the error messages of the processes.
    fn show_log(&self) {
        eprint!("{}", std::fs::read_to_string(self.log()).unwrap_or_default());
    }

    fn measure(&mut self, args: &DemoArgs) -> anyhow::Result<Vec<Outcome>> {
        let mut outcomes = self.throughput(args.duration, false)?;
        outcomes.extend(self.throughput(args.duration / 2, true)?);
        for (all, size) in [(Idle::Poll, "10"), (Idle::Poll, "1400"), (Idle::Sleep, "10")] {
            outcomes.push(self.round_trips(args.duration / 2, all, size)?);
        }
        self.set_idle(Idle::Auto)?;
        let no_taps = args.no_taps.then(|| "--no-taps".to_owned()).or_else(taps::obstacle);
        outcomes.extend(self.part(TAPS, no_taps, |demo| taps::run(demo, args.duration))?);
        outcomes.extend(self.part(light::WHAT, None, |demo| light::run(demo, args.duration))?);
        let no_vms = args.no_vms.then(|| "--no-vms".to_owned()).or_else(guests::obstacle);
        outcomes.extend(self.part(guests::WHAT, no_vms, |demo| guests::run(demo, args.duration))?);
        ensure!(self.daemon.ended()?.is_none(), "The daemon ended early");
        Ok(outcomes)
    }

    /// Runs a part that not every machine supports. If it fails, the rest of the demo still counts.
    fn part(
        &mut self,
        what: &str,
        obstacle: Option<String>,
        run: impl FnOnce(&mut Self) -> anyhow::Result<Vec<Outcome>>,
    ) -> anyhow::Result<Vec<Outcome>> {
        if let Some(why) = obstacle {
            return Ok(vec![Outcome::skipped(what, why)]);
        }
        match run(self) {
            Err(error) if self.stop.load(Ordering::Relaxed) => Err(error),
            Err(error) => Ok(vec![Outcome::failed(what, &error)]),
            done => done,
        }
    }

    /// Starts a tool on the clients' CPU.
    fn tool(&self, name: &str, args: &[&str]) -> anyhow::Result<Process> {
        let cpu = self.cpus.clients.to_string();
        let mut command = toklat(self.directory.path(), args)?;
        Process::start(name, command.args(["--cpu", &cpu, "--quiet", "--json"]), &self.log())
    }

    fn stats(&mut self) -> anyhow::Result<Stats> {
        Ok(self.client.get("/v1/stats?switch=demo")?)
    }

    /// Generator and sink as two processes. They write and read headers and lengths only, or every
    /// byte if so configured.
    fn throughput(&mut self, duration: Duration, every_byte: bool) -> anyhow::Result<Vec<Outcome>> {
        let Cpus { clients, switch } = self.cpus;
        let what = if every_byte { "every byte written and checked" } else { "64-byte frames" };
        eprintln!("generator and sink on CPU {clients}, switch on CPU {switch}, {what}:");
        let announced = self.announced()?;
        let mut args = vec!["sink", "demo:sink", "--yield"];
        args.extend(every_byte.then_some("--check"));
        let sink = self.tool("sink", &args)?;
        self.wait_for_sink(announced)?;
        let time = format!("{}ms", duration.as_millis());
        let before = self.stats()?;
        let mut args = vec!["gen", "demo:gen", "--size", "64", "--yield", "--duration", &time];
        args.extend(every_byte.then_some("--touch"));
        let mut generator = self.tool("generator", &args)?;
        let (mut last, stop) = (before.clone(), Arc::clone(&self.stop));
        let limit = duration + Duration::from_secs(20);
        let status = generator.wait(&stop, limit, || {
            let now = self.stats()?;
            eprintln!("  {}", progress(&last, &now));
            last = now;
            Ok(())
        })?;
        ensure!(status.success(), "The generator failed ({status})");
        let sent: Totals = generator.finish()?;
        let after = self.delivered(&before, sent.frames)?;
        // It reads what is in its ring before it ends.
        let got: sink::Report = sink.finish()?;
        Ok(throughput_outcomes(what, &sent, &got, ns_per_frame(&before, &after)))
    }

    /// Waits until all frames that were sent since `before` are in the sink's ring, or until none
    /// has come for a second; returns the counters.
    fn delivered(&mut self, before: &Stats, sent: u64) -> anyhow::Result<Stats> {
        let first = sink_port(before).map_or(0, |counters| counters.out_frames);
        let (mut most, mut since) = (0, Instant::now());
        loop {
            let stats = self.stats()?;
            let delivered =
                sink_port(&stats).map_or(0, |counters| counters.out_frames).saturating_sub(first);
            if delivered > most {
                (most, since) = (delivered, Instant::now());
            }
            if delivered >= sent || since.elapsed() > Duration::from_secs(1) {
                return Ok(stats);
            }
            ensure!(!self.stop.load(Ordering::Relaxed), "Interrupted");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Frames that sinks have sent: their announcements.
    fn announced(&mut self) -> anyhow::Result<u64> {
        Ok(sink_port(&self.stats()?).map_or(0, |counters| counters.in_frames))
    }

    /// Waits until a sink has announced itself again.
    fn wait_for_sink(&mut self, announced: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.announced()? <= announced {
            ensure!(!self.stop.load(Ordering::Relaxed), "Interrupted");
            ensure!(Instant::now() < deadline, "The sink did not come up within 10 s");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The switch's idle mode.
    fn set_idle(&mut self, idle: Idle) -> anyhow::Result<()> {
        let patch = serde_json::json!({ "idle": idle });
        let _: SwitchInfo = self.client.send(Method::PATCH, "/v1/switches/demo", &patch)?;
        Ok(())
    }

    /// Measures round trips with both ends in one process, through the switch. All of them have the
    /// same idle mode.
    fn round_trips(
        &mut self,
        duration: Duration,
        all: Idle,
        size: &str,
    ) -> anyhow::Result<Outcome> {
        self.set_idle(all)?;
        let (kind, how) = match all {
            Idle::Sleep => ("all asleep between frames", "--sleep"),
            _ => ("all polling", "--spin"),
        };
        let what = format!("round trip, {size} bytes, {kind}");
        eprintln!("{what} ...");
        let time = format!("{}ms", duration.as_millis());
        let args = ["ping", "demo:a", "demo:b", "--duration", &time, "--size", size, how];
        let mut ping = self.tool("ping", &args)?;
        let status = ping.wait(&self.stop, duration + Duration::from_secs(20), || Ok(()))?;
        ensure!(status.success(), "ping failed ({status})");
        let report: ping::Report = ping.finish()?;
        let us = |ns: u64| match ns {
            ..10_000 => format!("{:.2}", ns as f64 / 1e3),
            _ => format!("{:.0}", ns as f64 / 1e3),
        };
        let trip = report.summary;
        let result = format!(
            "{} us median, 99 % {}, 99.9 % {}; {} of {} lost",
            us(trip.p50_ns),
            us(trip.p99_ns),
            us(trip.p99_9_ns),
            trip.lost,
            trip.sent
        );
        Ok(Outcome::counted(what, result, trip.lost == 0))
    }
}

/// Waits until the daemon answers.
fn connect(global: &Global, daemon: &mut Process, stop: &AtomicBool) -> anyhow::Result<Client> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match Client::connect(global) {
            Ok(client) => return Ok(client.without_progress()),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => {}
        }
        ensure!(!stop.load(Ordering::Relaxed), "Interrupted");
        if let Some(status) = daemon.ended()? {
            anyhow::bail!("The daemon ended at once ({status})");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One switch. The stall time of the sink's port is long enough for a busy machine.
fn topology(cpus: Cpus) -> Topology {
    let lossless = Policy { lossless: true, ..Policy::default() };
    let sink = PortSpec { policy: lossless, ..PortSpec::default() };
    let switch = SwitchSpec {
        config: SwitchConfig {
            workers: vec![WorkerConfig { cpu: u16::try_from(cpus.switch).ok() }],
            stall_timeout_ms: 1000,
            ..SwitchConfig::default()
        },
        port: [("sink".to_owned(), sink)].into(),
        ..SwitchSpec::default()
    };
    Topology { switch: [("demo".to_owned(), switch)].into(), ..Topology::default() }
}

/// The counters of the sink's port.
fn sink_port(stats: &Stats) -> Option<&PortStats> {
    let mut ports = stats.switches.iter().flat_map(|switch| &switch.ports);
    ports.find(|port| port.name == "sink").map(|port| &port.counters)
}

/// Frames a second between two readings, and what was dropped.
fn progress(before: &Stats, now: &Stats) -> String {
    let seconds = (now.at_ns.saturating_sub(before.at_ns)).max(1) as f64 / 1e9;
    let frames = worker_sum(now).0.saturating_sub(worker_sum(before).0);
    format!("{:>10}", pps(frames as f64 / seconds))
}

/// Frames that workers moved, and nanoseconds in passes that moved any.
fn worker_sum(stats: &Stats) -> (u64, u64) {
    let workers = stats.switches.iter().flat_map(|switch| &switch.workers);
    workers.fold((0, 0), |(frames, ns), worker| (frames + worker.frames, ns + worker.busy_ns))
}

/// Nanoseconds of the worker's CPU for each frame, between two readings.
fn ns_per_frame(before: &Stats, after: &Stats) -> f64 {
    let ((f0, ns0), (f1, ns1)) = (worker_sum(before), worker_sum(after));
    ns1.saturating_sub(ns0) as f64 / f1.saturating_sub(f0).max(1) as f64
}

fn throughput_outcomes(what: &str, sent: &Totals, got: &sink::Report, ns: f64) -> Vec<Outcome> {
    let received = match got.findings {
        Some(findings) => findings.probes - findings.duplicated,
        None => got.totals.frames,
    };
    let lost = sent.frames.saturating_sub(received);
    let flawless = got.findings.is_none_or(|findings| findings.is_flawless());
    vec![
        Outcome::result(format!("{what}, between two processes"), pps(sent.pps)),
        Outcome::result("  on the switch's core", format!("{ns:.1} ns a frame")),
        match flawless {
            true => Outcome::counted("  lost", format!("{lost} of {}", sent.frames), lost == 0),
            // In this row every sent frame must arrive, however busy the machine is.
            false => Outcome {
                what: "  lost".into(),
                result: format!("{lost} of {}; the sink found flaws", sent.frames),
                state: State::Failed,
            },
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::tally::Findings;

    #[test]
    fn clients_and_switch_get_a_cpu_each_if_there_are_two() {
        assert_eq!(Cpus::choose([3, 5, 7].into_iter()), Cpus { clients: 3, switch: 5 });
        assert_eq!(Cpus::choose([2].into_iter()), Cpus { clients: 2, switch: 2 });
    }

    #[test]
    fn a_part_that_fails_is_told_and_the_rest_counts() {
        let outcome = |state| Outcome { what: "x".into(), result: "y".into(), state };
        let [done, lossy, skipped, failed] =
            [State::Done, State::Lossy, State::Skipped, State::Failed].map(outcome);
        let all = [done.clone(), lossy, skipped.clone(), failed.clone()];
        assert!(verdict(&all, false).is_ok() && verdict(&all, true).is_err());
        assert!(verdict(&[skipped.clone(), failed], false).is_err(), "nothing worked");
        assert!(verdict(&[done, skipped], true).is_ok());
    }

    /// The frames lost are those sent less those received, wherever in the stream they are missing.
    #[test]
    fn lost_frames_are_told() {
        let totals = |frames| Totals {
            port: "p".into(),
            frames,
            bytes: 64 * frames,
            seconds: 1.0,
            pps: frames as f64,
            bps: 512.0 * frames as f64,
        };
        let lost = |frames, findings| {
            let report = sink::Report { totals: totals(frames), findings };
            let outcome = throughput_outcomes("x", &totals(1000), &report, 30.0).remove(2);
            (outcome.result, outcome.state)
        };
        let told = |text: &str, state| (text.to_owned(), state);
        assert_eq!(lost(1000, None), told("0 of 1000", State::Done));
        assert_eq!(lost(997, None), told("3 of 1000", State::Lossy));
        let found = |probes, corrupt| Some(Findings { probes, corrupt, ..Findings::default() });
        assert_eq!(lost(1001, found(1000, 0)), told("0 of 1000", State::Done));
        let flaws = told("2 of 1000; the sink found flaws", State::Failed);
        assert_eq!(lost(1000, found(998, 1)), flaws);
    }
}
