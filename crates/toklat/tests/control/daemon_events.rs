//! What has happened: events, the audit of commands, the log's formats, and `toklat logs`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use harness::{Daemon, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// How long the daemon may take to end while clients wait for events.
const SOON: Duration = Duration::from_secs(5);

/// All events of a kind.
fn of_kind(daemon: &Daemon, kind: &str) -> Vec<Value> {
    let found = daemon.get("/v1/events");
    let events = found["events"].as_array().unwrap().iter();
    events.filter(|event| event["kind"] == kind).cloned().collect()
}

/// The texts of the commands that were given.
fn audit(daemon: &Daemon) -> Vec<String> {
    of_kind(daemon, "audit").iter().map(|event| text(&event["text"]).to_owned()).collect()
}

/// Objective: each command that changes something is one line, in the log and in the events: who
/// gave it, what it was, how it ended.
#[test]
fn every_command_that_changes_something_is_one_line_with_its_user() {
    let mut daemon = Daemon::with_switch("vale0");
    let child = daemon.start_tool(&["port", "add", "vale0:p1", "--lossless"]);
    let pid = child.id();
    assert!(child.wait_with_output().unwrap().status.success());
    daemon.done(&["port", "set", "vale0:p1", "--mtu", "9000"]);
    daemon.done(&["fdb", "add", "vale0:p1", "02:00:00:00:00:01"]);
    assert_eq!(daemon.run(&["port", "rm", "vale0:nowhere"]).0, Some(1));
    daemon.apply("[switch.vale0.port.p2]");
    daemon.done(&["port", "rm", "vale0:p1"]);
    daemon.done(&["port", "show"]);
    let said = audit(&daemon);
    let expected = [
        "switch add vale0",
        "port add vale0:p1",
        "port set vale0:p1 mtu=9000",
        "fdb add vale0 mac=02:00:00:00:00:01 port=p1",
        "port rm vale0:nowhere: refused: ",
        "added vale0:p2",
        "port rm vale0:p1: done",
    ];
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "{said:?} has no {expected:?}");
    }
    assert!(said[1].contains(&format!("pid={pid}")), "{}", said[1]);
    let uid = rustix::process::geteuid().as_raw();
    assert!(of_kind(&daemon, "audit").iter().all(|event| event["user"] == uid));
    daemon.wait_for("the line in the log", |daemon| daemon.log().contains("port rm vale0:p1"));
    let log = daemon.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains(r#"event="audit""#)).collect();
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    let line = lines.iter().find(|line| line.contains("port add vale0:p1")).unwrap();
    assert!(line.contains(&format!("uid={uid}")) && line.contains(&format!("pid={pid}")), "{line}");
}

/// Objective: what strangers choose cannot forge a line or move the cursor of who reads it.
#[test]
fn names_in_lines_of_the_audit_are_escaped() {
    let mut daemon = Daemon::with_switch("vale0");
    let name = "a\u{1b}[2J\n2026 INFO command uid=0 did=switch rm vale0: done\u{202e}";
    let refused = daemon.ask("POST", "/v1/switches/vale0/ports", &json!({ "name": name }));
    assert_eq!(refused.0, 400);
    let line = audit(&daemon).pop().unwrap();
    assert!(line.contains(r"a\u{1b}[2J\n2026 INFO"), "{line}");
    assert!(line.contains(r"done\u{202e}") && !line.contains(|c: char| c.is_control()), "{line}");
    daemon.wait_for("the line in the log", |daemon| daemon.log().contains("2026 INFO command"));
    let log = daemon.log();
    assert!(!log.lines().any(|line| line.starts_with("2026 INFO command")), "{log}");
    assert!(!log.contains('\u{202e}') && !log.contains("\u{1b}[2J"), "{log}");
    let printed = daemon.done(&["events"]);
    assert!(printed.contains("2026 INFO command") && !printed.contains('\u{1b}'), "{printed}");
}

/// Objective: clients, restarts, faults and quota refusals are events, and numbers grow over a
/// restart of the daemon.
#[test]
fn clients_restarts_and_quotas_are_events_by_number() {
    let mut daemon = Daemon::with_switch("vale0");
    let port = daemon.open("vale0:c").unwrap();
    drop(port);
    daemon.wait_for("the client to be gone", |daemon| of_kind(daemon, "client").len() == 2);
    let clients = of_kind(&daemon, "client");
    assert_eq!((&clients[0]["switch"], &clients[0]["port"]), (&json!("vale0"), &json!("c")));
    assert!(text(&clients[0]["text"]).starts_with("port opened"), "{clients:?}");
    assert!(text(&clients[1]["text"]).starts_with("client closed its port"), "{clients:?}");
    let pid = Pid::from_raw(daemon.data_process("vale0")).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let forwards = |event: &Value| text(&event["text"]).starts_with("the switch forwards again");
    daemon.wait_for("the restart", |daemon| of_kind(daemon, "restart").iter().any(forwards));
    let next = daemon.get("/v1/events")["next"].as_u64().unwrap();
    let since = daemon.get(&format!("/v1/events?since={next}"));
    assert_eq!((&since["events"], &since["missed"]), (&json!([]), &json!(false)));
    assert_eq!(daemon.ask("GET", "/v1/events?wait=61", &Value::Null).0, 400);
    daemon.terminate();
    daemon.start_again();
    let later = daemon.get(&format!("/v1/events?since={next}"));
    assert!(text(&later["events"][0]["text"]).starts_with("ready"), "{later}");
    assert_eq!(later["missed"], false, "the numbers of the new daemon are higher");
}

