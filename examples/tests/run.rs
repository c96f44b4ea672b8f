//! The examples do what they say.

use std::path::Path;
use std::process::Command;

use frame::Mac;
use harness::{Daemon, Running, wait_for};
use netring::{Open, Port};

fn start(program: &str, args: &[&str], daemon: &Daemon) -> Running {
    Running::start(daemon.client(Path::new(program)).args(args))
}

fn open(name: &str, daemon: &Daemon) -> Port {
    wait_for(name, || Open::new(name).directory(daemon.dir()).open().ok())
}

fn frame(to: u32, from: u32) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&Mac::local(to).octets());
    frame[6..12].copy_from_slice(&Mac::local(from).octets());
    frame
}

fn send(port: &mut Port, frame: &[u8]) {
    wait_for("room", || {
        let sent = port.send(1).push(frame);
        port.flush().unwrap();
        sent.then_some(())
    });
}

/// Receives frames, and returns the first four octets of the destination and source of each.
fn receive(port: &mut Port) -> Vec<Vec<u8>> {
    let came = port.receive(64).map(|frame| frame.to_vec()).collect();
    port.flush().unwrap();
    came
}

#[test]
fn the_sink_counts_what_comes() {
    let daemon = Daemon::start();
    let mut sender = open("vale0:sender", &daemon);
    let mut sink = start(env!("CARGO_BIN_EXE_sink"), &["vale0:sink", "10"], &daemon);
    let status = wait_for("end of the sink", || {
        send(&mut sender, &frame(1, 2));
        sink.0.try_wait().unwrap()
    });
    assert!(status.success());
}

#[test]
fn the_bridge_joins_two_switches_and_keeps_local_traffic_local() {
    let daemon = Daemon::start();
    let [mut a, mut b] = ["vale0:a", "vale1:b"].map(|name| open(name, &daemon));
    let switches = ["vale0:left", "vale1:right"];
    let _bridge = start(env!("CARGO_BIN_EXE_bridge"), &switches, &daemon);
    let (to_b, to_a) = (frame(20, 10), frame(10, 20));
    wait_for("frame over the bridge", || {
        send(&mut a, &to_b);
        receive(&mut b).contains(&to_b.to_vec()).then_some(())
    });
    wait_for("answer", || {
        send(&mut b, &to_a);
        receive(&mut a).contains(&to_a.to_vec()).then_some(())
    });
    // Stations 10 and 30 are both on the left, so the bridge drops what 10 sends to 30. The frame
    // after it crosses.
    send(&mut a, &frame(20, 30));
    send(&mut a, &frame(30, 10));
    send(&mut a, &frame(20, 31));
    let mut came = Vec::new();
    wait_for("last frame", || {
        came.extend(receive(&mut b));
        came.contains(&frame(20, 31).to_vec()).then_some(())
    });
    assert!(came.contains(&frame(20, 30).to_vec()));
    assert!(!came.contains(&frame(30, 10).to_vec()), "it stays on its side");
}

#[test]
fn a_switch_of_ones_own_forwards_without_a_daemon() {
    let out = Command::new(env!("CARGO_BIN_EXE_inline")).output().unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    assert!(out.starts_with("1000000 frames"), "{out}");
}

#[test]
fn a_program_of_its_own_lists_the_ports_by_the_client() {
    let daemon = Daemon::with_switch("vale0");
    daemon.done(&["port", "add", "vale0:p1"]);
    daemon.done(&["port", "add", "vale0:drain", "--null"]);
    let ports = daemon.client(Path::new(env!("CARGO_BIN_EXE_ports"))).output().unwrap();
    let list = String::from_utf8(ports.stdout).unwrap();
    assert_eq!(list, "vale0:p1 is ring, vacant\nvale0:drain is null, attached\n");
    assert!(ports.status.success());
}
