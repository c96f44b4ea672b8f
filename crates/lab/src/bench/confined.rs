//! Confined guests at a daemon's switch: one, two, or a thousand, each in a process of its own.
//!
//! Rates are for each second that all parties together have spent on a core: guests, data process,
//! and what this process does for them.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use frame::{Mac, OffloadSet};
use guest::apps::bulk::Bulk;
use guest::apps::load::{Fetch, Load};
use guest::{App, Config, Guest, Nanos, RingNic, Stack};
use jail::parent_death;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::Value;

use super::lab::{Daemon, Lab};
use super::life::proportional_kib;
use super::stacks::busy;
use super::traffic::on_core;

/// The first guest's address; the others' follow.
pub const FIRST: Ipv4Addr = Ipv4Addr::new(10, 8, 1, 0);
/// The address of this process's guest.
pub const OWN: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const PREFIX: u8 = 16;
/// Slots of a guest's rings: of many, and of one.
const SLOTS: u32 = 64;
const LONE_SLOTS: u32 = 256;
/// Requests that a guest of [`scale`] has to answer at once.
const OUTSTANDING: usize = 32;
/// How long all connections of [`scale`] may take to be made.
const CONNECTING: Duration = Duration::from_secs(120);

/// A manager and its guests. They end when this is dropped.
pub struct Confined {
    manager: Child,
    /// From the command to the last guest's report that it serves.
    pub took: Duration,
}

impl Drop for Confined {
    fn drop(&mut self) {
        // SIGTERM lets the manager collect its guests.
        let _ = kill_process(Pid::from_child(&self.manager), Signal::TERM);
        let _ = self.manager.wait();
    }
}

