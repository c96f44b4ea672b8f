//! Linux guests and other members of their switch: the host, and NICs that are not virtio.

use std::process::Command;

use lab::Bridge;
use serde_json::json;
use vm::guest;

use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::guests::{Guest, can_emulate, can_run};
use harness::{Daemon, kill_process, skip, small};

fn switch() -> Daemon {
    let daemon = Daemon::start();
    assert_eq!(daemon.ask("POST", "/v1/switches", &json!({ "name": "vale0" })).0, 201);
    daemon
}

/// QEMU's own models reach a virtio guest, whose long segments the switch cuts for them.
#[test]
fn models_without_offloads_talk_to_virtio() {
    if !can_run("models_without_offloads_talk_to_virtio") {
        return;
    }
    let daemon = switch();
    let mut server = Guest::boot(&daemon, "a", 1, &[], guest::SERVE);
    server.says("toklat-guest: ready");
    let ask = format!(
        "{}; readlink /sys/class/net/eth0/device/driver; iperf3 -c 10.0.0.1 -t 1 --bidir && echo toklat-guest: over; sleep 3",
        guest::reach("10.0.0.1")
    );
    for (nic, driver) in [("e1000", "/e1000"), ("pcnet", "/pcnet32")] {
        let mut client = Guest::boot(&daemon, nic, 2, &["--nic", nic], &ask);
        client.says(driver);
        client.says("toklat-guest: over");
        let stats = daemon.get("/v1/stats");
        let mut ports = stats["switches"][0]["ports"].as_array().unwrap().iter();
        let port = ports.find(|port| port["name"] == nic).unwrap();
        // The switch cuts the long segments that virtio sends.
        assert!(port["out_segmented"].as_u64() > Some(0), "{port}");
        client.succeeds();
    }
}

/// The host and a guest share a segment by a tap: TCP both ways, whole segments, no checksum
/// computed.
#[test]
fn the_host_and_a_guest_share_a_segment() {
    let test = "the_host_and_a_guest_share_a_segment";
    if !can_run(test) {
        return;
    }
    // Only the bridge's network namespace is needed.
    let bridge = match Bridge::new() {
        Ok(bridge) => bridge,
        Err(why) => return skip(test, &format!("{why:#}")),
    };
    let prefix = bridge.prefix();
    let at_host = |args: &[&str]| {
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).args(args);
        command
    };
    if !at_host(&["iperf3", "--version"]).output().is_ok_and(|output| output.status.success()) {
        return skip(test, "iperf3 is missing");
    }
    let daemon = switch();
    let namespace = prefix.last().unwrap().to_str().unwrap();
    daemon.apply(&format!(
        "[switch.vale0.port.host]\nkind = {{ tap = {{ ifname = 'tkhost', netns = '{namespace}' }} }}"
    ));
    for args in [
        &["ip", "addr", "add", "10.0.0.9/24", "dev", "tkhost"][..],
        &["ip", "link", "set", "tkhost", "up"],
    ] {
        assert!(at_host(args).status().unwrap().success(), "{args:?}");
    }
    let mut server =
        at_host(&["iperf3", "-s"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let ask = "until ping -c 1 -W 1 10.0.0.9 >/dev/null; do sleep 0.2; done; \
               iperf3 -c 10.0.0.9 -t 1 --bidir && echo toklat-guest: over; sleep 3";
    let mut guest = Guest::boot(&daemon, "vm", 2, &[], ask);
    guest.says("toklat-guest: over");
    let stats = daemon.get("/v1/stats");
    for port in stats["switches"][0]["ports"].as_array().unwrap() {
        assert_eq!(
            (&port["out_segmented"], &port["out_checksums"]),
            (&json!(0), &json!(0)),
            "{port}"
        );
        let size = port["in_bytes"].as_u64().unwrap() / port["in_frames"].as_u64().unwrap();
        assert!(size > 1500, "{size} bytes a frame: {port}");
    }
    guest.succeeds();
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Objective: a QEMU that is killed under traffic takes its own port along, and no other's frames.
///
/// Steps: two programs talk, one of them to a guest as well, which echoes; QEMU is killed; each
/// frame of the two arrives, in order, before, meanwhile and afterwards; the port that `vm run`
/// made is gone. With virtio and with an emulated NIC.
#[test]
fn a_killed_qemu_costs_no_other_guest_a_frame() {
    if !can_emulate("a_killed_qemu_costs_no_other_guest_a_frame") {
        return;
    }
    let mut daemon = switch();
    let [mut a, mut b] = ["vale0:a", "vale0:b"]
        .map(|name| small(name).slots(1024).directory(daemon.dir()).open().unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    for (name, options) in [("virtio", &[][..]), ("emulated", &["--nic", "82574l"])] {
        // The guest asks for a missing station again and again, which makes broadcasts.
        let ask = "while :; do arping -c 1 -w 1 -I eth0 10.0.0.77 >/dev/null; echo toklat-guest: asked; done";
        let mut guest = Guest::boot(&daemon, name, 2, options, ask);
        guest.says("toklat-guest: asked");
        let path = format!("/v1/switches/vale0/ports/{name}");
        let sent_to = |daemon: &Daemon| daemon.counters(name)["out_frames"].as_u64().unwrap();
        let before = sent_to(&daemon);
        let killed_at = number + 1000;
        let mut gone_at = None;
        while gone_at.is_none_or(|at| number < at + 1000) {
            number += 1;
            // The neighbour sends one frame to all stations, the guest included, and then one to
            // the other neighbour alone.
            let mut broadcast = frame(1, 0, number);
            broadcast[..6].fill(0xff);
            assert!(send(&mut a, &broadcast));
            assert!(send(&mut a, &frame(1, 2, number)));
            let mut copies = Vec::new();
            daemon.wait_for("a neighbour's frames", |_| {
                copies.extend(receive(&mut b));
                copies.len() == 2
            });
            assert_eq!(copies, [number; 2]);
            receive(&mut a);
            if number == killed_at {
                assert!(sent_to(&daemon) > before, "the guest is under traffic");
                kill_process(guest.qemu());
            }
            if number > killed_at && gone_at.is_none() && number % 64 == 0 {
                gone_at = (daemon.ask("GET", &path, &json!(null)).0 == 404).then_some(number);
            }
        }
        drop(guest);
    }
}
