//! Front ends that come, go, hand over and migrate, and what they ask of a port meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use dataplane::attach::virtio::message::code;
use frame::Mac;
use nic::virtio::Inflight;
use serde_json::{Value, json};

use super::{
    PACKED, SPLIT, daemon, guest, mappings, numbers, socket, state, until_frames_flow, wait_until,
};
use harness::frames::frame;
use harness::front_end::{
    FrontEnd, LOG_ALL, MEMORY, PROTOCOL_FEATURES, RECEIVE, TRANSMIT, ask, memfd, reply, say, words,
};
use harness::{Daemon, PATIENCE, kill_process};

#[test]
fn a_port_waits_for_the_next_front_end_and_turns_a_second_away() {
    let mut daemon = daemon(&["a", "b", "c"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let second = UnixStream::connect(socket(&daemon, "a")).unwrap();
    // It may have been hung up on already.
    let _ = say(&second, code::GET_FEATURES, &[], &[]);
    assert_eq!(reply(&second), None, "a second front end was not hung up on");
    until_frames_flow(&mut a, &mut b, &mut number);
    for _ in 0..3 {
        drop(a);
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "a") == "vacant");
        a = guest(&daemon, "a", PACKED);
        until_frames_flow(&mut a, &mut b, &mut number);
    }
    // A front end that connects right after another has left is accepted.
    drop(a);
    let mut a = guest(&daemon, "a", SPLIT);
    until_frames_flow(&mut a, &mut b, &mut number);
    assert_eq!(state(&daemon, "c"), "vacant");
}

#[test]
fn front_ends_that_come_and_go_leave_no_descriptors_behind() {
    let mut daemon = daemon(&["a", "b"]);
    let mut b = guest(&daemon, "b", SPLIT);
    let count = |daemon: &Daemon| {
        let pids = [daemon.pid() as i32, daemon.data_process("vale0")];
        pids.map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count))
    };
    // Separate threads close the descriptors that came with the messages of `b` and are not kept.
    let mut number = 0;
    let mut before = count(&daemon);
    for round in 0..6 {
        let features = if round % 2 == 0 { SPLIT } else { PACKED };
        let mut a = guest(&daemon, "a", features);
        a.must(code::SET_LOG_BASE, &words(&[4096, 0]), &[memfd(4096).as_fd()]);
        a.track();
        if round == 4 {
            let old = daemon.data_process("vale0");
            kill_process(old);
            daemon.wait_for("a successor", |daemon| {
                let pid = daemon.get("/v1/switches/vale0")["pid"].as_i64();
                pid.is_some_and(|pid| pid != i64::from(old))
            });
            daemon.wait_for("memory, log and areas to be mapped again", |daemon| {
                state(daemon, "a") == "vacant" || mappings(daemon, "a") == 3
            });
            // A data process that died right after its last reply cannot know whether the reply
            // left.
            if state(&daemon, "a") == "vacant" {
                a = guest(&daemon, "a", features);
            }
        }
        until_frames_flow(&mut a, &mut b, &mut number);
        drop(a);
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "a") == "vacant");
        daemon.wait_for("all descriptors to be closed", |daemon| {
            let now = count(daemon);
            let settled = now.iter().zip(&before).all(|(now, before)| now <= before);
            if settled {
                before = now;
            }
            settled
        });
    }
}