/// Objective: an open wait for events does not delay the daemon's end; `--follow` shows what
/// happens as it happens.
///
/// Steps: a port is added while `toklat events --follow` runs; a client waits at each socket, too;
/// the daemon is told to stop.
#[test]
fn waits_for_events_end_with_the_daemon() {
    let mut daemon = Daemon::with_switch("vale0");
    let mut following = daemon.tool(&["events", "--follow", "--json"]);
    let mut child = following.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    daemon.done(&["port", "add", "vale0:new"]);
    let is_new = |event: &Value| event["kind"] == "port" && event["port"] == "new";
    let found = lines.any(|line| is_new(&serde_json::from_str(&line.unwrap()).unwrap()));
    assert!(found, "the new port is not followed");
    let next = daemon.get("/v1/events")["next"].as_u64().unwrap();
    let waits = ["control.sock", "view.sock"].map(|socket| {
        let mut stream = UnixStream::connect(daemon.dir().join(socket)).unwrap();
        let path = format!("/v1/events?since={next}&wait=60");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        stream
    });
    let started = Instant::now();
    daemon.stop(&Value::Null);
    let time = started.elapsed();
    assert!(time < SOON, "the daemon took {time:?} to end");
    for mut stream in waits {
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    }
    assert!(!child.wait().unwrap().success(), "its daemon is gone");
}

/// Objective: readers that do not read cost their place and nothing more, and the daemon goes on.
///
/// Steps: readers ask for all events again and again and take no reply, while thousands of events
/// happen; the daemon's memory stays, and it answers.
#[test]
fn a_reader_that_does_not_read_costs_no_memory() {
    let daemon = Daemon::with_switch("vale0");
    let ask = b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n".repeat(20);
    let _deaf: Vec<_> = (0..32)
        .map(|_| {
            let mut stream = UnixStream::connect(daemon.dir().join("view.sock")).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
            let _ = stream.write_all(&ask);
            stream
        })
        .collect();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10
    };
    for i in 0..600 {
        assert_eq!(daemon.ask("DELETE", &format!("/v1/switches/none{i}"), &Value::Null).0, 404);
    }
    let before = memory();
    for i in 0..600 {
        assert_eq!(daemon.ask("DELETE", &format!("/v1/switches/none{i}"), &Value::Null).0, 404);
    }
    let grown = memory().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes more");
    assert_eq!(of_kind(&daemon, "audit").len(), 512, "the last ones are kept");
}

/// Objective: with `--log json` each line is an object, of the supervisor and of data processes.
#[test]
fn the_log_as_json_is_an_object_a_line() {
    let mut daemon = Daemon::start_with(&["--log", "json"]);
    daemon.apply("switch.vale0.port.vm1.kind.vhost_user = {}");
    let socket = daemon.dir().join("vale0-vm1.sock");
    let front_end = harness::front_end::FrontEnd::start(&socket, nic::virtio::Features::VERSION_1);
    let three = [0u32, 3].map(u32::to_ne_bytes).concat();
    let wrong = dataplane::attach::virtio::message::code::SET_VRING_NUM;
    assert_eq!(harness::front_end::ask(&front_end.socket, wrong, &three, &[]), 1);
    daemon.wait_for("a data process's line", |daemon| daemon.log().contains("vale0:vm1: "));
    let log = daemon.log();
    // The last line may be half written.
    let lines: Vec<Value> = log[..=log.rfind('\n').unwrap()]
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let audit = lines.iter().find(|line| line["event"] == "audit").unwrap();
    assert!(text(&audit["did"]).starts_with("apply") && audit["pid"].is_u64(), "{audit}");
    assert!(lines.iter().all(|line| line["at_ms"].is_u64() && line["message"].is_string()));
}

#[test]
fn logs_prints_the_daemons_log_or_says_where_it_is() {
    let mut daemon = Daemon::with_switch("vale0");
    daemon.wait_for("a line", |daemon| daemon.log().contains("switch add vale0"));
    let printed = daemon.done(&["logs", "-n", "1000"]);
    assert!(printed.contains("ready") && printed.contains("switch add vale0"), "{printed}");
    assert_eq!(daemon.done(&["logs", "-n", "1"]).lines().count(), 1);
    daemon.stop(&Value::Null);
    let (code, _, said) = daemon.run(&["logs"]);
    assert!(code == Some(3) && said.contains("not running"), "{said}");
    let (reader, writer) = std::io::pipe().unwrap();
    daemon.start_again_with(|command| {
        command.stderr(writer);
    });
    let (code, _, said) = daemon.run(&["logs"]);
    assert_eq!(code, Some(1), "{said}");
    // In a unit, as tests may run, the log is the unit's.
    assert!(said.contains("pipe:[") || said.contains("journalctl"), "{said}");
    drop(reader);
}
