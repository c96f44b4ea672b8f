//! `toklat demo --hosts`: three hosts, which are network namespaces: two with toklat, one with
//! Linux and FRR. Their guests are in one segment.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use lab::hosts::Net;
use lab::hosts::lines::{evpn, static_tunnel, tap};
use lab::hosts::programs::Missing;
use lab::hosts::routers::{Frr, Reflector, gobgpd};

use super::processes::Process;
use super::watcher::Watcher;
use super::{DIRECTORY, DemoArgs, Outcome, taps, toklat};
use crate::tools::session;
use client::{Client, Global};

const WHAT: &str = "three hosts";
const MTU: u32 = 1400;
/// The hosts of toklat, of the route reflector, and of Linux with FRR.
const TOKLAT: [usize; 2] = [1, 3];
const REFLECTOR: usize = 2;
const LINUX: usize = 4;

/// All hosts. The fields are dropped in this order, so the watcher has nothing left to clean up.
struct Hosts {
    daemons: Vec<Process>,
    linux: Result<Option<Frr>, String>,
    reflector: Result<Reflector, String>,
    net: Net,
    directory: tempfile::TempDir,
    watcher: Watcher,
}

/// Runs the demo of hosts.
///
/// # Errors
/// It is interrupted, or no part works.
pub fn run(args: &DemoArgs) -> anyhow::Result<Vec<Outcome>> {
    if let Some(why) = taps::obstacle() {
        return Ok(vec![Outcome::skipped(WHAT, why)]);
    }
    let stop = session::stop_on_signals()?;
    let mut outcomes = Vec::new();
    match Hosts::start(&stop, &mut outcomes) {
        Ok(hosts) => hosts.measure(args.duration, &stop, &mut outcomes)?,
        Err(error) if stop.load(Ordering::Relaxed) => return Err(error),
        Err(error) => outcomes.push(Outcome::failed(WHAT, &error)),
    }
    Ok(outcomes)
}

