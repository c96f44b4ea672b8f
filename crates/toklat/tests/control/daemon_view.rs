//! Reading without power: the socket for reading, the token for reading, short replies.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::tcp::OverTcp;
use harness::users::{GROUP, as_member, as_user, may_be_others};
use harness::{Daemon, exchange, text};
use serde_json::{Value, json};

/// The group whose members see everything.
const VIEWERS: u32 = 65_533;
const ALICE: u32 = 12_001;
const BOB: u32 = 12_002;
const VIEWER: u32 = 12_003;

/// Requests that change something.
const CHANGES: [(&str, &str); 8] = [
    ("POST", "/v1/switches"),
    ("PATCH", "/v1/switches/vale0"),
    ("DELETE", "/v1/switches/vale0"),
    ("PUT", "/v1/topology"),
    ("POST", "/v1/stop"),
    ("POST", "/v1/upgrade"),
    ("PATCH", "/v1/quotas"),
    ("DELETE", "/v1/switches/vale0/ports/p1"),
];

/// A daemon for two groups: of those who open ports, and of those who see everything.
fn daemon() -> Daemon {
    let daemon = Daemon::start_for_all(&["--view-group", &VIEWERS.to_string()]);
    daemon.done(&["switch", "add", "vale0"]);
    daemon
}

fn view(dir: &Path, method: &str, path: &str) -> (u16, Value) {
    let stream = UnixStream::connect(dir.join("view.sock")).unwrap();
    exchange(stream, method, path, "", "")
}

/// The names in a list of ports.
fn names(ports: &Value) -> Vec<&str> {
    ports.as_array().unwrap().iter().map(|port| text(&port["name"])).collect()
}

#[test]
fn view_sock_reads_and_refuses_every_change() {
    let daemon = Daemon::with_switch("vale0");
    daemon.done(&["port", "add", "vale0:p1"]);
    let before = daemon.get("/v1/topology");
    for (method, path) in CHANGES {
        let (status, answer) = view(daemon.dir(), method, path);
        assert_eq!((status, text(&answer["error"])), (403, "forbidden"), "{method} {path}");
        assert!(text(&answer["reason"]).contains("control.sock"), "{answer}");
    }
    assert_eq!(daemon.get("/v1/topology"), before);
    for path in ["/v1/status", "/v1/topology", "/v1/switches/vale0/ports/p1", "/v1/events"] {
        assert_eq!(view(daemon.dir(), "GET", path).0, 200, "{path}");
    }
    let (status, metrics) = view(daemon.dir(), "GET", "/metrics");
    assert!(status == 200 && text(&metrics).contains("toklat_build_info"), "{metrics}");
    let mode = std::fs::metadata(daemon.dir().join("view.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "no group is named");
}

/// Objective: a body that a reader sends is neither read nor kept.
#[test]
fn a_readers_body_is_not_waited_for() {
    let daemon = Daemon::start();
    let mut stream = UnixStream::connect(daemon.dir().join("view.sock")).unwrap();
    let head = "GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
}

/// Objective: who may open ports sees its own and root's, who is in the group for viewing sees all,
/// and strangers see nothing.
#[test]
fn members_see_their_own_ports_and_roots_and_viewers_all() {
    if !may_be_others("members_see_their_own_ports_and_roots_and_viewers_all") {
        return;
    }
    let daemon = daemon();
    daemon.done(&["port", "add", "vale0:root"]);
    let _hers = daemon.open_as(ALICE, "vale0:a").unwrap();
    let _his = daemon.open_as(BOB, "vale0:b").unwrap();
    daemon.done(&["fdb", "add", "vale0:b", "02:00:00:00:00:0b"]);
    let dir = daemon.dir();
    let ports = "/v1/switches/vale0/ports";
    as_user(ALICE, || {
        assert_eq!(names(&view(dir, "GET", ports).1), ["root", "a"]);
        let stats = view(dir, "GET", "/v1/stats").1;
        assert_eq!(names(&stats["switches"][0]["ports"]), ["root", "a"]);
        assert_eq!(view(dir, "GET", &format!("{ports}/b")).0, 404);
        assert_eq!(view(dir, "GET", &format!("{ports}/a")).0, 200);
        assert_eq!(view(dir, "GET", "/v1/switches/vale0/fdb").1, json!([]));
        for path in ["/metrics", "/v1/topology", "/v1/switches/vale0/drops", "/v1/quotas"] {
            assert_eq!(view(dir, "GET", path).0, 403, "{path}");
        }
        let events = view(dir, "GET", "/v1/events").1.to_string();
        assert!(events.contains(r#""port":"a""#) && !events.contains(r#""port":"b""#), "{events}");
        assert!(!events.contains("audit"), "{events}");
    });
    as_member(VIEWER, VIEWERS, || {
        assert_eq!(names(&view(dir, "GET", ports).1), ["root", "a", "b"]);
        assert_eq!(view(dir, "GET", "/v1/switches/vale0/fdb").1[0]["port"], "b");
        assert_eq!(view(dir, "GET", "/metrics").0, 200);
        assert_eq!(view(dir, "DELETE", "/v1/switches/vale0").0, 403);
        assert!(view(dir, "GET", "/v1/events").1.to_string().contains("audit"));
        let denied = UnixStream::connect(dir.join("control.sock")).unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    });
    as_member(VIEWER, GROUP - 7, || {
        let denied = UnixStream::connect(dir.join("view.sock")).unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    });
}

/// Objective: what exceeds a user's limit is an event of that user, which other users do not see.
#[test]
fn what_exceeds_a_limit_is_an_event_of_its_user() {
    if !may_be_others("what_exceeds_a_limit_is_an_event_of_its_user") {
        return;
    }
    let daemon = Daemon::start_for_all(&["--quota", "ports=1"]);
    let _port = daemon.open_as(ALICE, "vale0:a").unwrap();
    daemon.open_as(ALICE, "vale0:b").unwrap_err();
    let quota = |events: Value| {
        let events = events["events"].as_array().unwrap().clone();
        events.into_iter().find(|event| event["kind"] == "quota")
    };
    let event = quota(daemon.get("/v1/events")).unwrap();
    assert!(event["user"] == ALICE && text(&event["text"]).contains("ports"), "{event}");
    let dir = daemon.dir();
    let seen = |uid| as_user(uid, || quota(view(dir, "GET", "/v1/events").1));
    assert_eq!((seen(ALICE), seen(BOB)), (Some(event), None));
}

/// Objective: commands that read work for those who may only read; those that change say why not.
#[test]
fn commands_read_where_they_may_not_control() {
    if !may_be_others("commands_read_where_they_may_not_control") {
        return;
    }
    let daemon = daemon();
    let tool = |args: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &ALICE.to_string(), "--regid", &GROUP.to_string()]);
        command.arg("--clear-groups").arg(harness::program()).args(args.split(' '));
        command.env("TOKLAT_DIR", daemon.dir()).output().unwrap()
    };
    let shown = tool("switch show --json");
    if String::from_utf8_lossy(&shown.stderr).contains("ermission denied") {
        return harness::skip(
            "commands_read_where_they_may_not_control",
            "the program is in a directory of root's",
        );
    }
    assert!(String::from_utf8_lossy(&shown.stdout).contains("vale0"), "{shown:?}");
    let refused = tool("switch rm vale0");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("control.sock"), "{said}");
}