fn command(daemon: &Daemon, words: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("guest").args(words).env("TOKLAT_DIR", daemon.dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// Starts `count` guests from `first` on; returns when all serve. `words` are options, and what
/// follows `--`.
pub fn start(
    daemon: &Daemon,
    [app, name]: [&str; 2],
    (first, count): (Ipv4Addr, u32),
    words: &[&str],
) -> Result<Confined> {
    let (port, address) = (format!("vale0:{name}"), format!("{first}/{PREFIX}"));
    let (count, slots) =
        (count.to_string(), if count == 1 { LONE_SLOTS } else { SLOTS }.to_string());
    let fixed = ["run", "--announce", app, &port, &address, "--restart", "never"];
    let mut command = command(daemon, &fixed)?;
    command.args(["--count", &count, "--slots", &slots]).args(words);
    let began = Instant::now();
    let mut manager = parent_death::signal(&mut command, Signal::TERM).spawn()?;
    let mut line = String::new();
    let out = manager.stdout.take().context("standard output")?;
    BufReader::new(out).read_line(&mut line)?;
    let confined = Confined { manager, took: began.elapsed() };
    ensure!(line.trim() == "up", "the guests did not start");
    Ok(confined)
}

/// All guests, as `toklat guest list` shows them.
fn list(daemon: &Daemon) -> Result<Vec<Value>> {
    let output = command(daemon, &["list", "--json"])?.output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The processes of the guests whose names begin with `name`.
pub fn pids(daemon: &Daemon, name: &str) -> Result<Vec<i32>> {
    let of = |info: &Value| info["name"].as_str().is_some_and(|own| own.starts_with(name));
    let all = list(daemon)?;
    let pids = all.iter().filter(|info| of(info)).map(|info| info["pid"].as_i64());
    let pids: Option<Vec<i32>> = pids.map(|pid| pid?.try_into().ok()).collect();
    pids.context("a guest has ended")
}

/// Seconds that all threads of processes have spent on a core.
pub fn cpu_of(pids: &[i32]) -> f64 {
    let threads = |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let nanos = |thread: std::fs::DirEntry| -> Option<u64> {
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse().ok()
    };
    pids.iter().flat_map(threads).flatten().filter_map(nanos).sum::<u64>() as f64 / 1e9
}

/// Milliseconds from the request for a guest's port to its report that it serves, confined.
pub fn start_one(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let _guest = start(&daemon, ["httpd", "web"], (FIRST, 1), &[])?;
    let took = list(&daemon)?[0]["start_us"].as_f64().context("it does not serve")?;
    Ok(took / 1e3)
}

/// Seconds from the command until 1,000 guests serve.
pub fn start_thousand(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("")?;
    Ok(start(&daemon, ["httpd", "web"], (FIRST, 1000), &[])?.took.as_secs_f64())
}

/// Percent of a core that 1,000 guests without clients use, together with their manager and the
/// data process.
pub fn idle(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let guests = start(&daemon, ["httpd", "web"], (FIRST, 1000), &[])?;
    let mut all = pids(&daemon, "web")?;
    all.extend([daemon.data_process()?, guests.manager.id() as i32]);
    // The worker's patience, and what the start has left to do.
    std::thread::sleep(Duration::from_millis(500));
    let (before, began) = (cpu_of(&all), Instant::now());
    std::thread::sleep(lab.duration().max(Duration::from_secs(2)));
    Ok((cpu_of(&all) - before) / began.elapsed().as_secs_f64() * 100.0)
}

/// The memory of one of 1,000 idle guests in KiB. Each guest counts its share of shared pages.
pub fn memory(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let _guests = start(&daemon, ["httpd", "web"], (FIRST, 1000), &[])?;
    let all = pids(&daemon, "web")?;
    let sum = all.iter().map(|pid| proportional_kib(*pid)).sum::<Result<u64>>()?;
    Ok(sum as f64 / all.len() as f64)
}

/// A guest in this process, on a port of the daemon.
fn own<A: App>(daemon: &Daemon, (number, slots): (u32, u32), app: A) -> Result<Guest<RingNic, A>> {
    let open = daemon.open(&format!("own{number}")).slots(slots).offloads(OffloadSet::ALL);
    let address = Ipv4Addr::from_bits(OWN.to_bits() + number);
    let mut config = Config::new(Mac::local(100 + number), address, PREFIX);
    config.tcp.max_connections = 1 << 16;
    Ok(Guest::new(Stack::new(RingNic::new(open.open()?), &config), app))
}

/// This process's clock for its guests.
fn clock() -> impl Fn() -> Nanos {
    let started = Instant::now();
    move || Nanos(Nanos::SECOND) + started.elapsed().as_nanos() as u64
}

/// The results of a load of pages.
struct Served {
    /// Pages per second of core time of all parties.
    rate: f64,
    /// Pages a second of the clock.
    clock: f64,
    kicks: f64,
    /// Seconds until each connection had an answer.
    connecting: f64,
    /// Percent of the time on a core: guests, data process, generator.
    shares: [f64; 3],
}

/// Pages of 1 KiB from `count` guests in processes of `threads` each, by a generator in this
/// process with [`OUTSTANDING`] connections to each.
fn serve(lab: &Lab, count: u32, threads: u32) -> Result<Served> {
    raise_descriptors();
    let daemon = lab.daemon("")?;
    let threads = threads.to_string();
    let _guests = start(&daemon, ["httpd", "web"], (FIRST, count), &["--threads", &threads])?;
    let mut all = pids(&daemon, "web")?;
    let data_process = daemon.data_process()?;
    all.push(data_process);
    let (seconds, want) = (lab.seconds(), u64::from(count) * OUTSTANDING as u64);
    let ports = || -> Result<(u64, u64)> {
        let stats = daemon.stats()?;
        let web = stats.ports.iter().filter(|port| port.name.starts_with("web"));
        Ok(web.fold((0, 0), |(k, f), p| (k + p.counters.kicks, f + p.counters.out_frames)))
    };
    on_core(0, || {
        let (now, mut guest) = (clock(), own(&daemon, (0, 4096), Load::new("guest", "/1k"))?);
        let connecting = Instant::now();
        connect(&mut guest, count, &now)?;
        let connecting = connecting.elapsed().as_secs_f64();
        let (before, was) = (ports()?, (guest.app().answers, Instant::now()));
        let each = || (cpu_of(&all), cpu_of(&[data_process]));
        let (cpu, mine) = (each(), busy(was.1));
        while was.1.elapsed().as_secs_f64() < seconds.max(0.5) {
            turn(&mut guest, &now)?;
        }
        let (theirs, own) = (each(), busy(was.1) - mine);
        let spent = theirs.0 - cpu.0 + own;
        let shares = [spent - own - (theirs.1 - cpu.1), theirs.1 - cpu.1, own];
        let answers = (guest.app().answers - was.0) as f64;
        let clock = answers / was.1.elapsed().as_secs_f64();
        let (after, lost) = (ports()?, guest.app().lost + guest.app().errors);
        ensure!(lost == 0, "{lost} of {want} connections were lost");
        let kicks = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        let shares = shares.map(|share| share / spent * 100.0);
        Ok(Served { rate: answers / spent, clock, kicks, connecting, shares })
    })
}

fn turn(guest: &mut Guest<RingNic, Load>, now: &impl Fn() -> Nanos) -> Result<()> {
    for _ in 0..16 {
        guest.poll(now())?;
    }
    Ok(())
}

/// Connects to all guests, a few at a time, until each connection has had an answer.
fn connect(guest: &mut Guest<RingNic, Load>, count: u32, now: &impl Fn() -> Nanos) -> Result<()> {
    let (began, mut opened) = (Instant::now(), 0u64);
    // The load of those that are connected would slow down the others.
    guest.app().hold(true);
    for i in 0..count {
        let to = SocketAddrV4::new(Ipv4Addr::from_bits(FIRST.to_bits() + i), 80);
        let name = if count == 1 { "vale0:web".into() } else { format!("vale0:web-{i}") };
        // A question to all would wake every guest.
        guest.stack().introduce(*to.ip(), Mac::of_name(&name), now());
        for _ in 0..OUTSTANDING {
            guest.connect(to, Fetch::default(), now())?;
            opened += 1;
            while opened > guest.app().made + 256 {
                turn(guest, now)?;
                ensure!(began.elapsed() < CONNECTING, "connecting takes too long");
            }
        }
    }
    while guest.app().made < opened {
        turn(guest, now)?;
        ensure!(began.elapsed() < CONNECTING, "connecting takes too long");
    }
    guest.app().hold(false);
    while guest.app().answers < opened {
        turn(guest, now)?;
        ensure!(began.elapsed() < CONNECTING, "the first pages take too long");
    }
    Ok(())
}

fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Pages for each second of all parties, from this many guests.
pub fn scale(lab: &Lab, count: u32) -> Result<f64> {
    let served = serve(lab, count, 1)?;
    let [guests, switch, generator] = served.shares;
    let said = format!(
        "in the last run {count} guests: {:.0} pages/s by the clock, {:.2} interrupts a frame, {:.1} s to \
         connect; of the time guests had {guests:.0} %, the data process {switch:.0} %, the \
         generator {generator:.0} %",
        served.clock, served.kicks, served.connecting
    );
    lab.note(&format!("{count} guests"), said);
    Ok(served.rate)
}

/// The same load, with all guests in one process.
pub fn scale_in_one(lab: &Lab, count: u32) -> Result<f64> {
    Ok(serve(lab, count, count)?.rate)
}

/// Interrupts for each frame that guests receive under load: kicks are batched, so they fall with
/// the load.
pub fn batching(lab: &Lab, count: u32) -> Result<f64> {
    Ok(serve(lab, count, 1)?.kicks)
}

/// Senders of [`fair`].
const SENDERS: u32 = 8;

/// Jain's index of what eight guests send at once, of which one has 16 connections, the others one.
pub fn fair(lab: &Lab) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let seconds = lab.seconds().max(1.0);
    let got = on_core(0, || {
        let sinks = (0..SENDERS).map(|i| own(&daemon, (i, 256), Bulk::sink(false)));
        let mut sinks = sinks.collect::<Result<Vec<_>>>()?;
        sinks.iter_mut().try_for_each(|sink| sink.listen(5001, 64))?;
        let sender = |i: u32| {
            let first = Ipv4Addr::from_bits(FIRST.to_bits() + i);
            let to = format!("{}:5001", Ipv4Addr::from_bits(OWN.to_bits() + i));
            let connections = if i == 0 { "16" } else { "1" };
            let words = ["--", &to, "1000", connections];
            start(&daemon, ["source", &format!("send{i}")], (first, 1), &words)
        };
        let _senders = (0..SENDERS).map(sender).collect::<Result<Vec<_>>>()?;
        let now = clock();
        let mut run = |time: f64, done: fn(&[u64]) -> bool| -> Result<Vec<u64>> {
            let began = Instant::now();
            loop {
                sinks.iter_mut().try_for_each(|sink| sink.poll(now()).map(drop))?;
                let got: Vec<u64> = sinks.iter_mut().map(|sink| sink.app().received).collect();
                if done(&got) || began.elapsed().as_secs_f64() >= time {
                    return Ok(got);
                }
            }
        };
        let before = run(10.0, |got| got.iter().all(|bytes| *bytes > 1 << 20))?;
        let after = run(seconds, |_| false)?;
        Ok(after.iter().zip(&before).map(|(a, b)| (a - b) as f64).collect::<Vec<f64>>())
    })?;
    let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|x| x * x).sum::<f64>());
    let share = got[0] / sum * f64::from(SENDERS);
    lab.note("greedy", format!("in the last run the greedy guest had {share:.2} of its share"));
    ensure!(squares > 0.0, "no guest sent anything");
    Ok(sum * sum / (f64::from(SENDERS) * squares))
}

