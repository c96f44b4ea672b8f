//! Stations by EVPN: how soon others know them, and many of them.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evpn::client::Client;
use evpn::path::{self, Event};
use frame::Mac;
use netring::Port;

use super::super::lab::{Daemon, Lab};
use super::super::traffic::{BATCH, header, send_one};
use super::tunnel::wait_for;
use super::{evpn, memory, process_time};
use crate::hosts::crowd::{Crowd, block_on, station};
use crate::hosts::programs::{Running, need};
use crate::hosts::routers::{Frr, Reflector, gobgpd};
use crate::hosts::{NEVER, Net};

/// The most memory of the supervisor, in MiB.
const MEMORY: f64 = 200.0;
/// The number of simulated hosts.
const HOSTS: u32 = 1000;
/// How long the spread of many routes may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// toklat on host 1, the reflector on host 2.
struct Pair {
    daemon: Daemon,
    reflector: Reflector,
    net: Net,
}

impl Pair {
    /// Starts both hosts. `more` are further clients of the reflector.
    fn start(lab: &Lab, more: &[usize], stations: u32) -> Result<Self> {
        let program = gobgpd()?;
        let net = Net::new(2 + more.len(), 1500)?;
        let clients: Vec<usize> = [1].iter().chain(more).copied().collect();
        let reflector = Reflector::start(&net, 2, &clients, lab.dir())?;
        let lines = format!(
            "fdb_entries = {}\n[switch.vale0.port.gen]\nkind = \"ring\"\nmac_limit = {stations}\n\
             flood_limit = 1000000\n{}",
            (stations * 3).next_power_of_two(),
            evpn(&net, 1, 2, &program)
        );
        let daemon = lab.daemon(&lines)?;
        wait_for(&daemon, "/v1/evpn", |evpn| evpn["neighbors"][0]["state"] == "established")?;
        Ok(Self { daemon, reflector, net })
    }
}

/// The hosts of the table's entries by station.
fn table(daemon: &Daemon) -> Result<usize> {
    let switches: serde_json::Value = daemon.client()?.get("/v1/switches/vale0/fdb")?;
    let entries = switches.as_array().context("no table")?;
    Ok(entries.iter().filter(|entry| entry["origin"] == "remote").count())
}

