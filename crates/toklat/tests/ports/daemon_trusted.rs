//! Trusted switches: clients forward what they send, in their own threads.
#![allow(unsafe_code, reason = "a process is forked that stops while it holds a lock")]

use std::time::{Duration, Instant};

use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::{Daemon, kill_process, small, text, wait_until};
use netring::{Interest, OpenError, Port, PortError};
use serde_json::{Value, json};
use turn::board::{Board, Entry};

/// A daemon with a trusted switch. The program forwards in this process, too.
fn daemon() -> Daemon {
    inline::trusted::install();
    let daemon = Daemon::start();
    let (status, body) =
        daemon.ask("POST", "/v1/switches", &json!({"name": "vale9", "trusted": true}));
    assert!(status < 300, "{body}");
    daemon
}

fn open(daemon: &Daemon, name: &str) -> Port {
    small(name).directory(daemon.dir()).open().unwrap()
}

fn two(daemon: &Daemon) -> [Port; 2] {
    ["vale9:a", "vale9:b"].map(|name| open(daemon, name))
}

/// The board, as any process of the switch has it.
fn board(daemon: &Daemon) -> Board {
    let shape = netring::ask_state(daemon.dir(), "vale9").unwrap();
    let config = dataplane::SwitchConfig {
        max_ports: shape.max_ports,
        fdb_entries: shape.fdb_entries,
        batch: shape.batch,
        trusted: true,
        ..dataplane::SwitchConfig::default()
    };
    let memory = shmem::Memfd::adopt(shape.state).unwrap();
    Board::of(&turn::state::State::map(&memory, &config).unwrap()).unwrap()
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// What came in, was copied or cut, and is neither out, dropped nor lost.
fn unaccounted(daemon: &Daemon) -> i64 {
    let stats = daemon.get("/v1/stats");
    let switch = &stats["switches"][0];
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let drops = |value: &Value| value.as_object().unwrap().values().map(number).sum::<i64>();
    let of = |port: &Value| {
        number(&port["in_frames"]) + number(&port["in_copies"]) + number(&port["out_segments"])
            - number(&port["out_frames"])
            - drops(&port["in_drops"])
            - drops(&port["out_drops"])
    };
    let ports = switch["ports"].as_array().unwrap().iter().map(of);
    ports.sum::<i64>() + of(&switch["gone"]) - number(&switch["lost_in_restarts"])
}

#[test]
fn a_flush_forwards_without_the_data_process() {
    let daemon = daemon();
    let [mut a, mut b] = two(&daemon);
    let pid = daemon.data_process("vale9");
    signal(pid, rustix::process::Signal::STOP);
    for number in 1..1000 {
        assert!(send(&mut a, &frame(1, 2, number)));
        assert_eq!(receive(&mut b), [number], "nothing was waited for");
        assert!(send(&mut b, &frame(2, 1, number)));
        assert_eq!(receive(&mut a), [number]);
    }
    signal(pid, rustix::process::Signal::CONT);
    assert_eq!(daemon.counters("a")["in_frames"], 999);
    assert_eq!(daemon.counters("b")["out_frames"], 999);
    assert_eq!(unaccounted(&daemon), 0);
}

#[test]
fn a_receiver_that_sleeps_is_woken() {
    let daemon = daemon();
    let [mut a, mut b] = two(&daemon);
    let echo = std::thread::spawn(move || {
        for number in 0..100 {
            while receive(&mut b).is_empty() {
                b.wait(Interest::READ, Some(harness::PATIENCE)).unwrap();
            }
            assert!(send(&mut b, &frame(2, 1, number)));
        }
    });
    for number in 0..100 {
        assert!(send(&mut a, &frame(1, 2, number)));
        let ready = a.wait(Interest::READ, Some(harness::PATIENCE)).unwrap();
        assert!(ready.readable, "frame {number}");
        assert_eq!(receive(&mut a), [number]);
    }
    echo.join().unwrap();
}

#[test]
fn more_than_a_batch_is_forwarded_by_one_flush() {
    let daemon = daemon();
    let open = |name| netring::Open::new(name).slots(512).directory(daemon.dir()).open().unwrap();
    let [mut a, mut b] = ["vale9:a", "vale9:b"].map(open);
    for number in 0..500 {
        assert!(a.send(1).push(&frame(1, 2, number)));
    }
    a.flush().unwrap();
    let mut numbers = Vec::new();
    while numbers.len() < 500 {
        let more = receive(&mut b);
        assert!(!more.is_empty(), "{} frames", numbers.len());
        numbers.extend(more);
    }
    assert!(numbers.into_iter().eq(0..500));
}

#[test]
fn only_the_switchs_one_user_opens_its_ports_and_not_even_root_joins_another() {
    inline::trusted::install();
    let daemon = Daemon::start();
    let ours = rustix::process::geteuid().as_raw();
    let body = json!({"name": "vale8", "trusted": true, "user": ours + 4000});
    assert!(daemon.ask("POST", "/v1/switches", &body).0 < 300);
    let refused = daemon.open("vale8:a").unwrap_err();
    assert!(matches!(&refused, OpenError::Refused { errno: 13, .. }), "{refused}");
    let refused = netring::ask_state(daemon.dir(), "vale8").unwrap_err();
    assert!(matches!(&refused, OpenError::Refused { errno: 13, .. }), "{refused}");
    let refused = netring::ask_member(daemon.dir(), "vale8:a").unwrap_err();
    assert!(matches!(&refused, OpenError::Refused { errno: 13, .. }), "{refused}");
    let (status, answer) = daemon.ask("PATCH", "/v1/switches/vale8", &json!({"user": ours}));
    assert_eq!(status, 409, "its processes may still have its memory: {answer}");
    let (status, answer) = daemon.ask("PATCH", "/v1/switches/vale8", &json!({"trusted": false}));
    assert_eq!(status, 409, "{answer}");
}

#[test]
fn a_switch_that_is_not_trusted_hands_out_nothing() {
    let daemon = daemon();
    let port = daemon.open("vale0:a").unwrap();
    for refused in [
        netring::ask_state(daemon.dir(), "vale0").map(drop),
        netring::ask_member(daemon.dir(), "vale0:a").map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, OpenError::Refused { errno: 22, .. }), "{refused}");
    }
    drop(port);
    for name in ["vale9:none", "vale9:", "vale9", "none:a", ":"] {
        assert!(netring::ask_member(daemon.dir(), name).is_err(), "{name}");
    }
}

