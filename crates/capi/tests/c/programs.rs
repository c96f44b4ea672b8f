//! C programs against a real daemon.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::kit::{Daemon, Running, output};

#[test]
fn every_rule_of_the_header_holds() {
    let daemon = Daemon::start();
    daemon.add_switch("vale0");
    output(&mut daemon.program("crates/capi/tests/c/rules.c"));
}

#[test]
fn a_broken_ring_is_reported_and_reset() {
    let daemon = Daemon::start();
    daemon.add_switch("vale0");
    output(&mut daemon.program("crates/capi/tests/c/fault.c"));
}

#[test]
fn the_sink_counts_what_the_generator_sends() {
    let daemon = Daemon::start();
    daemon.add_switch("vale0");
    let mut sink = daemon.program("examples/c/sink.c");
    let sink = sink.args(["vale0:sink", "100"]).stdout(Stdio::piped()).spawn().unwrap();
    let _generator =
        Running::start(daemon.program("examples/c/generator.c").arg("vale0:generator"));
    let done = sink.wait_with_output().unwrap();
    let told = String::from_utf8(done.stdout).unwrap();
    let (frames, rest) = told.split_once(" frames, ").unwrap();
    let frames: u64 = frames.parse().unwrap();
    assert!(done.status.success() && frames >= 100, "{told}");
    assert_eq!(rest, format!("{} bytes\n", frames * 60));
}

/// Frames go on to be echoed after the data process was killed, and no program notices.
#[test]
fn the_echo_outlives_a_killed_data_process() {
    let daemon = Daemon::start();
    daemon.add_switch("vale0");
    let mut echo = Running::start(daemon.program("examples/c/echo.c").arg("vale0:echo"));
    exchange(&daemon);
    let first = daemon.data_process("vale0");
    // A generator that is connected while it happens.
    let mut generator = daemon.program("examples/c/generator.c");
    let mut connected = Running::start(generator.arg("vale0:connected"));
    exchange(&daemon);
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    crate::kit::wait_for("another data process", || {
        (daemon.data_process("vale0") != first).then_some(())
    });
    exchange(&daemon);
    assert!(connected.0.try_wait().unwrap().is_none(), "the generator ended");
    assert!(echo.0.try_wait().unwrap().is_none(), "the echo ended");
}

#[test]
fn the_echo_reopens_its_port_when_the_daemon_is_back() {
    let mut daemon = Daemon::start();
    daemon.add_switch("vale0");
    let mut echo = Running::start(daemon.program("examples/c/echo.c").arg("vale0:echo"));
    exchange(&daemon);
    daemon.stop();
    daemon.start_again();
    echo.wait_for_line("reopened");
    exchange(&daemon);
}

/// A generator gets a hundred frames back.
fn exchange(daemon: &Daemon) {
    let mut generator = daemon.program("examples/c/generator.c");
    let told = output(generator.args(["vale0:generator", "100"]));
    assert!(told.ends_with(" came back\n"), "{told}");
}