/// The data process and the guests of these names.
fn parties(daemon: &Daemon, names: &[&str]) -> Result<Vec<i32>> {
    let mut all = vec![daemon.data_process()?];
    for name in names {
        all.extend(pids(daemon, name)?);
    }
    Ok(all)
}

/// Gb/s from one confined guest to another, by the bytes that reach its port.
pub fn bulk(lab: &Lab) -> Result<f64> {
    bulk_at(lab, &lab.daemon("")?)
}

/// The same rate on ports `source` and `sink` of this daemon.
pub fn bulk_at(lab: &Lab, daemon: &Daemon) -> Result<f64> {
    let _sink = start(daemon, ["sink", "sink"], (FIRST, 1), &[])?;
    let (second, to) = (Ipv4Addr::from_bits(FIRST.to_bits() + 1), format!("{FIRST}:5001"));
    let _source = start(daemon, ["source", "source"], (second, 1), &["--", &to, "1000"])?;
    let all = parties(daemon, &["sink", "source"])?;
    let bytes = || -> Result<u64> {
        let stats = daemon.stats()?;
        let sink = stats.ports.iter().find(|port| port.name == "sink");
        Ok(sink.context("the sink's port is gone")?.counters.out_bytes)
    };
    let began = Instant::now();
    while bytes()? < 10 << 20 {
        ensure!(began.elapsed().as_secs() < 10, "the transfer does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (before, cpu) = (bytes()?, cpu_of(&all));
    std::thread::sleep(lab.duration().max(Duration::from_secs(1)));
    let moved = bytes()? - before;
    Ok(moved as f64 * 8.0 / 1e9 / (cpu_of(&all) - cpu))
}

/// Pages from one confined guest to another with 16 connections.
pub fn pages(lab: &Lab, path: &str) -> Result<f64> {
    let daemon = lab.daemon("")?;
    let _server = start(&daemon, ["httpd", "web"], (FIRST, 1), &[])?;
    let all = parties(&daemon, &["web"])?;
    let seconds = lab.seconds().max(1.0).to_string();
    let (port, address) = ("vale0:load", format!("{OWN}/{PREFIX}"));
    let fixed = ["run", "load", port, &address, "--restart", "never", "--slots", "256", "--"];
    let mut command = command(&daemon, &fixed)?;
    command.args([&format!("{FIRST}:80"), path, "16", &seconds]).stderr(Stdio::null());
    let cpu = cpu_of(&all);
    let output = command.output()?;
    let spent = cpu_of(&all) - cpu;
    let said = String::from_utf8_lossy(&output.stdout);
    let Some(line) = said.lines().find_map(|line| line.strip_prefix("load | ")) else {
        bail!("the load says nothing");
    };
    let told: Value = serde_json::from_str(line)?;
    let number = |what: &str| told[what].as_f64().with_context(|| format!("no {what}"));
    ensure!(number("errors")? + number("lost")? == 0.0, "not every answer was right");
    Ok(number("answers")? / (spent + number("busy")?))
}
