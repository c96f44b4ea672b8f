//! Many ports: the cost of idle ports to busy ones, and of traffic to all.

use std::time::{Duration, Instant};

use anyhow::Result;
use frame::Mac;
use netring::{Port, Region, RegionConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::isolated::{self, POLLED};
use super::lab::{Daemon, Lab};
use super::peer;
use super::traffic::{BATCH, SOURCE, header, on_core};

/// Ports per region: a region has room for 1,024 rings.
const IN_REGION: u32 = 256;

/// Opens unused ports, with `slots` slots per ring.
pub fn open_idle(daemon: &Daemon, count: u32, slots: u32) -> Result<Vec<Port>> {
    raise_descriptor_limit();
    let mut ports = Vec::new();
    for first in (0..count).step_by(IN_REGION as usize) {
        let here = IN_REGION.min(count - first);
        let config = RegionConfig::ports(here, 1, slots).pages(shmem::Pages::Small);
        let region = Region::create(config)?;
        for i in first..first + here {
            ports.push(daemon.open(&format!("idle{i}")).slots(slots).in_region(&region).open()?);
        }
    }
    Ok(ports)
}

/// A client of a thousand ports has a thousand tokens.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Nanoseconds per frame between two busy ports, while there are `idle` idle ones.
pub fn beside_idle(lab: &Lab, idle: u32) -> Result<f64> {
    let daemon = lab.daemon(POLLED)?;
    let _idle = open_idle(&daemon, idle, 8)?;
    let mpps = isolated::rate(isolated::ports(&daemon)?, lab.duration(), 64, false)?;
    Ok(1e3 / mpps)
}

/// Nanoseconds of the switch's core per frame (non-empty passes), from one port to `ports` others
/// with `addresses` addresses, in random order.
pub fn uniform(lab: &Lab, ports: u32, addresses: u32) -> Result<f64> {
    raise_descriptor_limit();
    let mut topology = POLLED.to_owned();
    for i in 0..ports {
        let macs: Vec<String> =
            (i..addresses).step_by(ports as usize).map(|n| format!("\"{}\"", address(n))).collect();
        topology += &format!("\n[switch.vale0.port.p{i}]\nmacs = [{}]", macs.join(", "));
    }
    let daemon = lab.daemon(&topology)?;
    let mut sender = daemon.port("gen")?;
    let mut receivers = Vec::new();
    for first in (0..ports).step_by(IN_REGION as usize) {
        let here = IN_REGION.min(ports - first);
        let region = Region::create(RegionConfig::ports(here, 1, 128))?;
        for i in first..first + here {
            receivers.push(daemon.open(&format!("p{i}")).slots(128).in_region(&region).open()?);
        }
    }
    let worker = || -> Result<(u64, u64)> {
        let stats = daemon.stats()?;
        Ok(stats.workers.iter().fold((0, 0), |(ns, n), w| (ns + w.busy_ns, n + w.frames)))
    };
    let time = lab.duration();
    let mut run = |time| on_core(0, || scatter(&mut sender, &mut receivers, addresses, time));
    // Warms up first: the first frames touch new pages.
    run(time.max(Duration::from_secs(1)))?;
    let before = worker()?;
    run(time)?;
    let after = worker()?;
    Ok((after.0 - before.0) as f64 / (after.1 - before.1) as f64)
}

/// Like [`uniform`] with 1,024 ports. Also notes the floor program's figures for two ports and for
/// one, for comparison with its many.
pub fn uniform_beside_floor(lab: &Lab) -> Result<f64> {
    let two = peer::floor(lab, &["scatter", "ports=2", "addresses=2"])?;
    let pair = peer::floor(lab, &["scatter", "ports=1", "addresses=1"])?;
    let said = format!("the floor's own 2 ports: {two:.1} ns/frame, an ordinary pair: {pair:.1}");
    lab.note("floor", said);
    uniform(lab, 1024, 8000)
}

/// Sends to random addresses for `time`. Receivers are emptied whenever each has got about one
/// frame, or a batch is sent.
fn scatter(
    sender: &mut Port,
    receivers: &mut [Port],
    addresses: u32,
    time: Duration,
) -> Result<()> {
    let (start, mut random) = (Instant::now(), 1u64);
    while start.elapsed() < time {
        for _ in 0..receivers.len().div_ceil(BATCH) {
            sender.send(BATCH).fill(BATCH, |window| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let to = ((random >> 33) * u64::from(addresses)) >> 31;
                window.copy_in(&header(address(to as u32), SOURCE));
                64
            });
            sender.flush()?;
        }
        for port in &mut *receivers {
            port.receive(usize::MAX).for_each(drop);
            port.flush()?;
        }
    }
    Ok(())
}

fn address(number: u32) -> Mac {
    Mac::local(1000 + number)
}