impl Hosts {
    fn start(stop: &AtomicBool, outcomes: &mut Vec<Outcome>) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix(DIRECTORY).tempdir()?;
        let watcher = Watcher::start(directory.path(), &taps::namespaces())?;
        eprintln!("making hosts of network namespaces ...");
        let prefix = taps::namespaces().trim_end_matches('-').to_owned();
        let net = Net::with_names(prefix, LINUX, 1500)?;
        let program = gobgpd();
        let reflector = match &program {
            Ok(_) => {
                Reflector::start(&net, REFLECTOR, &[TOKLAT[0], TOKLAT[1], LINUX], directory.path())
                    .map_err(|e| format!("{e:#}"))
            }
            Err(error) => Err(format!("{error:#}")),
        };
        let linux = Ok(None);
        let mut hosts = Self { daemons: Vec::new(), linux, reflector, net, directory, watcher };
        for (n, other) in [(TOKLAT[0], TOKLAT[1]), (TOKLAT[1], TOKLAT[0])] {
            let by_evpn = hosts.reflector.is_ok().then_some(&program);
            let program = by_evpn.and_then(|program| program.as_ref().ok());
            hosts.start_toklat((n, other), program.map(PathBuf::as_path), stop)?;
        }
        match &hosts.reflector {
            Ok(_) => hosts.linux = hosts.start_linux().map(Some).map_err(|e| format!("{e:#}")),
            Err(why) => {
                let why = format!("{why}; tunnels are static");
                outcomes.push(Outcome::skipped("EVPN by GoBGP", why));
            }
        }
        if let Err(why) = &hosts.linux {
            outcomes.push(Outcome::skipped("a third host: Linux and FRR", why.clone()));
        }
        Ok(hosts)
    }

    fn start_toklat(
        &mut self,
        (n, other): (usize, usize),
        program: Option<&Path>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let guest = format!("g{n}");
        self.net.add(&guest)?;
        let lines = match program {
            Some(program) => tap(&self.net, n, MTU) + &evpn(&self.net, n, REFLECTOR, program),
            None => static_tunnel(&self.net, (n, other), Some(MTU)),
        };
        let dir = self.daemon(n);
        std::fs::create_dir(&dir)?;
        let file = dir.join("net.toml");
        std::fs::write(&file, format!("[switch.vale0]\n{lines}"))?;
        let mut command = toklat(&dir, &["daemon", "--topology"])?;
        let daemon = Process::start("daemon", command.arg(&file), &dir.join("log"))?;
        self.watcher.watch(daemon.id())?;
        self.daemons.push(daemon);
        let begun = Instant::now();
        // The guest's tap is there as soon as the topology is applied.
        while self.net.ip(&guest, &format!("addr add 192.168.7.{n}/24 dev e0")).is_err() {
            ensure!(!stop.load(Ordering::Relaxed), "Interrupted");
            let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            ensure!(begun.elapsed() < Duration::from_secs(20), "No tap at host {n}: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn daemon(&self, n: usize) -> PathBuf {
        self.directory.path().join(format!("host{n}"))
    }

    fn start_linux(&mut self) -> anyhow::Result<Frr> {
        self.net.kernel_tunnel(LINUX, None, MTU)?;
        // The kernel leaves checksums and segments inside of tunnels to the device, and a veth does
        // neither.
        let host = format!("h{LINUX}");
        self.net.run(&host, "ethtool -K u0 tx off tso off gso off")?;
        Frr::start(&self.net, LINUX, REFLECTOR, self.directory.path())
    }

    /// Pings and measures between each two guests.
    fn measure(
        &self,
        time: Duration,
        stop: &AtomicBool,
        outcomes: &mut Vec<Outcome>,
    ) -> anyhow::Result<()> {
        let linux = self.linux.as_ref().is_ok_and(Option::is_some).then_some(LINUX);
        let pairs = [Some((TOKLAT[0], TOKLAT[1])), linux.map(|linux| (TOKLAT[0], linux))];
        for (from, to) in pairs.into_iter().flatten() {
            let what = if to == LINUX { "toklat and Linux with FRR" } else { "toklat and toklat" };
            for part in ["round trip", "TCP"] {
                ensure!(!stop.load(Ordering::Relaxed), "Interrupted");
                eprintln!("{what}: {part} ...");
                let what = format!("{part} between {what}");
                outcomes.push(match self.between((from, to), part, time, stop) {
                    Ok(result) => Outcome::result(what, result),
                    Err(error) if Missing::is(&error) => {
                        Outcome::skipped(what, format!("{error:#}"))
                    }
                    Err(error) => Outcome::failed(what, &error),
                });
            }
        }
        if self.reflector.is_ok() {
            outcomes.push(match self.stations() {
                Ok(result) => Outcome::result("stations of other hosts by EVPN", result),
                Err(error) => Outcome::failed("stations of other hosts by EVPN", &error),
            });
        }
        Ok(())
    }

    fn between(
        &self,
        (from, to): (usize, usize),
        part: &str,
        time: Duration,
        stop: &AtomicBool,
    ) -> anyhow::Result<String> {
        let (guest, address) = (format!("g{from}"), format!("192.168.7.{to}"));
        self.net.reach(&guest, &address, stop)?;
        if part == "TCP" {
            let seconds = u32::try_from(time.as_secs()).unwrap_or(1).max(1);
            let rate = self.net.tcp(&guest, (&format!("g{to}"), &address), seconds)?;
            return Ok(format!("{rate:.2} Gb/s"));
        }
        let count = (time.as_millis() as u32 / 10).clamp(20, 500);
        let us = self.net.round_trip(&guest, &address, (0.01, count))?;
        Ok(format!("{us:.0} us"))
    }

    /// Describes which stations of other hosts the first host knows.
    fn stations(&self) -> anyhow::Result<String> {
        let global = Global { dir: Some(self.daemon(TOKLAT[0])), json: true };
        let mut client = Client::connect(&global)?.without_progress();
        let macs: Vec<::evpn::report::MacInfo> = client.get("/v1/evpn/macs")?;
        let hosts: Vec<String> =
            macs.iter().filter_map(|mac| Some(format!("{} at {}", mac.mac, mac.host?))).collect();
        ensure!(!hosts.is_empty(), "none is known");
        Ok(hosts.join(", "))
    }
}
