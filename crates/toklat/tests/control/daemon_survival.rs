//! Any process of a switch is killed at any moment: clients keep their ports, and nothing is left
//! behind.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use frame::{Offload, OffloadSet};
use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::{Daemon, PATIENCE, is_alive, kill_process};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

#[test]
fn a_killed_data_process_is_back_and_clients_go_on() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    for round in 1..=3 {
        kill_process(daemon.data_process("vale0"));
        until_traffic_flows(&mut a, &mut b, &mut number);
        let switch = daemon.get("/v1/switches/vale0");
        assert_eq!((&switch["state"], &switch["restarts"]), (&json!("running"), &json!(round)));
        assert_eq!(daemon.gaps_in_time("vale0"), round);
    }
    assert_eq!(daemon.ports("vale0").len(), 2);
    let page = daemon.get("/metrics");
    let longest = "toklat_switch_restart_gap_seconds{switch=\"vale0\",which=\"longest\"} ";
    assert!(harness::text(&page).contains(longest), "{page}");
    assert!(daemon.get("/v1/status")["longest_restart_gap_ms"].is_u64());
}

#[test]
fn offload_requests_go_on_after_a_restart() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]");
    let open = |name: &str| {
        let open = harness::small(name).directory(daemon.dir()).offloads(OffloadSet::ALL);
        open.open().unwrap()
    };
    let (mut a, mut b) = (open("vale0:a"), open("vale0:b"));
    assert_eq!(a.offloads(), OffloadSet::ALL);
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    assert!(crosses(&mut a, &mut b));
    kill_process(daemon.data_process("vale0"));
    until_traffic_flows(&mut a, &mut b, &mut number);
    assert!(crosses(&mut a, &mut b));
    // A new supervisor takes over the switch with its ports unchanged, and so does the next data
    // process.
    daemon.kill();
    daemon.start_again();
    kill_process(daemon.data_process("vale0"));
    until_traffic_flows(&mut a, &mut b, &mut number);
    assert!(crosses(&mut a, &mut b));
    // A port that does not ask for offloads gets finished frames under the same name.
    drop(b);
    daemon.wait_for("the port to go", |daemon| daemon.ports("vale0").len() == 1);
    let mut b = daemon.open("vale0:b").unwrap();
    until_traffic_flows(&mut a, &mut b, &mut number);
    assert!(!crosses(&mut a, &mut b));
}

/// Sends a TCP packet of 100 bytes from `a` to `b` whose checksum the receiver is to complete;
/// returns true if it arrives so.
fn crosses(a: &mut netring::Port, b: &mut netring::Port) -> bool {
    let mut bytes = [0; 154];
    bytes[..15].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45]);
    (bytes[17], bytes[22], bytes[23], bytes[46]) = (140, 64, 6, 0x50);
    let (flags, checksum_start, checksum_offset) = (Offload::NEEDS_CHECKSUM, 34, 16);
    let request = Offload { flags, checksum_start, checksum_offset, ..Offload::NONE };
    assert!(a.send(1).gather([&bytes[..]], bytes.len(), request));
    a.flush().unwrap();
    let started = Instant::now();
    loop {
        let asked = |frame: netring::Received<'_>| {
            (frame.len() == bytes.len()).then(|| frame.offload() == request)
        };
        let came = b.receive(64).find_map(asked);
        b.flush().unwrap();
        if let Some(came) = came {
            return came;
        }
        assert!(started.elapsed() < PATIENCE, "the packet was lost");
        std::thread::yield_now();
    }
}

#[test]
fn no_frame_comes_twice_over_a_restart() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.b]\nlossless = true");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let (mut seen, mut kills, mut next) = (number, 0, number + 500);
    let started = Instant::now();
    while kills < 3 || seen < next {
        while send(&mut a, &frame(1, 2, number + 1)) {
            number += 1;
        }
        for got in receive(&mut b) {
            assert!(got > seen, "frame {got} after {seen}");
            seen = got;
        }
        if seen >= next && kills < 3 {
            kill_process(daemon.data_process("vale0"));
            // The successor delivers the frames that are sent from here on.
            (kills, next) = (kills + 1, number + 500);
        }
        assert!(started.elapsed() < PATIENCE, "{seen} of {next}: {}", daemon.log());
        std::thread::yield_now();
    }
}