#[test]
fn a_port_connects_to_a_front_end_that_listens() {
    let daemon = Daemon::start();
    let path = daemon.dir().join("qemu.sock");
    let kind = json!({ "vhost_user": { "path": path, "client": true } });
    daemon.apply(&format!(
        "[switch.vale0.port.b]\nkind.vhost_user = {{}}\n[switch.vale0.port.a]\nkind.vhost_user = \
         {{ path = '{}', client = true }}",
        path.display()
    ));
    let info = daemon.get("/v1/switches/vale0/ports/a");
    assert_eq!(info["spec"]["kind"]["vhost_user"]["path"], kind["vhost_user"]["path"]);
    let mut b = guest(&daemon, "b", SPLIT);
    let mut number = 0;
    for _ in 0..2 {
        let listener = UnixListener::bind(&path).unwrap();
        let connected = listener.accept().unwrap().0;
        let mut a = FrontEnd::start_on(connected, SPLIT.bits() | PROTOCOL_FEATURES);
        until_frames_flow(&mut a, &mut b, &mut number);
        drop((a, listener));
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn another_back_end_learns_what_was_in_flight_and_where_the_queues_stand() {
    for features in [SPLIT, PACKED] {
        let mut daemon = daemon(&["a", "b"]);
        let (mut a, mut b) = (guest(&daemon, "a", features), guest(&daemon, "b", SPLIT));
        let areas = a.track();
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        for killed in [true, false] {
            if killed {
                // The state that toklat keeps is lost.
                let data_process = daemon.data_process("vale0");
                daemon.kill();
                kill_process(data_process);
                daemon.start_again();
                b = guest(&daemon, "b", SPLIT);
            } else {
                a.socket.shutdown(std::net::Shutdown::Both).unwrap();
            }
            daemon.wait_for("the port to be vacant", |daemon| state(daemon, "a") == "vacant");
            a.reconnect(&socket(&daemon, "a"), &areas);
            until_frames_flow(&mut a, &mut b, &mut number);
        }
        kill_process(daemon.data_process("vale0"));
        until_frames_flow(&mut a, &mut b, &mut number);
        // Another back end has taken the next frame, and is gone.
        a.stop_queue(TRANSMIT);
        a.socket.shutdown(std::net::Shutdown::Both).unwrap();
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "a") == "vacant");
        while a.reclaim() > 0 {}
        let taken = a.queues[TRANSMIT].driver.next_number().unwrap();
        assert!(a.send(&frame(1, 2, u64::MAX)));
        mark_in_flight(&areas.1, taken, features == PACKED);
        a.reconnect(&socket(&daemon, "a"), &areas);
        let back = || a.queues[TRANSMIT].driver.used();
        let back = std::iter::repeat_with(back).take(30_000).find_map(|used| {
            std::thread::sleep(Duration::from_millis(used.is_none().into()));
            used
        });
        assert_eq!(back, Some((taken, 0)), "{features:?}");
        let mut arrived = Vec::new();
        let mut sent = 0;
        wait_until(|| {
            b.send(&frame(2, 1, 0));
            sent += u64::from(a.send(&frame(1, 2, sent + 1)));
            numbers(&mut a);
            arrived.extend(numbers(&mut b));
            arrived.len() >= 20
        });
        assert!(!arrived.contains(&u64::MAX), "{arrived:?}");
    }
}

/// Marks a chain of one descriptor in the transmit queue's area.
fn mark_in_flight(areas: &OwnedFd, number: u16, packed: bool) {
    let area = Inflight::bytes(128, packed) as u64;
    let write = |at, bytes: &[u8]| {
        rustix::io::pwrite(areas, bytes, area + at).unwrap();
    };
    let read = |at| {
        let mut bytes = [0; 2];
        rustix::io::pread(areas, &mut bytes, area + at).unwrap();
        u16::from_le_bytes(bytes)
    };
    if !packed {
        let entry = 16 + 16 * u64::from(number);
        write(entry + 8, &u64::MAX.to_le_bytes());
        return write(entry, &[1]);
    }
    let free = read(12);
    let entry = 32 + 32 * u64::from(free);
    let next = read(entry + 2).to_le_bytes();
    write(entry + 4, &[free.to_le_bytes(), [1, 0]].concat());
    write(entry + 8, &u64::MAX.to_le_bytes());
    write(entry + 16, &number.to_le_bytes());
    write(entry, &[1]);
    write(12, &[next, next].concat());
}

#[test]
fn queues_stop_and_go_on_where_they_were() {
    for features in [SPLIT, PACKED] {
        let daemon = daemon(&["a", "b"]);
        let (mut a, mut b) = (guest(&daemon, "a", features), guest(&daemon, "b", features));
        let mut number = 0;
        for _ in 0..3 {
            until_frames_flow(&mut a, &mut b, &mut number);
            let bases = [RECEIVE, TRANSMIT].map(|queue| (queue, a.stop_queue(queue)));
            a.send(&frame(1, 2, u64::MAX));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!numbers(&mut b).contains(&u64::MAX), "a stopped queue was served");
            bases.into_iter().for_each(|(queue, base)| a.start_queue(queue, base));
            let started = Instant::now();
            while !numbers(&mut b).contains(&u64::MAX) {
                assert!(started.elapsed() < PATIENCE, "what waited in the queue is not sent");
            }
        }
    }
}

