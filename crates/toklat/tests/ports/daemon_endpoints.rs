//! Ports that the daemon opens itself: taps in a namespace that the test makes, and capture files.

use harness::Daemon;
use harness::frames::{frame, receive, send};
use harness::namespace::Namespace;
use serde_json::json;

#[test]
fn a_tap_may_have_several_queues_and_keeps_them() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return harness::skip("a_tap_may_have_several_queues_and_keeps_them", why),
    };
    let mut daemon = Daemon::start();
    daemon.apply(&format!(
        "[switch.vale0.port.host]\n\
         kind = {{ tap = {{ ifname = 'tktap1', queues = 3, netns = '{}' }} }}",
        namespace.id()
    ));
    let link = || namespace.run(&["ip", "-d", "link", "show", "tktap1"]);
    assert!(link().contains("vnet_hdr on") && link().contains("numqueues 3"), "{}", link());
    harness::kill_process(daemon.data_process("vale0"));
    daemon.wait_for("a new data process", |d| d.get("/v1/switches/vale0")["restarts"] == 1);
    daemon.kill();
    daemon.start_again();
    assert_eq!(daemon.ports("vale0"), [("host".to_owned(), "attached".to_owned())]);
    assert!(link().contains("numqueues 3"), "{}", link());
    let body = json!({ "name": "p", "kind": { "tap": { "ifname": "x", "queues": 9 } } });
    assert_eq!(daemon.ask("POST", "/v1/switches/vale0/ports", &body).0, 400);
}

#[test]
fn a_tap_is_made_in_its_namespace_and_frames_cross() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => {
            return harness::skip("a_tap_is_made_in_its_namespace_and_frames_cross", why);
        }
    };
    let mut daemon = Daemon::start();
    daemon.apply(&format!(
        "[switch.vale0.port.host]\nmtu = 2000\nkind = {{ tap = {{ ifname = 'tktap0', netns = '{}' }} }}",
        namespace.id()
    ));
    let link = namespace.run(&["cat", "/sys/class/net/tktap0/mtu", "/proc/net/dev"]);
    assert!(link.contains("tktap0"), "{link}");
    let link = namespace.run(&["ip", "link", "show", "tktap0"]);
    assert!(link.contains("mtu 2000") && link.contains("UP"), "{link}");
    let path = "/v1/switches/vale0/ports/host";
    assert_eq!(daemon.ask("PATCH", path, &json!({"mtu": 3000})).0, 200);
    assert!(namespace.run(&["ip", "link", "show", "tktap0"]).contains("mtu 3000"));
    let mut port = daemon.open("vale0:p").unwrap();
    daemon.wait_for("frames to reach the host", |_| {
        send(&mut port, &frame(1, 2, 7));
        let dev = namespace.run(&["ip", "-s", "link", "show", "tktap0"]);
        // Reads the line after the heading for received bytes and packets.
        let mut lines = dev.lines().skip_while(|line| !line.contains("RX:")).skip(1);
        let packets = lines.next().and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        packets.unwrap_or(0u64) > 0
    });
    // The tap outlives its data process, and goes with its port.
    harness::kill_process(daemon.data_process("vale0"));
    daemon.wait_for("a new data process", |d| d.get("/v1/switches/vale0")["restarts"] == 1);
    assert!(namespace.run(&["ip", "link", "show", "tktap0"]).contains("UP"));
    daemon.ask("DELETE", path, &json!(null));
    daemon.wait_for("the interface to go", |_| {
        namespace.run(&["ip", "link"]).find("tktap0").is_none()
    });
}

#[test]
fn a_tap_that_cannot_be_made_says_why() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0]");
    let kind = json!({"tap": {"ifname": "tktap0", "netns": "no-such-namespace"}});
    let ports = "/v1/switches/vale0/ports";
    let (status, answer) = daemon.ask("POST", ports, &json!({"name": "t", "kind": kind}));
    assert_eq!((status, &answer["error"]), (404, &json!("not_found")), "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains("no-such-namespace"), "{answer}");
    assert_eq!(daemon.ports("vale0"), []);
}