#[test]
fn an_upgrade_loses_nothing() {
    let daemon = Daemon::start();
    daemon.apply("[switch.vale0]\nstall_timeout_ms = 5000\n[switch.vale0.port.b]\nlossless = true");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let mut seen = number;
    let old = daemon.data_process("vale0");
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let upgrade = scope.spawn(|| daemon.ask("POST", "/v1/upgrade", &Value::Null));
            let mut rest = None;
            while rest.is_none_or(|at: Instant| at.elapsed() < Duration::from_millis(50)) {
                while send(&mut a, &frame(1, 2, number + 1)) {
                    number += 1;
                }
                for got in receive(&mut b) {
                    assert_eq!(got, seen + 1, "lost or doubled");
                    seen = got;
                }
                if rest.is_none() && upgrade.is_finished() {
                    rest = Some(Instant::now());
                }
                std::thread::yield_now();
            }
            let (status, answer) = upgrade.join().unwrap();
            assert_eq!(status, 200, "{answer}");
            assert!(answer["switches"][0]["gap_ms"].is_u64(), "{answer}");
        });
    }
    assert_ne!(daemon.data_process("vale0"), old);
    assert!(!is_alive(old));
    assert_eq!(daemon.get("/v1/switches/vale0")["restarts"], 0, "an upgrade is not a crash");
}

#[test]
fn a_killed_supervisor_leaves_traffic_running_and_is_found_again() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\nmtu = 2000\n[switch.vale0.port.idle]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let other = daemon.open("vale9:x").unwrap();
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let (pid, other_pid) = (daemon.data_process("vale0"), daemon.data_process("vale9"));
    let served = |daemon: &Daemon| {
        let ports = ["a", "b"].map(|port| daemon.get(&format!("/v1/switches/vale0/ports/{port}")));
        ports.map(|port| (port["worker"].clone(), port["client"].clone()))
    };
    let before = served(&daemon);
    assert!(before.iter().all(|(worker, client)| worker == 0 && client["pid"].is_u64()));
    daemon.kill();
    until_traffic_flows(&mut a, &mut b, &mut number);
    daemon.start_again();
    assert_eq!(served(&daemon), before, "who has the port, and which worker serves it");
    assert_eq!((daemon.data_process("vale0"), daemon.data_process("vale9")), (pid, other_pid));
    let state = |name: &str, state: &str| (name.to_owned(), state.to_owned());
    let mut ports = daemon.ports("vale0");
    ports.sort();
    let attached = [state("a", "attached"), state("b", "attached"), state("idle", "vacant")];
    assert_eq!(ports, attached);
    until_traffic_flows(&mut a, &mut b, &mut number);
    // The keeper works as before: it keeps clients and data processes.
    kill_process(pid);
    until_traffic_flows(&mut a, &mut b, &mut number);
    drop((a, b, other));
    daemon.wait_for("ports to go", |daemon| {
        let mut ports = daemon.ports("vale0");
        ports.sort();
        ports == [state("a", "vacant"), state("idle", "vacant")]
    });
    daemon.wait_for("the switch to go", |d| d.get("/v1/switches").as_array().unwrap().len() == 1);
}

#[test]
fn what_happens_while_there_is_no_supervisor_is_seen_to_later() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]\n[switch.vale1.port.a]");
    let (a, b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let (first, second) = (daemon.data_process("vale0"), daemon.data_process("vale1"));
    daemon.kill();
    drop((a, b));
    kill_process(second);
    daemon.start_again();
    daemon.wait_for("ports of dead clients to go", |daemon| {
        daemon.ports("vale0") == [("a".to_owned(), "vacant".to_owned())]
    });
    assert_eq!(daemon.data_process("vale0"), first);
    assert_ne!(daemon.data_process("vale1"), second);
    let _a = daemon.open("vale1:a").unwrap();
}

#[test]
fn both_killed_leaves_nothing_but_the_topology() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]");
    let _client = daemon.open("vale0:b").unwrap();
    let pid = daemon.data_process("vale0");
    daemon.kill();
    kill_process(pid);
    daemon.start_again();
    assert_eq!(daemon.ports("vale0"), [("a".to_owned(), "vacant".to_owned())]);
    daemon.open("vale0:b").unwrap();
}

