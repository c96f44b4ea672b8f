//! The test guest by itself, and the baseline of virtual machines: two guests without toklat
//! between them. Also the cleanup after programs that start pairs of guests.

use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lab::{Between, Bridge, Pair};
use rustix::process::{Pid, Signal, kill_process};
use vm::{Backend, Qemu, guest};

use harness::{PATIENCE, processes_with, skip};

/// QEMU, if it and the test guest are installed.
fn qemu(test: &str) -> Option<Qemu> {
    let found = Qemu::find(None).map_err(anyhow::Error::from);
    let found = found.and_then(|qemu| Ok(guest::find().map(|_| qemu)?));
    found.inspect_err(|error| skip(test, &format!("{error:#}"))).ok()
}

fn reach_each_other(qemu: &Qemu, between: &Between) {
    let stop = AtomicBool::new(false);
    let mut pair = Pair::boot(qemu, between, 1, &stop).unwrap();
    let us = pair.round_trip(&stop).unwrap();
    let tcp = pair.tcp(|| Duration::ZERO, &stop).unwrap();
    eprintln!("round trip {us} us, {:.0} Mb/s, {:.2} ns/B", tcp.bits / 1e6, tcp.ns_per_byte);
    assert!(us > 1.0 && tcp.bits > 1e6, "{us} us, {tcp:?}");
}

#[test]
fn guests_reach_each_other_over_qemu_s_own_socket() {
    let Some(qemu) = qemu("guests_reach_each_other_over_qemu_s_own_socket") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let backends = [true, false].map(|listen| Backend::Peer { path: path.clone(), listen });
    reach_each_other(&qemu, &Between { backends, prefix: Vec::new() });
}

#[test]
fn guests_reach_each_other_over_tap_and_bridge() {
    let test = "guests_reach_each_other_over_tap_and_bridge";
    let Some(qemu) = qemu(test) else { return };
    let bridge = match Bridge::new() {
        Ok(bridge) => bridge,
        Err(why) => return skip(test, &format!("{why:#}")),
    };
    let backends = bridge.taps().map(|ifname| Backend::Tap { ifname: ifname.into(), vhost: false });
    reach_each_other(&qemu, &Between { backends, prefix: bridge.prefix() });
}

/// Killed, a benchmark takes its guest, its daemon and its data process along.
#[test]
fn nothing_is_left_of_a_killed_benchmark() {
    if qemu("nothing_is_left_of_a_killed_benchmark").is_none() {
        return;
    }
    // All processes that the benchmark starts inherit this variable.
    let place = tempfile::tempdir().unwrap();
    let running = || processes_with("TMPDIR", place.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
    command.args(["bench", "vm", "--row", "vm.rtt", "--quick"]).env("TMPDIR", place.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = command.spawn().unwrap();
    let booted = within(PATIENCE, || running().into_iter().any(is_guest));
    let started = running().len();
    bench.kill().unwrap();
    bench.wait().unwrap();
    let ended = within(PATIENCE, || running().is_empty());
    // Cleans up before the assertions, which may fail.
    let left: Vec<_> = running().into_iter().map(|pid| (pid, command_line(pid))).collect();
    for (pid, _) in &left {
        let _ = kill_process(*pid, Signal::KILL);
    }
    assert!(booted, "the benchmark boots no guest");
    assert!(started >= 4, "{started} processes are no benchmark, daemon, data process and guest");
    assert!(ended, "it left {left:?}");
}

fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// True once the process is the QEMU that runs the first guest of a [`Pair`].
fn is_guest(pid: Pid) -> bool {
    command_line(pid).contains(" -name guest-0,")
}

fn command_line(pid: Pid) -> String {
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}
