//! Switches on several hosts, which are network namespaces, compared with the kernel's VXLAN and
//! FRR.

mod life;
pub mod rows;
mod stations;
mod tunnel;

use std::collections::HashMap;

use anyhow::{Context, Result};

use super::lab::{Daemon, Lab};
use crate::hosts::Net;
use crate::hosts::lines::{evpn, static_tunnel, tap};

/// Processor time of the threads of a process so far, in nanoseconds, by thread.
struct Threads(HashMap<String, u64>);

impl Threads {
    fn of(pid: i32) -> Result<Self> {
        let mut times = HashMap::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?;
            // A thread that has just ended has no file any more.
            let Ok(stat) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
            let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
            let nanos = nanos.context("no time in schedstat")?;
            times.insert(task.file_name().to_string_lossy().into_owned(), nanos);
        }
        Ok(Self(times))
    }

    /// Nanoseconds since `before`, of threads that live.
    fn since(&self, before: &Self) -> u64 {
        let of = |(thread, nanos): (&String, &u64)| {
            nanos.saturating_sub(before.0.get(thread).copied().unwrap_or(0))
        };
        self.0.iter().map(of).sum()
    }
}

/// Processor time of a process so far in seconds, ended threads included, in steps of 10 ms.
fn process_time(pid: i32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit_once(')').context("no name in stat")?.1;
    let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<_, _>>()?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Resident memory of a process in MiB.
fn memory(pid: i32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.context("no VmRSS")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// A daemon on a host, with a guest `g<n>` at a tap, 192.168.7.n.
fn with_guest(lab: &Lab, net: &mut Net, n: usize, lines: &str) -> Result<Daemon> {
    net.add(&format!("g{n}"))?;
    let daemon = lab.daemon(lines)?;
    net.ip(&format!("g{n}"), &format!("addr add 192.168.7.{n}/24 dev e0"))?;
    Ok(daemon)
}