#[test]
fn a_switch_whose_cpu_is_gone_starts_on_any() {
    let mut daemon = Daemon::start();
    let pinned = json!({"name": "vale1", "workers": [{"cpu": 60000}]});
    let (status, answer) = daemon.ask("POST", "/v1/switches", &pinned);
    assert!(status == 400 && answer["reason"].as_str().unwrap().contains("60000"), "{answer}");
    daemon.apply("[switch.vale0]\nworkers = [{ cpu = 0 }]\n[switch.vale0.port.a]");
    daemon.stop(&Value::Null);
    let saved = daemon.dir().join("topology.json");
    let mut topology: Value = serde_json::from_slice(&std::fs::read(&saved).unwrap()).unwrap();
    let cpu = &mut topology["topology"]["switch"]["vale0"]["workers"][0]["cpu"];
    assert_eq!(*cpu, 0);
    *cpu = json!(60000);
    std::fs::write(&saved, topology.to_string()).unwrap();
    daemon.start_again();
    assert_eq!(daemon.get("/v1/switches/vale0")["state"], "running");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    until_traffic_flows(&mut a, &mut b, &mut 0);
    daemon.wait_for("the log's line", |daemon| daemon.log().contains("it runs on any"));
}

#[test]
fn data_processes_can_be_left_running_on_purpose() {
    let mut daemon = Daemon::start();
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let pid = daemon.data_process("vale0");
    daemon.stop(&json!({"leave_data_processes": true}));
    assert!(is_alive(pid));
    until_traffic_flows(&mut a, &mut b, &mut number);
    daemon.start_again();
    assert_eq!(daemon.data_process("vale0"), pid);
    daemon.stop(&Value::Null);
    assert!(!is_alive(pid));
}

/// Kills the data process of a switch if there is one; returns which.
fn killed(daemon: &Daemon) -> Option<Pid> {
    let switch = daemon.get("/v1/switches/vale0");
    let pid = switch["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32))?;
    // The process may have died since.
    rustix::process::kill_process(pid, Signal::KILL).ok().map(|()| pid)
}

#[test]
fn regression_a_data_process_that_dies_and_dies_is_never_given_up() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]");
    // A process that was killed and is still there counts once.
    let mut killed_ones = HashSet::new();
    daemon.wait_for("a dozen deaths", |daemon| {
        killed_ones.extend(killed(daemon));
        killed_ones.len() >= 12
    });
    // The pause is as documented for so many deaths in a row, and the rest of each gap is short.
    daemon.wait_for("the next one after the longest pause", |daemon| {
        let switch = daemon.get("/v1/switches/vale0");
        let pause = switch["restart_gaps"]["last_pause_ms"].as_u64().unwrap();
        switch["state"] == "running" && pause >= 2000
    });
    assert!(daemon.gaps_in_time("vale0") > 0);
    // No port is blamed for a death that came from outside.
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    until_traffic_flows(&mut a, &mut b, &mut 0);
}

/// Objective: a worker that is stuck in one port's turn is a pause to the others.
///
/// Steps: a port is made to hang its worker with its first frame; it is ended and succeeded without
/// being asked for anything, and the log says of which port.
#[test]
fn a_worker_that_is_stuck_is_a_pause_to_other_ports() {
    let name = "a_worker_that_is_stuck_is_a_pause_to_other_ports";
    if !cfg!(debug_assertions) {
        return harness::skip(name, "only builds for development have ports that hang");
    }
    let mut daemon = Daemon::start_with_environment(&[], &[("TOKLAT_TEST_HANG", "evil")]);
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\n[switch.vale0.port.evil]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let mut evil = daemon.open("vale0:evil").unwrap();
    evil.send(1).push(&frame(9, 2, 1));
    evil.flush().unwrap();
    daemon.wait_for("a successor", |daemon| daemon.get("/v1/switches/vale0")["restarts"] == 1);
    until_traffic_flows(&mut a, &mut b, &mut number);
    assert_eq!(daemon.gaps_in_time("vale0"), 1);
    let log = daemon.log();
    let stuck = log.lines().find(|line| line.contains("worker is stuck"));
    assert!(stuck.is_some_and(|line| line.contains("port=\"evil\"")), "{log}");
}

