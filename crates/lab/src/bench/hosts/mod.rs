//! Switches of several hosts, which are network namespaces: beside the kernel's VXLAN and FRR.

mod life;
pub mod rows;
mod stations;
mod tunnel;

use anyhow::{Context, Result};

use super::lab::{Daemon, Lab};
use crate::hosts::Net;
use crate::hosts::lines::{evpn, static_tunnel, tap};

/// Processor time of all threads of a process so far, in nanoseconds.
fn cpu(pid: i32) -> Result<u64> {
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += stat.split(' ').next().unwrap_or("").parse::<u64>().unwrap_or(0);
    }
    Ok(nanos)
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
