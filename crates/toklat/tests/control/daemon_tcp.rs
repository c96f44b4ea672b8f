//! The control API over TCP: who is let in, and what a client with the token may have of the host.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use harness::tcp::{AUTHORIZED, OverTcp, free_port, token_file, until_hung_up};
use harness::{Daemon, exchange};
use serde_json::{Value, json};

/// Less than the time that a stranger has.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_token_that_others_may_read_is_none() {
    let dir = tempfile::tempdir().unwrap();
    for mode in [0o604, 0o602, 0o620] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
        command.arg("--dir").arg(dir.path().join("run")).args(["daemon", "--listen-tcp"]);
        command.args(["127.0.0.1:0", "--token-file"]).arg(token_file(dir.path(), mode));
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("chmod 600"), "{mode:o}: {said}");
    }
}

#[test]
fn over_tcp_only_the_token_opens() {
    let tcp = OverTcp::start(&[]);
    let ask = |headers: &str| exchange(tcp.connect(), "GET", "/v1/status", headers, "").0;
    assert_eq!(ask(""), 401);
    let (head, body) = harness::head_and_body(tcp.connect(), "GET", "/v1/status", "", "").unwrap();
    assert!(head.contains("www-authenticate: Bearer"), "{head}");
    assert!(head.contains("application/problem+json") && body.contains("forbidden"), "{body}");
    assert_eq!(ask("Authorization: Bearer 0123456789abcdef012\r\n"), 401);
    assert_eq!(ask("Authorization: Basic 0123456789abcdef0123\r\n"), 401);
    assert_eq!(ask("Authorization: Bearer 0123456789abcdef0123\r\n"), 200);
}

/// Objective: a TCP client that sends no request is disconnected, and delays no other client.
#[test]
fn over_tcp_a_head_that_does_not_end_is_not_waited_for() {
    let tcp = OverTcp::start(&[]);
    let mut slow = tcp.connect();
    slow.write_all(b"GET /v1/status HTTP/1.1\r\nHost: here\r\n").unwrap();
    assert_eq!(tcp.ask("GET", "/v1/status", &Value::Null).0, 200);
    // This read ends only when the daemon hangs up.
    let mut said = String::new();
    slow.read_to_string(&mut said).unwrap();
    assert!(!said.contains("200"), "{said}");
}

/// A connection whose head does not end.
fn half_a_head(mut stream: TcpStream) -> TcpStream {
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: here\r\n").unwrap();
    stream
}

/// Objective: strangers take no place that a client with the token needs, wherever they are.
///
/// Steps: 600 connections without the token stay open, half of them without a word; a client at the
/// same address is answered before any of them has used up its time; so is one at another address,
/// which connected first and took its time.
#[test]
fn regression_strangers_keep_no_client_with_the_token_out() {
    let tcp = OverTcp::start(&[]);
    let mut early = half_a_head(tcp.connect_from([127, 0, 0, 2]));
    let crowd: Vec<_> = (0..600)
        .map(|i| if i % 2 == 0 { tcp.connect() } else { half_a_head(tcp.connect()) })
        .collect();
    let client = tcp.connect();
    client.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(exchange(client, "GET", "/v1/status", AUTHORIZED, "").0, 200);
    early.set_read_timeout(Some(SOON)).unwrap();
    write!(early, "Connection: close\r\n{AUTHORIZED}\r\n").unwrap();
    let mut said = String::new();
    early.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    drop(crowd);
}

/// Objective: a client without the token that never reads ends, and holds nothing up.
#[test]
fn regression_strangers_that_never_read_are_not_written_to_for_ever() {
    let tcp = OverTcp::start(&[]);
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: here\r\n\r\n".repeat(64);
    let mut deaf: Vec<_> = (0..130).map(|_| tcp.connect()).collect();
    for stream in &mut deaf {
        stream.set_write_timeout(Some(SOON)).unwrap();
        let ended = loop {
            if let Err(error) = stream.write_all(&request) {
                break error.kind();
            }
        };
        assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&ended), "{ended}");
    }
    let client = tcp.connect();
    client.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(exchange(client, "GET", "/v1/status", AUTHORIZED, "").0, 200);
}

