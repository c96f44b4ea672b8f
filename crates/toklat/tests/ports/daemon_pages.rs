//! A port's owner withholds pages of its memory while the switch accesses them. The switch
//! identifies the user, and no other port loses a frame.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netring::layout::Fault;
use netring::{Port, PortError, Region};
use rustix::fs::{FallocateFlags, fallocate};
use serde_json::Value;

use harness::Daemon;
use harness::frames::{frame, receive, send, until_traffic_flows};
use harness::users::{as_user, may_be_others, refusal};

const STRANGER: u32 = 4001;
const OTHER: u32 = 4002;
/// The number of buffers of a region of 240 MiB. Freeing that takes tens of milliseconds.
const BUFFERS: u32 = 118_000;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// Takes the pages of a region away and gives them back, until told to stop.
fn hold_pages_back(region: &Region, stop: &AtomicBool) {
    let (file, geometry) = (region.file().unwrap(), region.geometry());
    // The pages with cursors are left alone, because losing them would break the rings.
    let at = geometry.buf_offset();
    let len = u64::from(geometry.buf_num) * u64::from(geometry.buf_size);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    while !stop.load(Ordering::Relaxed) {
        fallocate(file, FallocateFlags::empty(), at, len).unwrap();
        fallocate(file, punch, at, len).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Honest traffic: each frame is sent after the one before has arrived, so every loss is seen.
struct Honest {
    a: Port,
    b: Port,
    sent: u64,
}

impl Honest {
    fn step(&mut self, daemon: &mut Daemon) {
        self.sent += 1;
        // The frame goes to all ports, the attacker's included.
        let mut all = frame(1, 2, self.sent);
        all[..6].fill(0xff);
        assert!(send(&mut self.a, &all), "there is room");
        let (b, sent) = (&mut self.b, self.sent);
        daemon.wait_for("an honest frame", |_| receive(b).contains(&sent));
        receive(&mut self.a);
    }
}

fn attack(sends: bool) {
    let mut daemon = Daemon::start_for_all(&[]);
    // The rings have room for all frames that the attacker sends while the test does something
    // else.
    let open = |name| harness::small(name).slots(2048).directory(daemon.dir()).open().unwrap();
    let (mut a, mut b) = (open("vale0:a"), open("vale0:b"));
    let mut sent = 0;
    until_traffic_flows(&mut a, &mut b, &mut sent);
    let open = || {
        let open = harness::small("vale0:c").directory(daemon.dir());
        open.extra_buffers(BUFFERS).open().unwrap()
    };
    let victim = as_user(STRANGER, open);
    let region = victim.region().unwrap().clone();
    let mut honest = Honest { a, b, sent };
    let stop = AtomicBool::new(false);
    let (fault, _victim) = std::thread::scope(|scope| {
        scope.spawn(|| hold_pages_back(&region, &stop));
        let fault = scope.spawn(|| until_at_fault(victim, sends, &stop));
        while !fault.is_finished() {
            honest.step(&mut daemon);
        }
        fault.join().unwrap()
    });
    assert!(matches!(fault, PortError::Fault(Fault::SlowMemory)), "{fault:?}");
    named(&mut daemon, &mut honest);
}

fn until_at_fault(mut victim: Port, sends: bool, stop: &AtomicBool) -> (PortError, Port) {
    let fault = loop {
        if sends {
            send_some(&mut victim);
        }
        victim.receive(64).count();
        if let Err(fault) = victim.flush() {
            break fault;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    stop.store(true, Ordering::Relaxed);
    (fault, victim)
}

/// Sends frames to station 2. Their memory may have been taken away.
fn send_some(port: &mut Port) {
    let mut batch = port.send(4);
    (0..4).for_each(|_| {
        batch.push(&[frame(3, 2, 0).as_slice(), &[0; 1400]].concat());
    });
}

/// Checks what the log and the API report about a user at fault.
fn named(daemon: &mut Daemon, honest: &mut Honest) {
    daemon.wait_for("the log's line", |daemon| {
        daemon
            .log()
            .contains(&format!("user {STRANGER}: is at fault, with 1 ports: to touch its memory"))
    });
    let info = daemon.get("/v1/switches/vale0/ports/c");
    assert_eq!(info["state"], "failed", "{info}");
    assert!(harness::text(&info["failure"]).contains("slow_touches"), "{info}");
    assert!(number(&daemon.counters("c")["slow_touches"]) >= 4);
    let (_, why) = refusal(daemon.open_as(STRANGER, "vale0:another"));
    assert!(why.contains("Punch no holes"), "{why}");
    drop(daemon.open_as(OTHER, "vale0:others").unwrap());
    for name in ["a", "b"] {
        let counters = daemon.counters(name);
        assert_eq!(number(&counters["slow_touches"]), 0, "{counters}");
        assert_eq!(daemon.get(&format!("/v1/switches/vale0/ports/{name}"))["state"], "attached");
    }
    (0..100).for_each(|_| honest.step(daemon));
}

/// Objective: an owner who takes pages away while they are stored to is found and at fault; its
/// neighbours, who get and send the same frames, lose none and are not blamed.
#[test]
fn regression_a_receiver_that_holds_pages_back_is_found_and_out_of_service() {
    let test = "regression_a_receiver_that_holds_pages_back_is_found_and_out_of_service";
    if may_be_others(test) {
        attack(false);
    }
}

/// Objective: the same of an owner whose frames are read: its receiver, in whose memory they are
/// stored at the same time, is not blamed.
#[test]
fn regression_a_sender_that_holds_pages_back_is_found_and_its_receiver_not_blamed() {
    let test = "regression_a_sender_that_holds_pages_back_is_found_and_its_receiver_not_blamed";
    if may_be_others(test) {
        attack(true);
    }
}