#[test]
fn other_kinds_of_ports_limits_and_bad_links_are_refused() {
    let daemon = daemon();
    for port in [
        json!({"name": "x", "kind": "null"}),
        json!({"name": "x", "kind": {"tap": {}}}),
        json!({"name": "x", "lossless": true}),
        json!({"name": "x", "tx_impairment": {"loss_ppm": 5}}),
    ] {
        let (status, answer) = daemon.ask("POST", "/v1/switches/vale9/ports", &port);
        assert_eq!(status, 400, "{answer}");
    }
    let macs: Vec<String> =
        (0..2000).map(|n| format!("02:00:00:00:{:02x}:{:02x}", n >> 8, n & 255)).collect();
    let port = json!({"name": "x", "macs": macs});
    let (status, answer) = daemon.ask("POST", "/v1/switches/vale9/ports", &port);
    assert!(status >= 400 && answer.to_string().contains("fewer addresses"), "{answer}");
}

#[test]
fn a_port_that_is_removed_is_gone_for_its_owner_although_others_have_its_token() {
    let daemon = daemon();
    let [mut a, mut b] = two(&daemon);
    assert!(send(&mut a, &frame(1, 2, 1)));
    assert_eq!(receive(&mut b), [1]);
    let (status, _) = daemon.ask("DELETE", "/v1/switches/vale9/ports/b", &Value::Null);
    assert!(status < 300);
    let gone = b.wait(Interest::READ, Some(harness::PATIENCE));
    assert!(matches!(gone, Err(PortError::Gone)), "{gone:?}");
    assert!(b.send(1).push(&frame(2, 1, 1)));
    assert!(matches!(b.flush(), Err(PortError::Gone)));
    assert!(send(&mut a, &frame(1, 2, 2)), "the others go on");
    b.reopen().unwrap();
    assert!(send(&mut b, &frame(2, 1, 3)));
    assert_eq!(receive(&mut a), [3]);
}