/// Objective: the answer 401 is the last of its connection, and no body is waited for.
#[test]
fn regression_401_closes_the_connection() {
    let tcp = OverTcp::start(&[]);
    let head = "GET /v1/status HTTP/1.1\r\nHost: here\r\n";
    let two = format!("{head}\r\n{head}{AUTHORIZED}\r\n");
    let body = "PUT /v1/topology HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n{";
    let chunks =
        "PUT /v1/topology HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{";
    for bytes in [two.as_str(), body, chunks] {
        let said = until_hung_up(&tcp.connect(), bytes.as_bytes(), SOON).expect(bytes);
        assert!(said.starts_with("HTTP/1.1 401"), "{bytes}: {said}");
        assert!(said.to_lowercase().contains("connection: close"), "{bytes}: {said}");
        assert_eq!(said.matches("HTTP/1.1").count(), 1, "{bytes}: {said}");
    }
    // A client that had the token once is asked for it again.
    let kept = format!("{head}{AUTHORIZED}\r\n{head}\r\n");
    let said = until_hung_up(&tcp.connect(), kept.as_bytes(), SOON).unwrap();
    let codes: Vec<_> =
        said.match_indices("HTTP/1.1 ").map(|(at, _)| &said[at + 9..at + 12]).collect();
    assert_eq!(codes, ["200", "401"], "{said}");
}

/// Objective: with the token, a client changes switches and nothing else of the host. A file that
/// is no capture stays as it is for all callers.
#[test]
fn regression_the_token_opens_nothing_of_the_host() {
    let tcp = OverTcp::start(&[]);
    let keys = tcp.daemon.dir().join("authorized_keys");
    std::fs::write(&keys, "ssh-ed25519 AAAA root\n").unwrap();
    tcp.daemon.apply("[switch.vale0.port.p1]");
    let file = json!({"pcap_write": {"path": keys}});
    let socket = tcp.daemon.dir().join("x.sock");
    for (kind, what) in [
        (&file, "captures"),
        (&json!({"pcap_read": {"path": "/etc/passwd"}}), "captures"),
        (&json!({"tap": {"ifname": "tk-none"}}), "tap"),
        (&json!({"interface": {"ifname": "lo"}}), "interface"),
        (&json!({"host": {"ifname": "lo"}}), "host"),
        (&json!({"card": {"address": "0000:00:00.0"}}), "card"),
        (&json!({"stream": {"address": "127.0.0.1:1"}}), "stream"),
        (&json!({"vhost_user": {"path": socket}}), "vhost_user"),
        (&json!({"vxlan": {"vni": 5, "local": "127.0.0.1", "peers": ["127.0.0.2"]}}), "vxlan"),
    ] {
        let port = json!({"name": "x", "kind": kind});
        let net = json!({"switch": {"vale0": {"port": {"x": {"kind": kind}}}}});
        let switch = json!({"name": "vale1", "port": {"x": {"kind": kind}}});
        for (method, path, body) in [
            ("POST", "/v1/switches/vale0/ports", &port),
            ("PATCH", "/v1/switches/vale0/ports/p1", &json!({"kind": kind})),
            ("POST", "/v1/switches", &switch),
            ("PUT", "/v1/topology", &net),
            ("PUT", "/v1/topology?dry_run=true", &net),
        ] {
            let (status, refused) = tcp.ask(method, path, body);
            assert_eq!(
                (status, &refused["error"]),
                (403, &json!("forbidden")),
                "{path}: {refused}"
            );
            let said = format!("{} {}", refused["reason"], refused["remedy"]);
            assert!(said.contains(what) && said.contains("control socket"), "{said}");
        }
    }
    let sampled = json!({"sflow": "127.0.0.1:6343"});
    assert_eq!(tcp.ask("PATCH", "/v1/switches/vale0", &sampled).0, 403);
    let evpn = json!({"evpn": {"as": 65000, "router_id": "10.0.0.1", "vtep": "10.0.0.1"}});
    assert_eq!(tcp.ask("PUT", "/v1/topology", &evpn).0, 403);
    assert_eq!(tcp.daemon.ports("vale0").len(), 1);
    // The operator's own mistake does not empty it either.
    let port = json!({"name": "x", "kind": file});
    let (status, refused) = tcp.daemon.ask("POST", "/v1/switches/vale0/ports", &port);
    assert_eq!(status, 400, "{refused}");
    assert!(refused["reason"].as_str().unwrap().contains("authorized_keys"), "{refused}");
    assert_eq!(std::fs::read_to_string(&keys).unwrap(), "ssh-ed25519 AAAA root\n");
}