/// Objective: the token for reading reads everything but passwords, and changes nothing.
#[test]
fn the_view_token_reads_and_cannot_write() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("view");
    let token = "fedcba9876543210view";
    std::fs::write(&file, token).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let tcp = OverTcp::start(&["--view-token-file", file.to_str().unwrap()]);
    tcp.daemon.done(&["switch", "add", "vale0"]);
    for (method, path) in CHANGES {
        let (status, answer) = tcp.ask_with(token, method, path);
        assert_eq!((status, text(&answer["error"])), (403, "forbidden"), "{method} {path}");
    }
    for path in ["/v1/switches/vale0", "/v1/events", "/metrics", "/v1/topology"] {
        assert_eq!(tcp.ask_with(token, "GET", path).0, 200, "{path}");
    }
    assert_eq!(tcp.ask_with("fedcba9876543210vie", "GET", "/v1/status").0, 401);
    assert_eq!(tcp.ask("DELETE", "/v1/switches/vale0", &Value::Null).0, 204);
}

#[test]
fn tokens_differ_and_one_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let file = harness::tcp::token_file(dir.path(), 0o600);
    let file = file.to_str().unwrap();
    for (options, said) in [
        (&["--token-file", file, "--view-token-file", file][..], "the same"),
        (&[], "--view-token-file"),
    ] {
        let mut command = Command::new(harness::program());
        command.arg("--dir").arg(dir.path().join("run")).args(["daemon", "--listen-tcp"]);
        let ended = command.arg("127.0.0.1:0").args(options).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && text.contains(said), "{text}");
    }
}

/// A reply's head, and its body as it was sent.
fn raw(daemon: &Daemon, path: &str, headers: &str) -> (String, Vec<u8>) {
    let mut stream = UnixStream::connect(daemon.dir().join("view.sock")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let body = reply.split_off(end);
    (String::from_utf8(reply).unwrap().to_lowercase(), body)
}

#[test]
fn what_the_client_has_is_not_sent_again_and_the_rest_may_be_gzip() {
    let daemon = Daemon::with_switch("vale0");
    let (head, whole) = raw(&daemon, "/openapi.json", "");
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_uppercase();
    let tag = tag.to_lowercase().replace("w/", "W/");
    for known in [tag.as_str(), "*", &format!("\"other\", {tag}")] {
        let (head, body) = raw(&daemon, "/openapi.json", &format!("If-None-Match: {known}\r\n"));
        assert!(head.starts_with("http/1.1 304") && body.is_empty(), "{known}: {head}");
    }
    let (head, body) = raw(&daemon, "/openapi.json", "If-None-Match: W/\"other\"\r\n");
    assert!(head.starts_with("http/1.1 200") && body == whole, "{head}");
    // A topology's own tag serves for both conditions.
    let (head, _) = raw(&daemon, "/v1/topology", "");
    let own = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let (head, _) = raw(&daemon, "/v1/topology", &format!("If-None-Match: {own}\r\n"));
    assert!(head.starts_with("http/1.1 304"), "{head}");

    let (head, packed) = raw(&daemon, "/openapi.json", "Accept-Encoding: br, gzip\r\n");
    assert!(head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"));
    assert!(packed.len() * 4 < whole.len(), "{} of {} bytes", packed.len(), whole.len());
    let mut gunzip = Command::new("gzip");
    gunzip.args(["-d", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = gunzip.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || input.write_all(&packed).unwrap());
    let unpacked = child.wait_with_output().unwrap();
    writing.join().unwrap();
    assert!(unpacked.stdout == whole, "it unpacks to what is sent without gzip");
    let (head, _) = raw(&daemon, "/openapi.json", "Accept-Encoding: gzip;q=0\r\n");
    assert!(!head.contains("content-encoding"), "{head}");
}