#[test]
fn a_port_that_is_closed_while_the_lock_is_held_frees_its_number() {
    let daemon = daemon();
    let [mut a, b] = two(&daemon);
    let board = board(&daemon);
    let held = board.lock().unwrap();
    drop(b);
    wait_until("the port goes", || daemon.ports("vale9").len() == 1);
    assert!(daemon.open("vale9:b").is_err(), "the lock is held");
    drop(held);
    let mut b = None;
    wait_until("the switch goes on", || {
        b = daemon.open("vale9:b").ok();
        b.is_some()
    });
    assert!(send(&mut a, &frame(1, 2, 7)));
    assert_eq!(receive(&mut b.unwrap()), [7]);
}

/// Objective: a peer that writes a slot of the board as it likes neither ends the others nor keeps
/// them in a turn.
///
/// Steps: a slot gets sizes whose product is too large for a number, or the name of another port;
/// the other port sends. Then the slot is as it should be, and frames arrive again.
#[test]
fn regression_a_slot_that_a_peer_wrote_neither_ends_the_others_nor_holds_them_up() {
    let daemon = daemon();
    let [mut a, mut b] = two(&daemon);
    let board = board(&daemon);
    let slot = |name: &str| (0..2).find_map(|id| board.read(id).filter(|entry| entry.name == name));
    let write = |entry: &Entry| {
        let held = board.lock().unwrap();
        board.write(entry).unwrap();
        drop(held);
    };
    let good = slot("b").unwrap();
    let most = u32::MAX;
    let [if_size, ring_size, buf_size] = [most; 3];
    let [if_num, ring_num, buf_num] = [most; 3];
    let geometry =
        netring::layout::Geometry { if_size, if_num, ring_size, ring_num, buf_size, buf_num };
    let mut too_large = Entry { instance: 1 << 60, file: 1, ..good.clone() };
    too_large.rings.geometry = geometry;
    let twin = Entry { instance: 2 << 60, name: "a".to_owned(), ..good.clone() };
    for (number, bad) in (1..).zip([too_large, twin]) {
        write(&bad);
        assert!(send(&mut a, &frame(1, 2, 0)), "{bad:?}");
        receive(&mut b);
        write(&Entry { instance: bad.instance + 1, ..good.clone() });
        assert!(send(&mut a, &frame(1, 2, number)));
        assert_eq!(receive(&mut b), [number]);
    }
}

#[test]
fn a_data_process_that_dies_is_not_noticed_by_the_ports() {
    let mut daemon = daemon();
    let [mut a, mut b] = two(&daemon);
    let (pid, mut number) = (daemon.data_process("vale9"), 0);
    kill_process(pid);
    let restarted = |daemon: &Daemon| {
        let info = daemon.get("/v1/switches/vale9");
        info["state"] == "running" && info["pid"].as_i64() != Some(pid.into())
    };
    let mut exchange = |a: &mut Port, b: &mut Port| {
        number += 1;
        assert!(send(a, &frame(1, 2, number)));
        assert_eq!(receive(b), [number]);
        assert!(send(b, &frame(2, 1, number)));
        assert_eq!(receive(a), [number]);
    };
    daemon.wait_for("another data process", |daemon| {
        exchange(&mut a, &mut b);
        restarted(daemon)
    });
    let mut c = open(&daemon, "vale9:c");
    assert!(send(&mut c, &frame(3, 1, 7)));
    assert_eq!(receive(&mut a), [7], "ports that come later are known, too");
    for _ in 0..10 {
        exchange(&mut a, &mut b);
    }
    assert_eq!(unaccounted(&daemon), 0);
}

