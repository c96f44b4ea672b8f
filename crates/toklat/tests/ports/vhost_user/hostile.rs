//! Front ends and guests that break every rule, and other guests that must not notice.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use dataplane::attach::virtio::message::code;
use driver::virtio::Buffer;

use super::{
    PACKED, SPLIT, WINDOW, daemon, guest, numbers, socket, state, until_frames_flow,
    until_frames_flow_from, wait_until,
};
use harness::Daemon;
use harness::frames::frame;
use harness::front_end::{
    BUFFERS, FrontEnd, MEMORY, TRANSMIT, USER, ask, eventfd, memfd, reply, say, send_raw,
    was_signalled, words,
};

/// Numbers of frames that hostile guests send, and more.
const OTHERS: u64 = 1 << 32;

/// The name of an attack, and the function by which a hostile front end attacks its port.
type Attack = (&'static str, fn(&Daemon));

fn connect(daemon: &Daemon) -> UnixStream {
    UnixStream::connect(socket(daemon, "evil")).unwrap()
}

/// Checks that the port closes the connection.
fn is_hung_up_on(socket: &UnixStream) {
    assert_eq!(reply(socket), None);
}

const ATTACKS: [Attack; 9] = [
    ("what is not a message", |daemon| {
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
        // The table does not include the queues' memory.
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
        // Descriptor 0 names descriptor 0 as the next one.
        let descriptor = evil.memory.bytes(queue.layout.descriptors, 16).unwrap();
        descriptor.write(12, 1u16);
        descriptor.write(14, 0u16);
        queue.publish();
        wait_until(|| was_signalled(&evil.queues[TRANSMIT].error));
    }),
    ("memory that is cut off in full traffic", |daemon| {
        let mut evil = guest(daemon, "evil", SPLIT);
        // In flight are no more frames, the others' included, than `b` has buffers for.
        for n in 0..BUFFERS as u64 - WINDOW {
            evil.send(&frame(9, 2, OTHERS + n));
        }
        // Unmap the memory in this process first: it has no guard for lost pages.
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
        // QEMU does not ask whether the address was good, and may set another one before it starts
        // the queue.
        assert!(say(&a.socket, code::SET_VRING_ADDR, &address(bad), &[]));
        a.must(code::SET_VRING_ADDR, &address(good), &[]);
    }
    a.start_queue(TRANSMIT, base);
    until_frames_flow(&mut a, &mut b, &mut number);
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
