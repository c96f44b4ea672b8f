//! Linux guests and what else is on their switch: the host, and NICs that are not virtio.

use std::process::Command;

use serde_json::json;
use toklat::vm::{Bridge, guest};

use self::daemon::guests::{Guest, can_run};
use self::daemon::{Daemon, skip};

mod daemon;

fn switch() -> Daemon {
    let daemon = Daemon::start();
    assert_eq!(daemon.ask("POST", "/v1/switches", &json!({ "name": "vale0" })).0, 201);
    daemon
}

/// QEMU's own models reach a virtio guest, whose segments are cut for them.
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
        // What virtio sends in whole segments is cut for them.
        assert!(port["out_segmented"].as_u64() > Some(0), "{port}");
        client.succeeds();
    }
}

/// The host and a guest share a segment by a tap: TCP both ways, whole segments, no checksum computed.
#[test]
fn the_host_and_a_guest_share_a_segment() {
    let test = "the_host_and_a_guest_share_a_segment";
    if !can_run(test) {
        return;
    }
    // Of this only its network namespace is wanted.
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