#[test]
fn a_port_in_its_error_state_is_reset_by_its_owner() {
    let daemon = daemon();
    let [mut a, mut b] = two(&daemon);
    // A length beyond the buffer, as a faulty program writes it into its own ring.
    let rings = a.rings();
    let ring = netring::layout::RingMemory::of(
        &rings.mapping,
        &rings.geometry,
        rings.tx.first,
        rings.tx.slots,
    )
    .unwrap();
    assert!(a.send(1).push(&frame(1, 2, 1)));
    let word = ring.slots[0].load();
    ring.slots[0].store(netring::layout::SlotWord { len: u16::MAX, ..word });
    assert!(matches!(a.flush(), Err(PortError::Fault(_))));
    a.reset().unwrap();
    assert!(send(&mut a, &frame(1, 2, 2)));
    assert_eq!(receive(&mut b), [2]);
}

#[test]
fn processes_killed_at_any_instruction_leave_the_switch_to_the_others() {
    let daemon = daemon();
    let [mut a, mut b] = two(&daemon);
    let mut longest = Duration::ZERO;
    for round in 0..20 {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_toklat"));
        command.env("TOKLAT_DIR", daemon.dir()).args(["gen", "vale9:gen", "--quiet"]);
        command.stdout(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        let busy = |daemon: &Daemon| {
            let stats = daemon.get("/v1/stats");
            let ports = stats["switches"][0]["ports"].as_array().unwrap().clone();
            ports
                .iter()
                .any(|port| text(&port["name"]) == "gen" && port["in_frames"].as_u64() > Some(0))
        };
        wait_until("the generator sends", || busy(&daemon));
        let started = Instant::now();
        child.kill().unwrap();
        let mut number = round * 1000;
        until_traffic_flows(&mut a, &mut b, &mut number);
        longest = longest.max(started.elapsed());
        child.wait().unwrap();
        wait_until("the port goes", || daemon.ports("vale9").len() == 2);
    }
    eprintln!("the longest pause was {longest:?}");
    assert_eq!(unaccounted(&daemon), 0);
}

/// Objective: a process that is stopped while it is the switch is shown, until it goes on.
#[test]
fn a_stopped_holder_of_the_lock_is_shown() {
    let daemon = daemon();
    let [mut a, mut b] = two(&daemon);
    // The first frame tells the switch the namespace of its processes.
    assert!(send(&mut a, &frame(1, 2, 1)));
    assert_eq!(receive(&mut b), [1]);
    let holder = || daemon.get("/v1/switches/vale9")["stopped_holder"].as_i64();
    assert_eq!(holder(), None);
    let board = board(&daemon);
    // What the child uses exists before there is a child.
    drop(board.lock().unwrap());
    // SAFETY: the child makes system calls and uses memory that is there.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let held = board.lock();
        // SAFETY: it stops, and ends when it goes on.
        unsafe {
            libc::raise(libc::SIGSTOP);
            libc::_exit(i32::from(held.is_err()))
        }
    }
    wait_until("the holder", || holder() == Some(child.into()));
    let shown = daemon.done(&["switch", "show", "vale9"]);
    assert!(shown.contains(&format!("kill -CONT {child}")), "{shown}");
    signal(child, rustix::process::Signal::CONT);
    wait_until("the end of it", || holder().is_none());
    // SAFETY: it is a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    assert!(send(&mut a, &frame(1, 2, 2)));
    assert_eq!(receive(&mut b), [2]);
}
