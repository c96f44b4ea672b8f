//! Ports of virtual machines: guests that exchange frames, and live through the end of every process
//! but their own; front ends and guests that break every rule.

mod daemon;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dataplane::attach::virtio::message::code;
use driver::virtio::Buffer;
use frame::Mac;
use nic::virtio::{Features, Inflight};
use serde_json::{Value, json};

use daemon::frames::frame;
use daemon::front_end::{
    BUFFERS, FrontEnd, LOG_ALL, MEMORY, PROTOCOL_FEATURES, RECEIVE, TRANSMIT, USER, ask, babble,
    eventfd, memfd, reply, say, was_signalled, words,
};
use daemon::{Daemon, PATIENCE, kill_process};

const SPLIT: Features = Features::VERSION_1.union(Features::EVENT_IDX);
const PACKED: Features = SPLIT.union(Features::RING_PACKED);

/// A daemon with ports a, b, ... for guests.
fn daemon(ports: &[&str]) -> Daemon {
    let daemon = Daemon::start();
    let port = |name: &&str| format!("[switch.vale0.port.{name}]\nkind.vhost_user = {{}}\n");
    daemon.apply(&ports.iter().map(port).collect::<String>());
    daemon
}

fn socket(daemon: &Daemon, port: &str) -> PathBuf {
    daemon.dir().join(format!("vale0-{port}.sock"))
}

fn guest(daemon: &Daemon, port: &str, features: Features) -> FrontEnd {
    FrontEnd::start(&socket(daemon, port), features)
}

fn number_of(frame: &[u8]) -> Option<u64> {
    (frame[12..14] == [0x88, 0xb5]).then(|| u64::from_le_bytes(frame[16..24].try_into().unwrap()))
}

fn numbers(guest: &mut FrontEnd) -> Vec<u64> {
    guest.receive().iter().filter_map(|frame| number_of(frame)).collect()
}

/// Sends frames from `a` (station 1) until one arrives at `b` (station 2), and waits for those that are
/// on their way; how long that took.
fn until_frames_flow(a: &mut FrontEnd, b: &mut FrontEnd, number: &mut u64) -> Duration {
    until_frames_flow_from(1, a, b, number)
}

fn until_frames_flow_from(
    station: u8,
    a: &mut FrontEnd,
    b: &mut FrontEnd,
    number: &mut u64,
) -> Duration {
    let (started, first) = (Instant::now(), *number + 1);
    let mut flow = false;
    loop {
        if !flow {
            b.send(&frame(2, station, 0));
            *number += u64::from(a.send(&frame(station, 2, *number + 1)));
        }
        std::thread::sleep(Duration::from_millis(1));
        numbers(a);
        let arrived = numbers(b);
        if arrived.contains(number) {
            return started.elapsed();
        }
        flow |= arrived.iter().any(|n| (first..=*number).contains(n));
        assert!(started.elapsed() < PATIENCE, "no frames flow");
    }
}

fn state(daemon: &Daemon, port: &str) -> String {
    daemon.get(&format!("/v1/switches/vale0/ports/{port}"))["state"].as_str().unwrap().to_owned()
}

/// Mappings of its owner's memory.
fn mappings(daemon: &Daemon, port: &str) -> u64 {
    daemon.get(&format!("/v1/switches/vale0/ports/{port}"))["memory"]["mappings"].as_u64().unwrap()
}

#[test]
fn guests_exchange_frames_in_split_and_packed_queues() {
    let daemon = daemon(&["a", "b"]);
    for (one, other) in [(SPLIT, SPLIT), (PACKED, PACKED), (PACKED, SPLIT)] {
        let (mut a, mut b) = (guest(&daemon, "a", one), guest(&daemon, "b", other));
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        let mut seen = number;
        let last = number + 2000;
        let started = Instant::now();
        while seen < last {
            while number < last && number < seen + 40 && a.send(&frame(1, 2, number + 1)) {
                number += 1;
            }
            for got in numbers(&mut b) {
                assert_eq!(got, seen + 1, "lost or doubled");
                seen = got;
            }
            assert!(started.elapsed() < PATIENCE, "{seen} of {last}");
        }
        assert_eq!(state(&daemon, "a"), "attached");
    }
}