/// Objective: what takes nothing of the host is open over TCP, and so are captures in one
/// directory; what the operator has made may stay in a topology that comes back.
#[test]
fn over_tcp_captures_go_into_one_directory() {
    let tcp = OverTcp::start(&[]);
    let own = tcp.daemon.dir().join("own.pcapng");
    tcp.daemon
        .apply(&format!("[switch.vale0.port.own]\nkind = {{ pcap_write = {{ path = {own:?} }} }}"));
    let captures = tcp.daemon.dir().join("captures");
    for (name, kind) in [
        ("capture", json!({"pcap_write": {"path": captures.join("a.pcapng")}})),
        ("ring", json!("ring")),
        ("guest", json!({"vhost_user": {}})),
    ] {
        let port = json!({"name": name, "kind": kind});
        let (status, answer) = tcp.ask("POST", "/v1/switches/vale0/ports", &port);
        assert_eq!(status, 201, "{answer}");
    }
    assert!(captures.join("a.pcapng").exists());
    let all = tcp.daemon.get("/v1/topology");
    assert_eq!(tcp.ask("PUT", "/v1/topology", &all).0, 200);
    let rule = json!({"protected": true});
    assert_eq!(tcp.ask("PATCH", "/v1/switches/vale0/ports/own", &rule).0, 200);
}

/// Objective: a client over TCP fills neither the disk by one capture nor by many: a capture fails
/// at 64 MiB, with the reason and a counter, and there are 16 of them at most.
#[test]
fn regression_captures_over_tcp_are_bounded_each_and_in_all() {
    const MOST: u64 = 64 << 20;
    let mut tcp = OverTcp::start(&[]);
    let captures = tcp.daemon.dir().join("captures");
    assert_eq!(tcp.ask("POST", "/v1/switches", &json!({"name": "vale0"})).0, 201);
    let add = |tcp: &OverTcp, n: u32| {
        let kind = json!({"pcap_write": {"path": captures.join(format!("{n}.pcapng"))}});
        let port = json!({"name": format!("c{n}"), "kind": kind, "lossless": n == 0});
        tcp.ask("POST", "/v1/switches/vale0/ports", &port)
    };
    for n in 0..16 {
        assert_eq!(add(&tcp, n).0, 201, "{n}");
        let gone = format!("/v1/switches/vale0/ports/c{n}");
        assert!(n == 0 || tcp.ask("DELETE", &gone, &Value::Null).0 == 204);
    }
    let (_, refused) = add(&tcp, 16);
    assert_eq!(refused["error"], "limit", "{refused}");
    assert!(harness::text(&refused["reason"]).contains("has 16 files"), "{refused}");
    assert_eq!(add(&tcp, 7).0, 201, "a name that is there");
    let sender = json!({"name": "sender", "flood_limit": null});
    assert_eq!(tcp.ask("POST", "/v1/switches/vale0/ports", &sender).0, 201);
    let mut port = tcp.daemon.open("vale0:sender").unwrap();
    let mut frame = vec![0; 1514];
    frame[..64].copy_from_slice(&harness::frames::frame(1, 2, 0));
    let file = captures.join("0.pcapng");
    tcp.daemon.wait_for("the capture to fail", |daemon| {
        for _ in 0..64 {
            while port.send(1).push(&frame) {}
            port.flush().unwrap();
        }
        let info = daemon.get("/v1/switches/vale0/ports/c0");
        info["failure"].as_str().is_some_and(|why| why.contains("File too large"))
    });
    let len = std::fs::metadata(&file).unwrap().len();
    assert!((MOST - 4096..=MOST).contains(&len), "{len}");
    assert!(tcp.daemon.counters("c0")["out_drops"]["io"].as_u64() > Some(0));
}

/// Objective: the API is served in clear on loopback alone unless the operator says otherwise, and
/// the log says that it is in clear.
#[test]
fn tcp_is_served_on_loopback_alone_unless_told() {
    let dir = tempfile::tempdir().unwrap();
    let token = token_file(dir.path(), 0o600);
    for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
        command.arg("--dir").arg(dir.path().join("run")).args(["daemon", "--listen-tcp", address]);
        let ended = command.arg("--token-file").arg(&token).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("--tcp-in-clear"), "{address}: {said}");
    }
    let loopback = OverTcp::start(&[]);
    assert!(loopback.daemon.log().contains("in clear"), "{}", loopback.daemon.log());
    let any = format!("0.0.0.0:{}", free_port());
    let token = token.to_str().unwrap();
    let options = ["--tcp-in-clear", "--listen-tcp", &any, "--token-file", token];
    let daemon = Daemon::start_with(&options);
    assert!(daemon.log().contains("in clear"), "{}", daemon.log());
}
