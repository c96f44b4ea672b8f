//! A running guest moves from one QEMU to another, on one machine and one switch.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use harness::Daemon;
use harness::guests::{Guest, PATIENCE, can_run, newer_qemu};

/// QEMU's monitor for programs.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut monitor = Self(BufReader::new(stream));
        monitor.ask("qmp_capabilities", &json!({}));
        monitor
    }

    /// Runs a command, and returns what it returns; `None` if QEMU is gone.
    fn ask(&mut self, command: &str, arguments: &Value) -> Option<Value> {
        let ask = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        // Written in one piece: QEMU executes at the last brace, and may be gone before a newline
        // after it arrives.
        self.0.get_mut().write_all(ask.as_bytes()).ok()?;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).ok()?;
            let said: Value = serde_json::from_str(&line).ok()?;
            assert!(said.get("error").is_none(), "{command}: {said}");
            // QEMU's greeting and its events come in between.
            if let Some(answer) = said.get("return") {
                return Some(answer.clone());
            }
        }
    }
}

/// The guest pings all the while; its peer hears from it again after the move, at the other port.
#[test]
fn a_guest_pings_on_while_it_moves() {
    if !can_run("a_guest_pings_on_while_it_moves") {
        return;
    }
    for queues in [&[][..], &["--packed"]] {
        moves(queues);
    }
}

fn moves(queues: &[&str]) {
    let mut daemon = Daemon::start();
    assert_eq!(daemon.ask("POST", "/v1/switches", &json!({ "name": "vale0" })).0, 201);
    let path = |name: &str| daemon.dir().join(name).to_str().unwrap().to_owned();
    let (monitor, stream) = (path("monitor"), format!("unix:{}", path("stream")));
    let qmp = format!("unix:{monitor},server=on,wait=off");
    let _peer = Guest::boot(&daemon, "peer", 1, &[], "while :; do sleep 1; done");
    let pings = "i=0; while :; do ping -c 1 -W 1 10.0.0.1 >/dev/null && i=$((i+1)) && echo toklat-guest: answer $i. ; \
                 sleep 0.1; done";
    // Both hosts see the same machine, or the state would not fit.
    let mut same = [&["--mac", "52:54:00:00:00:77"], queues].concat();
    let newer = newer_qemu();
    if let Some(newer) = &newer {
        same.extend(["--qemu", newer]);
    }
    let mut source =
        Guest::boot(&daemon, "old", 2, &[&same[..], &["--", "-qmp", &qmp]].concat(), pings);
    let mut target =
        Guest::boot(&daemon, "new", 2, &[&same[..], &["--", "-incoming", &stream]].concat(), pings);
    source.says("toklat-guest: answer 5.");
    daemon.wait_for("the target's port", |daemon| {
        daemon.ports("vale0").iter().any(|(name, _)| name == "new")
    });
    let mut qemu = Monitor::connect(Path::new(&monitor));
    qemu.ask("migrate", &json!({ "uri": stream }));
    loop {
        let Some(info) = qemu.ask("query-migrate", &json!({})) else {
            panic!("the source is gone: {} {}", source.ends(), daemon.log());
        };
        match info["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => panic!("{info}"),
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    // The guest continues to count from where it was.
    let answer = target.says("toklat-guest: answer");
    let count =
        answer.rsplit(' ').next().and_then(|count| count.trim_end_matches('.').parse::<u32>().ok());
    assert!(count.is_some_and(|count| count > 5), "{answer}");
    if qemu.ask("quit", &json!({})).is_none() {
        panic!("the source is gone: {} {}", source.ends(), daemon.log());
    }
    source.ends();
    target.says("toklat-guest: answer");
    let ports: Vec<String> = daemon.ports("vale0").into_iter().map(|(name, _)| name).collect();
    assert!(!ports.contains(&"old".to_owned()) && ports.contains(&"new".to_owned()), "{ports:?}");
}