#[test]
fn a_killed_data_process_is_not_noticed_by_guests() {
    for features in [SPLIT, PACKED] {
        let mut daemon = daemon(&["a", "b"]);
        let (mut a, mut b) = (guest(&daemon, "a", features), guest(&daemon, "b", features));
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        let (mut seen, mut repeated, mut lost) = (number, 0, 0);
        for round in 1..=4 {
            if round == 3 {
                // What is kept is known to the next supervisor, too.
                daemon.kill();
                daemon.start_again();
            }
            kill_process(daemon.data_process("vale0"));
            let (started, before) = (Instant::now(), number);
            let (mut back, mut heard, mut window) = (None, Instant::now(), seen);
            while back.is_none_or(|at: Instant| at.elapsed() < Duration::from_millis(50)) {
                while number < window + WINDOW && a.send(&frame(1, 2, number + 1)) {
                    number += 1;
                }
                for got in numbers(&mut b) {
                    repeated += u64::from(got <= seen);
                    lost += got.saturating_sub(seen + 1);
                    seen = seen.max(got);
                    (heard, window) = (Instant::now(), seen);
                    if started.elapsed() > Duration::from_millis(5) && got > before {
                        back.get_or_insert(heard);
                    }
                }
                if heard.elapsed() > Duration::from_millis(100) {
                    // What is in flight may be lost: one more, which will tell.
                    (heard, window) = (Instant::now(), (number + 1).saturating_sub(WINDOW));
                }
                let log = || daemon.log();
                assert!(started.elapsed() < PATIENCE, "no frames after kill {round}: {}", log());
                std::thread::yield_now();
            }
        }
        let limit = if features == PACKED { 0 } else { 4 * WINDOW };
        assert!(repeated <= limit, "{repeated} frames came twice");
        assert!(lost <= 4 * WINDOW, "{lost} frames were lost by four deaths");
        assert_eq!(state(&daemon, "a"), "attached");
    }
}

#[test]
fn regression_an_upgrade_loses_nothing_to_ports_that_come_back_last() {
    for features in [SPLIT, PACKED] {
        let daemon = daemon(&["a", "b"]);
        let (mut a, mut b) = (guest(&daemon, "a", features), guest(&daemon, "b", features));
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        let mut seen = number;
        for _ in 0..3 {
            std::thread::scope(|scope| {
                let upgrade = scope.spawn(|| daemon.ask("POST", "/v1/upgrade", &Value::Null));
                let (mut last, started) = (None, Instant::now());
                while last.is_none_or(|last| seen < last) {
                    let sender = || daemon.counters("a");
                    assert!(started.elapsed() < PATIENCE, "{seen} of {number}: {}", sender());
                    if last.is_none() && upgrade.is_finished() {
                        last = Some(number + 1000);
                    }
                    while number < seen + WINDOW && a.send(&frame(1, 2, number + 1)) {
                        number += 1;
                    }
                    for got in numbers(&mut b) {
                        assert_eq!(got, seen + 1, "lost or doubled");
                        seen = got;
                    }
                    std::thread::yield_now();
                }
                assert_eq!(upgrade.join().unwrap().0, 200);
            });
        }
    }
}