#[test]
fn frames_are_written_to_a_file_and_read_from_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("frames.pcapng");
    let file = path.to_str().unwrap();
    let mut daemon = Daemon::start();
    daemon.apply(&format!("[switch.a.port.w]\nkind = {{ pcap_write = {{ path = '{file}' }} }}"));
    let mut port = daemon.open("a:p").unwrap();
    for number in 1..=5 {
        assert!(send(&mut port, &frame(1, 2, number)));
    }
    daemon.wait_for("frames to be written", |d| {
        let stats = d.get("/v1/stats?switch=a");
        let ports = stats["switches"][0]["ports"].as_array().unwrap();
        ports.iter().any(|p| p["name"] == "w" && p["out_frames"] == 5)
    });
    assert_eq!(daemon.ask("DELETE", "/v1/switches/a/ports/w", &json!(null)).0, 204);
    daemon.apply("[switch.b]");
    let mut port = daemon.open("b:p").unwrap();
    let kind = json!({"pcap_read": {"path": file, "speed_percent": 0}});
    let (status, answer) =
        daemon.ask("POST", "/v1/switches/b/ports", &json!({"name": "r", "kind": kind}));
    assert_eq!(status, 201, "{answer}");
    let mut got = Vec::new();
    daemon.wait_for("frames to be read", |_| {
        got.extend(receive(&mut port));
        got.len() >= 5
    });
    assert_eq!(got, [1, 2, 3, 4, 5]);
}

/// A killed tcpdump leaves a file that ends in a packet.
#[test]
fn a_cut_capture_is_sent_and_what_is_left_out_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.pcap");
    let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1];
    let mut capture: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    for number in 1..=4 {
        capture.extend([0, 0, 64, 64_u32].iter().flat_map(|word| word.to_le_bytes()));
        capture.extend(frame(1, 2, number));
    }
    capture.truncate(capture.len() - 20);
    std::fs::write(&path, &capture).unwrap();
    let file = path.to_str().unwrap();
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0]");
    let mut port = daemon.open("vale0:p").unwrap();
    let left_out = "the last 60 bytes (a cut packet at byte 264)";
    let (code, _, said) = daemon.run(&["gen", "vale0:g", "--pcap", file, "--quiet"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("left out of {file}: {left_out}")), "{said}");
    let mut got = Vec::new();
    daemon.wait_for("frames of gen", |_| {
        got.extend(receive(&mut port));
        got.len() >= 3
    });
    daemon.done(&["port", "add", "vale0:r", "--pcap-read", file]);
    daemon.wait_for("frames of the port", |_| {
        got.extend(receive(&mut port));
        got.len() >= 6
    });
    assert_eq!(got, [1, 2, 3, 1, 2, 3]);
    let line = format!("r: 3 frames of a capture; left out: {left_out}");
    daemon.wait_for("the log", |daemon| daemon.log().contains(&line));
}

#[test]
fn a_port_that_fails_at_start_keeps_nothing_else_from_running_and_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.pcap");
    // A capture of one frame: magic, version 2.4, Ethernet; then time and lengths of the frame.
    let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1, 0, 0, 64, 64];
    let header = header.iter().flat_map(|word| word.to_le_bytes()).chain(frame(1, 2, 1));
    let capture: Vec<u8> = header.collect();
    std::fs::write(&path, &capture).unwrap();
    let net = format!(
        "[switch.vale0.port.p]\n[switch.vale0.port.f]\nkind = {{ pcap_read = {{ path = '{}' }} }}",
        path.display()
    );
    let mut daemon = Daemon::start();
    daemon.apply(&net);
    daemon.stop(&json!(null));
    std::fs::remove_file(&path).unwrap();
    daemon.start_again();
    let f = daemon.get("/v1/switches/vale0/ports/f");
    assert_eq!(f["state"], "failed", "{f}");
    assert!(f["failure"].as_str().unwrap().contains("in.pcap"), "{f}");
    daemon.open("vale0:p").unwrap();
    std::fs::write(&path, &capture).unwrap();
    daemon.wait_for("the port", |d| d.get("/v1/switches/vale0/ports/f")["state"] == "attached");
    assert_eq!(daemon.apply(&net), [""; 0]);
}