#[test]
fn a_guest_that_came_is_announced() {
    let mut daemon = daemon(&["a", "b"]);
    let (a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mac = Mac::local(77);
    let mut word = [0; 8];
    word[..6].copy_from_slice(&mac.octets());
    a.must(code::SEND_RARP, &word, &[]);
    let mut rarp = None;
    daemon.wait_for("the announcement", |_| {
        rarp = b.receive().into_iter().find(|frame| frame[12..14] == [0x80, 0x35]);
        rarp.is_some()
    });
    let rarp = rarp.unwrap();
    assert_eq!((&rarp[..6], &rarp[6..12]), (&[0xff; 6][..], &mac.octets()[..]));
    let fdb = daemon.get("/v1/switches/vale0/fdb");
    let entry = fdb.as_array().unwrap().iter().find(|entry| entry["mac"] == mac.to_string());
    assert_eq!(entry.unwrap()["port"], "a");
}

#[test]
fn pages_that_are_written_are_logged() {
    let daemon = daemon(&["a", "b"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let log = memfd(4096);
    let pages = || {
        let mut bits = [0; (MEMORY / 4096 / 8) as usize];
        rustix::io::pread(&log, &mut bits, 0).unwrap();
        (0..MEMORY / 4096)
            .filter(|page| bits[(page / 8) as usize] >> (page % 8) & 1 != 0)
            .collect::<Vec<_>>()
    };
    ask(&b.socket, code::SET_LOG_BASE, &words(&[4096, 0]), &[log.as_fd()]);
    until_frames_flow(&mut a, &mut b, &mut number);
    assert!(pages().is_empty(), "logged before it was asked for");
    b.must(code::SET_FEATURES, &words(&[b.features | LOG_ALL]), &[]);
    until_frames_flow(&mut a, &mut b, &mut number);
    let logged = pages();
    // The log includes the receive queue's used ring, and its buffers.
    assert!(logged.contains(&0) || logged.contains(&1), "{logged:?}");
    assert!(logged.iter().any(|page| *page >= 0x80), "{logged:?}");
}

#[test]
fn a_link_is_unplugged_and_plugged_in() {
    let mut daemon = daemon(&["a", "b"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let (channel, theirs) = UnixStream::pair().unwrap();
    a.must(code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let link = |daemon: &Daemon, up: bool| {
        let path = "/v1/switches/vale0/ports/a";
        assert_eq!(daemon.ask("PATCH", path, &json!({ "link": up })).0, 200);
    };
    let status = |a: &FrontEnd| {
        let question = [6u32, 2, 0].map(u32::to_ne_bytes).concat();
        assert!(say(&a.socket, code::GET_CONFIG, &[&question[..], &[0; 2]].concat(), &[]));
        reply(&a.socket).unwrap()[12]
    };
    assert_eq!(status(&a), 1);
    link(&daemon, false);
    assert_eq!((status(&a), reply(&channel)), (0, Some(Vec::new())));
    numbers(&mut a);
    let dropped = |port: &Value| {
        let down = |drops: &Value| drops["down"].as_u64().unwrap_or(0);
        (down(&port["in_drops"]), down(&port["out_drops"]))
    };
    daemon.wait_for("frames in both directions to be dropped", |daemon| {
        a.send(&frame(1, 2, 7));
        b.send(&frame(2, 1, 7));
        assert!(numbers(&mut a).is_empty(), "received without a link");
        let (from, to) = dropped(&daemon.counters("a"));
        from > 200 && to > 0
    });
    link(&daemon, true);
    assert_eq!((status(&a), reply(&channel)), (1, Some(Vec::new())));
    until_frames_flow(&mut a, &mut b, &mut number);
}