/// Objective: a port that its data process dies of does not take the others along.
///
/// Steps: a port is made to crash its data process with its first frame; a client sends one there
/// again and again, whenever it can; after two deaths the port is quarantined, others talk on and
/// go on talking, and an upgrade ends it.
#[test]
fn regression_a_port_that_two_data_processes_died_of_is_quarantined() {
    if !cfg!(debug_assertions) {
        return harness::skip(
            "regression_a_port_that_two_data_processes_died_of_is_quarantined",
            "only builds for development have ports that crash",
        );
    }
    let mut daemon = Daemon::start_with_environment(&[], &[("TOKLAT_TEST_CRASH", "evil")]);
    daemon.apply("[switch.vale0.port.a]\n[switch.vale0.port.b]\n[switch.vale0.port.evil]");
    let (mut a, mut b) = (daemon.open("vale0:a").unwrap(), daemon.open("vale0:b").unwrap());
    let mut number = 0;
    until_traffic_flows(&mut a, &mut b, &mut number);
    let state = |daemon: &Daemon| daemon.get("/v1/switches/vale0/ports/evil")["state"].clone();
    let mut evil = None;
    daemon.wait_for("the quarantine", |daemon| {
        if evil.is_none() {
            evil = daemon.open("vale0:evil").ok();
        }
        if let Some(port) = &mut evil {
            port.send(1).push(&frame(9, 2, 1));
            if port.flush().is_err() {
                evil = None;
            }
        }
        state(daemon) == "quarantined"
    });
    until_traffic_flows(&mut a, &mut b, &mut number);
    let restarts = daemon.get("/v1/switches/vale0")["restarts"].as_u64().unwrap();
    assert_eq!(restarts, 2, "{}", daemon.log());
    assert_eq!(daemon.gaps_in_time("vale0"), 2);
    let events = daemon.get("/v1/events")["events"].clone();
    let of = |kind: &str| {
        let is_it = |event: &&Value| event["kind"] == kind && event["port"] == "evil";
        events.as_array().unwrap().iter().filter(is_it).count()
    };
    assert_eq!((of("fault"), of("quarantine")), (2, 1), "{events}");
    let refused = daemon.open("vale0:evil").unwrap_err().to_string();
    assert!(refused.contains("quarantined"), "{refused}");
    for _ in 0..50 {
        until_traffic_flows(&mut a, &mut b, &mut number);
    }
    assert_eq!(daemon.get("/v1/switches/vale0")["restarts"].as_u64(), Some(restarts));
    let failure = daemon.get("/v1/switches/vale0/ports/evil")["failure"].clone();
    assert!(failure.as_str().unwrap().contains("died twice"), "{failure}");
    assert_eq!(daemon.ask("POST", "/v1/upgrade", &Value::Null).0, 200);
    assert_eq!(state(&daemon), "vacant");
    daemon.open("vale0:evil").unwrap();
}

#[test]
fn clients_killed_at_any_moment_leave_nothing() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.to]");
    let before = daemon.get("/v1/status")["descriptors"].as_u64().unwrap();
    for round in 0u64..12 {
        let mut client = std::process::Command::new(env!("CARGO_BIN_EXE_toklat"))
            .args(["gen", "vale0:from", "--quiet"])
            .env("TOKLAT_DIR", daemon.dir())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(round * 3));
        client.kill().unwrap();
        client.wait().unwrap();
    }
    daemon.wait_for("everything to be as before", |daemon| {
        let status = daemon.get("/v1/status");
        status["descriptors"].as_u64().unwrap() <= before && status["ports"] == 1
    });
}

#[test]
fn a_data_process_that_does_not_greet_is_killed_and_replaced() {
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0.port.a]");
    let stuck = daemon.data_process("vale0");
    daemon.kill();
    let pid = Pid::from_raw(stuck).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    // Waits as long as a data process may take to answer.
    daemon.start_again();
    assert_ne!(daemon.data_process("vale0"), stuck);
    assert!(!is_alive(stuck), "two data processes have one switch");
}

#[test]
fn an_upgrade_to_a_program_that_speaks_otherwise_replaces_nothing() {
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("toklat");
    std::fs::copy(env!("CARGO_BIN_EXE_toklat"), &program).unwrap();
    let daemon = Daemon::start_from(&program);
    daemon.apply("[switch.vale0.port.a]");
    let (pid, _a) = (daemon.data_process("vale0"), daemon.open("vale0:a").unwrap());
    let other = programs.path().join("other");
    std::fs::write(&other, "#!/bin/sh\necho 4000000\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&other, &program).unwrap();
    let (status, answer) = daemon.ask("POST", "/v1/upgrade", &json!({}));
    let reason = answer["reason"].as_str().unwrap();
    assert!(status >= 400 && reason.contains("does not speak version"), "{status} {answer}");
    assert_eq!(daemon.data_process("vale0"), pid);
    assert_eq!(daemon.get("/v1/switches/vale0")["state"], "running");
}