/// Waits until this many stations of other hosts are in the table.
fn until_known(daemon: &Daemon, count: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        // Reading the table takes long, so the speaker's count is checked first.
        let summary: serde_json::Value = daemon.client()?.get("/v1/evpn")?;
        let known = summary["routes"].as_u64().unwrap_or(0) as usize;
        if known >= count && table(daemon)? == count {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "{known} of {count} routes, {} entries",
            table(daemon)?
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Seconds until `count` stations of 1,000 simulated hosts, which the reflector is told at once,
/// are in the table.
pub fn many_in(lab: &Lab, count: u32) -> Result<f64> {
    lab.once_missing("gobgpd", || {
        let pair = Pair::start(lab, &[], count)?;
        let (seconds, used, mib) = converge(&pair, count)?;
        ensure!(mib <= MEMORY, "the supervisor has {mib:.0} MiB, more than {MEMORY}");
        lab.note("daemon", format!("the supervisor took {used:.1} s of a core, {mib:.0} MiB"));
        Ok(seconds)
    })
}

/// Has `count` stations behind 1,000 hosts converge: seconds, the supervisor's processor time, its
/// memory.
fn converge(pair: &Pair, count: u32) -> Result<(f64, f64, f64)> {
    let (begun, before) = (Instant::now(), process_time(pair.daemon.pid())?);
    Crowd { hosts: HOSTS, stations: count }.appear(&pair.reflector.socket())?;
    until_known(&pair.daemon, count as usize)?;
    let seconds = begun.elapsed().as_secs_f64();
    let used = process_time(pair.daemon.pid())? - before;
    Ok((seconds, used, memory(pair.daemon.pid())?))
}

/// Seconds from the first frame of `count` stations here until the reflector has all their routes.
pub fn many_out(lab: &Lab, count: u32) -> Result<f64> {
    lab.once_missing("gobgpd", || {
        let pair = Pair::start(lab, &[], count)?;
        let mut port = pair.daemon.open("gen").existing().open()?;
        let begun = Instant::now();
        // The port must outlive the thread, because its stations go with it.
        let port = &mut port;
        std::thread::scope(|scope| {
            let speaking = scope.spawn(|| speak_as_all(port, count));
            let known = block_on(async {
                let mut client = Client::connect(&pair.reflector.socket()).await?;
                let mut watch = client.watch().await?;
                let mut known = HashSet::new();
                while known.len() < count as usize {
                    let next = tokio::time::timeout(PATIENCE, watch.message());
                    let message = next.await.context("no routes come")??.context("no watch")?;
                    for event in message.table.iter().flat_map(|table| &table.paths).map(path::read)
                    {
                        if let Ok(Event::Update(update)) = event {
                            known.insert(update.key);
                        }
                    }
                }
                Ok(())
            });
            speaking.join().unwrap_or_else(|_| bail!("the generator panicked"))?;
            known
        })?;
        Ok(begun.elapsed().as_secs_f64())
    })
}

/// Sends a frame from each of `count` stations.
fn speak_as_all(port: &mut Port, count: u32) -> Result<()> {
    let (begun, mut n) = (Instant::now(), 0);
    while n < count {
        let sent = port.send(BATCH).fill(BATCH.min((count - n) as usize), |window| {
            window.copy_in(&header(Mac::local(99), station(n)));
            n += 1;
            60
        });
        port.flush()?;
        if sent == 0 {
            ensure!(begun.elapsed() < PATIENCE, "the switch took {n} frames of {count}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

/// Percent of a core that the supervisor takes for 1,000 moves a second between 1,000 hosts that
/// have 100 stations each, after all are known. Fails if a move is lost.
pub fn moves(lab: &Lab) -> Result<f64> {
    lab.once_missing("gobgpd", || {
        let short = lab.seconds() < 0.5;
        let (count, seconds) = if short { (10_000, 3) } else { (100_000, 60) };
        let pair = Pair::start(lab, &[], count)?;
        let (converged, ..) = converge(&pair, count)?;
        let before = process_time(pair.daemon.pid())?;
        let crowd = Crowd { hosts: HOSTS, stations: count };
        let took = crowd.move_on(&pair.reflector.socket(), (1000, seconds))?.as_secs_f64();
        let used = 100.0 * (process_time(pair.daemon.pid())? - before) / took;
        let rate = f64::from(seconds) * 1000.0 / took;
        ensure!(rate > 950.0, "the reflector took only {rate:.0} moves a second");
        let settling = Instant::now();
        until_settled(&pair.daemon, &crowd, seconds * 1000)?;
        lab.note(
            "hosts",
            format!(
                "{count} stations converged in {converged:.1} s; {took:.0} s of moves, settled {:.1} s later",
                settling.elapsed().as_secs_f64()
            ),
        );
        lab.note("memory", format!("supervisor {:.0} MiB", memory(pair.daemon.pid())?));
        Ok(used)
    })
}

/// Waits until each station is where it went last, and in the table.
fn until_settled(daemon: &Daemon, crowd: &Crowd, moves: u32) -> Result<()> {
    let begun = Instant::now();
    loop {
        let lost = crowd.lost(&daemon.client()?.get("/v1/evpn/macs")?, moves);
        if lost == 0 && table(daemon)? == crowd.stations as usize {
            return Ok(());
        }
        ensure!(begun.elapsed() < Duration::from_secs(60), "{lost} moves were lost");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Changes of a Linux host's FDB, as they come.
struct Monitor {
    lines: mpsc::Receiver<(Instant, String)>,
    _running: Running,
}

impl Monitor {
    fn start(net: &Net, host: &str) -> Result<Self> {
        let mut command = net.command(host, "bridge monitor fdb");
        let mut running = Running::start(command.stdout(Stdio::piped()))?;
        let output = running.0.stdout.take().context("no output")?;
        let (to, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if to.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { lines, _running: running })
    }

    /// When an entry behind another host appears for a station.
    fn entry(&self, mac: Mac) -> Result<Instant> {
        let mac = mac.to_string();
        loop {
            let next = self.lines.recv_timeout(Duration::from_secs(10));
            let (at, line) = next.with_context(|| format!("no entry for {mac}"))?;
            if line.contains(&mac) && line.contains(" dst ") && !line.contains("Deleted") {
                return Ok(at);
            }
        }
    }
}

/// The second-worst of a hundred: the p99.
fn p99(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() - 1 - values.len() / 100]
}

fn repetitions(lab: &Lab) -> u32 {
    if lab.seconds() < 0.5 { 20 } else { 100 }
}

/// ms from a new station's first frame here until it is in the FDB of Linux with FRR (p99).
pub fn out(lab: &Lab) -> Result<f64> {
    lab.once_missing("FRR", || {
        let mut pair = Pair::start(lab, &[3], 4096)?;
        pair.net.kernel_tunnel(3, None, 1400)?;
        let _frr = Frr::start(&pair.net, 3, 2, lab.dir())?;
        wait_for(&pair.daemon, "/v1/evpn", |evpn| evpn["vteps"][0]["floods"] == true)?;
        let (monitor, mut port) =
            (Monitor::start(&pair.net, "h3")?, pair.daemon.open("gen").existing().open()?);
        let ms = (0..repetitions(lab) + 1).map(|n| {
            let begun = Instant::now();
            send_one(&mut port, &padded(station(n)))?;
            let at = monitor.entry(station(n))?;
            std::thread::sleep(Duration::from_millis(u64::from(n * 7 % 40)));
            Ok(at.duration_since(begun).as_secs_f64() * 1e3)
        });
        // The first measurement waits for FRR to start, so it does not count.
        Ok(p99(ms.skip(1).collect::<Result<Vec<_>>>()?))
    })
}

fn padded(from: Mac) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..14].copy_from_slice(&header(Mac::local(99), from));
    frame
}

/// ms from a new station's first frame at Linux with FRR until it is in the table here (p99).
pub fn inward(lab: &Lab) -> Result<f64> {
    lab.once_missing("FRR", || {
        let mut pair = Pair::start(lab, &[3], 4096)?;
        pair.net.kernel_tunnel(3, None, 1400)?;
        let _frr = Frr::start(&pair.net, 3, 2, lab.dir())?;
        wait_for(&pair.daemon, "/v1/evpn", |evpn| evpn["vteps"][0]["floods"] == true)?;
        let daemon = &pair.daemon;
        let ms = (0..repetitions(lab) + 1).map(|n| {
            speak_at_linux(&pair.net, "g3", station(n))?;
            let begun = Instant::now();
            let mac = station(n).to_string();
            wait_for(daemon, "/v1/switches/vale0/fdb", |table| {
                let is_it = |e: &serde_json::Value| e["mac"] == *mac && e["origin"] == "remote";
                table.as_array().into_iter().flatten().any(is_it)
            })?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        });
        Ok(p99(ms.skip(1).collect::<Result<Vec<_>>>()?))
    })
}

/// ms from a new station's first frame at one Linux with FRR to the FDB of another (p99).
pub fn between_frr(lab: &Lab) -> Result<f64> {
    lab.once_missing("FRR", || {
        let mut net = Net::new(4, 1500)?;
        let _reflector = Reflector::start(&net, 2, &[3, 4], lab.dir())?;
        for n in [3, 4] {
            net.kernel_tunnel(n, None, 1400)?;
        }
        let _frr = [3, 4].map(|n| Frr::start(&net, n, 2, lab.dir()));
        net.reach("g3", "192.168.7.4", &NEVER)?;
        let monitor = Monitor::start(&net, "h4")?;
        let ms = (0..repetitions(lab) + 1).map(|n| {
            speak_at_linux(&net, "g3", station(n))?;
            let begun = Instant::now();
            Ok(monitor.entry(station(n))?.saturating_duration_since(begun).as_secs_f64() * 1e3)
        });
        Ok(p99(ms.skip(1).collect::<Result<Vec<_>>>()?))
    })
}

/// A frame from this station, out of a guest's interface.
fn speak_at_linux(net: &Net, guest: &str, mac: Mac) -> Result<()> {
    let words = format!("arping -q -c 1 -w 0.001 -0 -s {mac} -i e0 192.168.7.250");
    need("arping")?;
    let output = net.command(guest, &words).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    // No station answers, which arping reports by status 1.
    ensure!(matches!(output.status.code(), Some(0 | 1)), "arping failed: {}", said.trim());
    Ok(())
}
