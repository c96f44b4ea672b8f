//! C programs against a real daemon.

use harness::{Daemon, Running, kill_process, wait_until};

use crate::kit::program;

#[test]
fn every_rule_of_the_header_holds() {
    let daemon = Daemon::with_switch("vale0");
    Running::start(&mut program(&daemon, "crates/capi/tests/c/rules.c")).finish();
}

#[test]
fn a_broken_ring_is_reported_and_reset() {
    let daemon = Daemon::with_switch("vale0");
    Running::start(&mut program(&daemon, "crates/capi/tests/c/fault.c")).finish();
}

#[test]
fn the_sink_counts_what_the_generator_sends() {
    let daemon = Daemon::with_switch("vale0");
    let mut sink = program(&daemon, "examples/c/sink.c");
    let sink = Running::start(sink.args(["vale0:sink", "100"]));
    let _generator =
        Running::start(program(&daemon, "examples/c/generator.c").arg("vale0:generator"));
    let told = sink.finish();
    let (frames, rest) = told.split_once(" frames, ").unwrap();
    let frames: u64 = frames.parse().unwrap();
    assert!(frames >= 100, "{told}");
    assert_eq!(rest, format!("{} bytes\n", frames * 60));
}

/// The echo continues after the data process was killed, and no program notices.
#[test]
fn the_echo_outlives_a_killed_data_process() {
    let daemon = Daemon::with_switch("vale0");
    let mut echo = Running::start(program(&daemon, "examples/c/echo.c").arg("vale0:echo"));
    exchange(&daemon);
    let first = daemon.data_process("vale0");
    // This generator is connected while the process is killed.
    let mut generator = program(&daemon, "examples/c/generator.c");
    let mut connected = Running::start(generator.arg("vale0:connected"));
    exchange(&daemon);
    kill_process(first);
    wait_until("another data process", || {
        let switch = daemon.get("/v1/switches/vale0");
        switch["pid"].as_i64().is_some_and(|pid| pid != i64::from(first))
    });
    exchange(&daemon);
    assert!(connected.0.try_wait().unwrap().is_none(), "the generator ended");
    assert!(echo.0.try_wait().unwrap().is_none(), "the echo ended");
}

#[test]
fn the_echo_reopens_its_port_when_the_daemon_is_back() {
    let mut daemon = Daemon::with_switch("vale0");
    let _echo = Running::start(program(&daemon, "examples/c/echo.c").arg("vale0:echo"));
    exchange(&daemon);
    daemon.terminate();
    daemon.start_again();
    exchange(&daemon);
}

/// Runs a generator, which must get a hundred frames back.
fn exchange(daemon: &Daemon) {
    let mut generator = program(daemon, "examples/c/generator.c");
    let told = Running::start(generator.args(["vale0:generator", "100"])).finish();
    assert!(told.ends_with(" came back\n"), "{told}");
}