#[test]
fn a_port_waits_for_the_next_front_end_and_turns_a_second_away() {
    let mut daemon = daemon(&["a", "b", "c"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let second = UnixStream::connect(socket(&daemon, "a")).unwrap();
    assert!(say(&second, code::GET_FEATURES, &[], &[]));
    assert_eq!(reply(&second), None, "a second front end was not hung up on");
    until_frames_flow(&mut a, &mut b, &mut number);
    for _ in 0..3 {
        drop(a);
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "a") == "vacant");
        a = guest(&daemon, "a", PACKED);
        until_frames_flow(&mut a, &mut b, &mut number);
    }
    // One that comes at once is not turned away for its predecessor.
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
    // What came with b's messages, and is not kept, is closed by threads of its own.
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
            // One that died right after its last reply cannot know whether that left.
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
                // Nothing that toklat keeps is left.
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
        // Somebody else has taken the next frame, and is gone.
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
fn regression_rings_that_cannot_run_are_refused_as_they_are_said() {
    let daemon = daemon(&["a", "b"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let base = a.stop_queue(TRANSMIT);
    let size = |entries: u32| [TRANSMIT as u32, entries].map(u32::to_ne_bytes).concat();
    for entries in [0, 3, 100, 32_769, 65_536] {
        assert_ne!(ask(&a.socket, code::SET_VRING_NUM, &size(entries), &[]), 0, "{entries}");
    }
    a.must(code::SET_VRING_NUM, &size(128), &[]);
    let address = |at: [u64; 3]| words(&[TRANSMIT as u64, at[0], at[1], at[2], 0]);
    let good = [0x8000, 0x9000, 0xa000].map(|at| USER + at);
    for (part, at) in
        [(0, USER + MEMORY), (1, USER + MEMORY - 16), (2, USER - 8), (0, 0), (2, u64::MAX)]
    {
        let mut bad = good;
        bad[part] = at;
        assert_ne!(
            ask(&a.socket, code::SET_VRING_ADDR, &address(bad), &[]),
            0,
            "{part} at {at:#x}"
        );
        // QEMU does not ask whether that could be done, and may say another one before it starts the queue.
        assert!(say(&a.socket, code::SET_VRING_ADDR, &address(bad), &[]));
        a.must(code::SET_VRING_ADDR, &address(good), &[]);
    }
    a.start_queue(TRANSMIT, base);
    until_frames_flow(&mut a, &mut b, &mut number);
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

#[test]
fn regression_a_guest_without_a_link_is_interrupted_where_it_said_last() {
    let daemon = daemon(&["a"]);
    let mut a = guest(&daemon, "a", SPLIT);
    let path = "/v1/switches/vale0/ports/a";
    assert_eq!(daemon.ask("PATCH", path, &json!({ "link": false })).0, 200);
    a.queues[TRANSMIT].call = eventfd();
    let call = [a.queues[TRANSMIT].call.as_fd()];
    a.must(code::SET_VRING_CALL, &words(&[TRANSMIT as u64]), &call);
    was_signalled(&a.queues[TRANSMIT].call);
    a.queues[TRANSMIT].driver.want_interrupts(true);
    a.send(&frame(1, 2, 1));
    wait_until(|| was_signalled(&a.queues[TRANSMIT].call));
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
    // The receive queue's used ring, and buffers.
    assert!(logged.contains(&0) || logged.contains(&1), "{logged:?}");
    assert!(logged.iter().any(|page| *page >= 0x80), "{logged:?}");
}

/// Numbers of frames that hostile guests send, and more.
const OTHERS: u64 = 1 << 32;
/// Frames that the others have in flight while they are attacked.
const WINDOW: u64 = 40;

/// What a hostile front end does to its port.
type Attack = (&'static str, fn(&Daemon));

fn connect(daemon: &Daemon) -> UnixStream {
    UnixStream::connect(socket(daemon, "evil")).unwrap()
}

/// The port hangs up.
fn is_hung_up_on(socket: &UnixStream) {
    assert_eq!(reply(socket), None);
}

const ATTACKS: [Attack; 9] = [
    ("what is no message", |daemon| {
        let socket = connect(daemon);
        send_raw(&socket, &[0xa5; 4096]);
        is_hung_up_on(&socket);
    }),
    ("a message that never ends", |daemon| {
        let socket = connect(daemon);
        send_raw(&socket, &[code::SET_FEATURES, 1, 8].map(u32::to_ne_bytes).concat());
        send_raw(&socket, &[0; 7]);
        std::thread::sleep(Duration::from_millis(50));
    }),
    ("descriptors nobody asked for", |daemon| {
        let socket = connect(daemon);
        let fds = [socket.as_fd(), socket.as_fd()];
        assert!(say(&socket, code::GET_FEATURES, &[], &fds));
        is_hung_up_on(&socket);
    }),
    ("replies that are not read", |daemon| {
        let socket = connect(daemon);
        socket.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        while say(&socket, code::GET_FEATURES, &[], &[]) {}
    }),
    ("kicks before anything else, and a queue that is not there", |daemon| {
        let socket = connect(daemon);
        let kick = eventfd();
        assert!(say(&socket, code::SET_VRING_KICK, &words(&[0]), &[kick.as_fd()]));
        assert!(say(&socket, code::GET_VRING_BASE, &words(&[0]), &[]));
        assert_eq!(reply(&socket).unwrap().len(), 8);
        assert!(say(&socket, code::SET_VRING_KICK, &words(&[99]), &[kick.as_fd()]));
        is_hung_up_on(&socket);
    }),
    ("memory that overlaps, that is none, and that is too short", |daemon| {
        let (evil, file) = (guest(daemon, "evil", SPLIT), memfd(4096));
        let overlapping = words(&[2, 0, 4096, USER, 0, 0, 4096, USER + 8192, 0]);
        let fds = [file.as_fd(), file.as_fd()];
        assert_eq!(ask(&evil.socket, code::SET_MEM_TABLE, &overlapping, &fds), 1);
        let endless = words(&[1, 0, 1 << 60, USER, 0]);
        assert_eq!(ask(&evil.socket, code::SET_MEM_TABLE, &endless, &fds[..1]), 1);
        let device = std::fs::File::open("/dev/zero").unwrap();
        let table = words(&[1, 0, 4096, USER, 0]);
        assert_eq!(ask(&evil.socket, code::SET_MEM_TABLE, &table, &[device.as_fd()]), 1);
        // Without the queues' memory.
        assert_eq!(ask(&evil.socket, code::SET_MEM_TABLE, &table, &fds[..1]), 1);
    }),
    ("a descriptor that leads nowhere", |daemon| {
        let mut evil = guest(daemon, "evil", PACKED);
        let buffer = Buffer { at: MEMORY - 10, len: 100, writable: false };
        evil.queues[TRANSMIT].driver.add(&[buffer], None).unwrap();
        evil.queues[TRANSMIT].publish();
        wait_until(|| was_signalled(&evil.queues[TRANSMIT].error));
        assert!(daemon.counters("evil")["faults"].as_u64().unwrap() > 0);
    }),
    ("a chain that is a loop", |daemon| {
        let mut evil = guest(daemon, "evil", SPLIT);
        let queue = &mut evil.queues[TRANSMIT];
        let buffer = Buffer { at: 0x8_0000, len: 64, writable: false };
        queue.driver.add(&[buffer], None).unwrap();
        // Descriptor 0: the next one is descriptor 0.
        let descriptor = evil.memory.bytes(queue.layout.descriptors, 16).unwrap();
        descriptor.write(12, 1u16);
        descriptor.write(14, 0u16);
        queue.publish();
        wait_until(|| was_signalled(&evil.queues[TRANSMIT].error));
    }),
    ("memory that is cut off in full traffic", |daemon| {
        let mut evil = guest(daemon, "evil", SPLIT);
        // With what the others have in flight, no more than b has buffers for.
        for n in 0..BUFFERS as u64 - WINDOW {
            evil.send(&frame(9, 2, OTHERS + n));
        }
        // Unmapped in this process first, which has no guard.
        let FrontEnd { socket, file, queues, memory, .. } = evil;
        let [receive, transmit] = queues;
        let events = [receive.error, transmit.error];
        drop((receive.driver, transmit.driver, memory));
        rustix::fs::ftruncate(&file, 0).unwrap();
        rustix::io::write(&transmit.kick, &1u64.to_ne_bytes()).unwrap();
        wait_until(|| events.iter().any(was_signalled));
        drop(socket);
    }),
];

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn hostile_front_ends_do_no_harm_to_others() {
    let mut daemon = daemon(&["a", "b", "evil"]);
    let pid = daemon.data_process("vale0");
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", PACKED));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let mut seen = number;
    for (what, attack) in ATTACKS {
        std::thread::scope(|scope| {
            let attack = scope.spawn(|| attack(&daemon));
            while !attack.is_finished() {
                while number < seen + WINDOW && a.send(&frame(1, 2, number + 1)) {
                    number += 1;
                }
                for got in numbers(&mut b) {
                    if got < OTHERS {
                        assert_eq!(got, seen + 1, "{what}: {}", daemon.counters("b"));
                        seen = got;
                    }
                }
                numbers(&mut a);
                std::thread::yield_now();
            }
            attack.join().unwrap_or_else(|_| panic!("{what}: {}", daemon.log()));
        });
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "evil") == "vacant");
        let mut next = guest(&daemon, "evil", SPLIT);
        let mut other = OTHERS;
        until_frames_flow_from(8, &mut next, &mut b, &mut other);
        drop(next);
        until_frames_flow(&mut a, &mut b, &mut number);
        seen = number;
        numbers(&mut b);
    }
    assert_eq!(daemon.data_process("vale0"), pid, "{}", daemon.log());
}

#[test]
fn interrupts_are_held_back_and_none_is_lost() {
    let daemon = daemon(&["a", "b"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let path = "/v1/switches/vale0/ports/b";
    for (interrupts, least, most_a_second) in [
        (json!({}), 30, 1_000_000),
        (json!({ "max_rate": 50 }), 1, 51),
        (json!({ "max_delay_us": 20_000, "adaptive": true }), 1, 150),
    ] {
        assert_eq!(daemon.ask("PATCH", path, &json!({ "interrupts": interrupts })).0, 200);
        was_signalled(&b.queues[RECEIVE].call);
        let (mut signals, started) = (0, Instant::now());
        while started.elapsed() < Duration::from_millis(300) || signals < least {
            assert!(started.elapsed() < PATIENCE, "{signals} with {interrupts}");
            number += 1;
            a.send(&frame(1, 2, number));
            b.queues[RECEIVE].driver.want_interrupts(true);
            std::thread::sleep(Duration::from_micros(300));
            signals += u32::from(was_signalled(&b.queues[RECEIVE].call));
            numbers(&mut b);
        }
        let most = 5.0 + started.elapsed().as_secs_f64() * f64::from(most_a_second);
        assert!(f64::from(signals) < most, "{signals} with {interrupts}");
        // A last frame's interrupt is late, but comes.
        numbers(&mut b);
        b.queues[RECEIVE].driver.want_interrupts(true);
        was_signalled(&b.queues[RECEIVE].call);
        a.send(&frame(1, 2, number));
        wait_until(|| was_signalled(&b.queues[RECEIVE].call));
    }
}

#[test]
fn a_driver_that_has_looked_is_not_interrupted_for_sent_frames() {
    let mut daemon = daemon(&["a", "b"]);
    for queues in [SPLIT, PACKED] {
        let (mut a, mut b) = (guest(&daemon, "a", queues), guest(&daemon, "b", queues));
        let mut number = 0;
        until_frames_flow(&mut a, &mut b, &mut number);
        let interrupts = json!({ "interrupts": { "max_sent_delay_us": 50_000 } });
        assert_eq!(daemon.ask("PATCH", "/v1/switches/vale0/ports/a", &interrupts).0, 200);
        for looks in [false, true] {
            a.reclaim();
            let sending = &mut a.queues[TRANSMIT];
            sending.driver.want_interrupts(true);
            was_signalled(&sending.call);
            number += 1;
            a.send(&frame(1, 2, number));
            wait_until(|| numbers(&mut b).contains(&number));
            if looks {
                wait_until(|| a.reclaim() > 0);
                let sending = &mut a.queues[TRANSMIT];
                sending.driver.want_interrupts(true);
                std::thread::sleep(Duration::from_millis(200));
                assert!(!was_signalled(&sending.call), "it was interrupted, though it had looked");
            } else {
                wait_until(|| was_signalled(&a.queues[TRANSMIT].call));
            }
        }
        drop(a);
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "a") == "vacant");
        drop(b);
        daemon.wait_for("the port to be vacant", |daemon| state(daemon, "b") == "vacant");
    }
}

#[test]
fn under_heavy_traffic_guests_are_not_asked_for_kicks_and_no_frame_stays() {
    let daemon = daemon(&["a", "b"]);
    let (mut a, mut b) = (guest(&daemon, "a", SPLIT), guest(&daemon, "b", SPLIT));
    let mut number = 0;
    until_frames_flow(&mut a, &mut b, &mut number);
    let mut seen = number;
    for port in ["a", "b"] {
        let interrupts = json!({ "interrupts": { "max_delay_us": 20_000, "adaptive": true } });
        let path = format!("/v1/switches/vale0/ports/{port}");
        assert_eq!(daemon.ask("PATCH", &path, &interrupts).0, 200);
    }
    let before = daemon.counters("a");
    let first = number;
    // A frame every few hundred microseconds: each would be a kick.
    for _ in 0..2000 {
        a.reclaim();
        a.queues[TRANSMIT].driver.want_interrupts(true);
        b.queues[RECEIVE].driver.want_interrupts(true);
        number += u64::from(a.send(&frame(1, 2, number + 1)));
        std::thread::sleep(Duration::from_micros(200));
        for got in numbers(&mut b) {
            assert_eq!(got, seen + 1);
            seen = got;
        }
    }
    wait_until(|| {
        seen = numbers(&mut b).last().copied().unwrap_or(seen);
        seen == number
    });
    let after = daemon.counters("a");
    let kicks = after["wakeups"].as_u64().unwrap() - before["wakeups"].as_u64().unwrap();
    assert!(kicks < (number - first) / 2, "{kicks} kicks for {} frames", number - first);
}
