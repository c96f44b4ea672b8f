//! Clients that break their rings: the port fails with a named fault, other ports lose no frame,
//! and a reset repairs it. Runs with a data process and an inline switch; the ports are those of
//! the client library.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use inline::Inline;
use netring::PortError;
use netring::layout::{Fault, SlotWord, slot_flags};
use port::Nanos;
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::config::{Attachment, Policy, PortConfig};
use toklat_dataplane::control::{Answer, Command, VERSION};

use process::client::{Client, SLOTS, frame, serve, wait};
use process::{ask, in_child};

mod process;

/// Breaks the send ring of a port that has no fault.
fn break_rings(client: &Client, fault: Fault) {
    let ring = client.ring(false);
    let head = ring.control.owner.0.own() % SLOTS;
    let good = ring.slots[head as usize].load();
    let (word, slots) = match fault {
        Fault::BadHead => return ring.control.owner.0.publish(SLOTS),
        Fault::BadBuffer => (SlotWord { buf: u32::MAX, len: 60, flags: 0 }, 1),
        Fault::BadLength => (SlotWord { len: u16::MAX, ..good }, 1),
        Fault::EndlessFrame => {
            (SlotWord { len: 60, flags: slot_flags::MOREFRAG, ..good }, SLOTS / 2 + 10)
        }
        _ => (SlotWord { flags: slot_flags::INDIRECT, ..good }, 1),
    };
    for i in 0..slots {
        ring.slots[((head + i) % SLOTS) as usize].store(word);
    }
    ring.control.owner.0.publish((head + slots) % SLOTS);
}

#[test]
fn broken_rings_fail_their_port_alone_until_it_is_reset() {
    if let Some(status) = in_child("broken_rings_fail_their_port_alone_until_it_is_reset") {
        return assert!(status.success(), "{status}");
    }
    let [mut a, mut b, mut bad] = [0, 1, 2].map(|id| Client::new(id, Policy::default()));
    let (thread, connection) = serve(&[&a, &b, &bad], 10);
    b.send(&frame(1, 2)).unwrap();
    assert_eq!((a.receive(1), bad.receive(1)), (1, 1), "flooded");
    let faults =
        [Fault::BadHead, Fault::BadBuffer, Fault::BadLength, Fault::EndlessFrame, Fault::Indirect];
    for fault in faults {
        break_rings(&bad, fault);
        assert_eq!(bad.fault(), Some(fault));
        assert!(wait(|| bad.was_kicked()), "the owner of rings with {fault:?} is woken");
        for _ in 0..50 {
            a.send(&frame(2, 1)).unwrap();
        }
        assert_eq!(b.receive(50), 50, "nobody else loses a frame");
        bad.reset();
        bad.send(&frame(1, 3)).unwrap();
        assert_eq!(a.receive(1), 1, "after {fault:?} the port sends again");
        a.send(&frame(3, 1)).unwrap();
        assert_eq!(bad.receive(1), 1, "and receives");
    }
    // A receive ring is only checked when the switch needs room in it.
    bad.ring(true).control.owner.0.publish(SLOTS);
    for _ in 0..SLOTS {
        a.send(&frame(3, 1)).unwrap();
    }
    assert_eq!(bad.fault(), Some(Fault::BadHead));
    assert!(wait(|| bad.was_kicked()), "who waits for frames hears that none will come");
    // Otherwise the rest of the port's frames would arrive after the reset.
    assert!(wait(|| a.has_drained()), "the sender is not held up");
    bad.reset();
    a.send(&frame(3, 1)).unwrap();
    assert_eq!(bad.receive(1), 1);
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

#[test]
fn slots_that_change_while_they_are_read_do_no_harm_to_others() {
    if let Some(status) = in_child("slots_that_change_while_they_are_read_do_no_harm_to_others") {
        return assert!(status.success(), "{status}");
    }
    let [mut a, mut b, mut bad] = [0, 1, 2].map(|id| Client::new(id, Policy::default()));
    let (thread, connection) = serve(&[&a, &b, &bad], 10);
    b.send(&frame(1, 2)).unwrap();
    assert_eq!((a.receive(1), bad.receive(1)), (1, 1), "flooded");
    let (ring, done) = (bad.ring(false), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut number = 1u64;
            while !done.load(Ordering::Relaxed) {
                // Arbitrary 64 bits, from a linear congruential generator.
                number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let at = (number >> 40) as usize % SLOTS as usize;
                ring.slots[at].store(SlotWord::from_bits(number));
                ring.control.owner.0.publish((number >> 33) as u32 % (SLOTS + 1));
                let wanted = &ring.control.owner_flags.0.reset_wanted;
                wanted.store((number >> 50) as u32, Ordering::Relaxed);
            }
        });
        for _ in 0..20 {
            for _ in 0..50 {
                a.send(&frame(2, 1)).unwrap();
            }
            // Port b may receive frames of the bad port, too.
            assert!(b.receive(50) >= 50, "nobody else loses a frame");
            a.port.receive(SLOTS as usize).count();
            a.port.flush().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(wait(|| bad.is_reset()), "what it asked for last is done, in whatever state it was");
    break_rings(&bad, Fault::BadHead);
    assert!(bad.fault().is_some());
    bad.reset();
    bad.send(&frame(1, 3)).unwrap();
    assert!(a.receive(1) >= 1, "the port is back");
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

#[test]
fn an_inline_switch_resets_a_port_that_asks_between_turns() {
    let mut switch = Inline::new(SwitchConfig { max_ports: 4, ..Default::default() }).unwrap();
    let mut clients = [0, 1].map(|id| {
        let client = Client::new(id, Policy::default());
        switch.add_rings("p", Policy::default(), &client.port.rings()).unwrap();
        client
    });
    let [bad, other] = &mut clients;
    for fault in [Fault::BadHead, Fault::BadBuffer, Fault::EndlessFrame] {
        break_rings(bad, fault);
        assert_eq!(switch.turn(Nanos(0)), 0);
        assert!(matches!(bad.port.flush(), Err(PortError::Fault(seen)) if seen == fault));
        other.send(&frame(9, 2)).unwrap();
        assert_eq!(switch.turn(Nanos(0)), 1, "the other sends on");
        bad.port.reset().unwrap();
        let turns = [(); 2].map(|()| switch.turn(Nanos(0)));
        assert_eq!(turns, [0, 0], "one of as many turns as there are ports hears it");
        bad.send(&frame(2, 1)).unwrap();
        assert_eq!(switch.turn(Nanos(0)), 1);
        assert_eq!(other.port.receive(9).count(), 1, "after {fault:?} the port sends again");
        other.send(&frame(1, 2)).unwrap();
        assert_eq!(switch.turn(Nanos(0)), 1);
        assert_eq!(bad.port.receive(9).count(), 1, "and receives");
        bad.port.flush().unwrap();
        other.port.flush().unwrap();
    }
    assert_eq!(switch.stats(0).faults, 3);
}

#[test]
fn regression_a_reset_waits_for_stalled_frames() {
    if let Some(status) = in_child("regression_a_reset_waits_for_stalled_frames") {
        return assert!(status.success(), "{status}");
    }
    let mut a = Client::new(0, Policy::default());
    let mut b = Client::new(1, Policy { lossless: true, ..Policy::default() });
    let (thread, connection) = serve(&[&a, &b], 2000);
    b.send(&frame(1, 2)).unwrap();
    assert_eq!(a.receive(1), 1);
    // B makes no room: the last frames stay with their sender, whose rings then break.
    let (mut left, end) = (SLOTS + 20, Instant::now() + Duration::from_secs(30));
    while left > 0 && Instant::now() < end {
        let data = frame(2, 1);
        left -= a.port.send(left as usize).fill(left as usize, |w| w.copy_in(&data)) as u32;
        let _ = a.port.flush();
    }
    assert_eq!(left, 0);
    std::thread::sleep(Duration::from_millis(20));
    let ring = a.ring(true);
    ring.control.owner.0.publish(SLOTS);
    for _ in 0..SLOTS {
        b.send(&frame(1, 2)).unwrap();
    }
    assert_eq!(a.fault(), Some(Fault::BadHead));
    let started = Instant::now();
    a.reset();
    assert!(started.elapsed() > Duration::from_millis(100), "frames waited");
    assert_eq!(a.ring(false).control.core.0.observe(), 0, "all rings as new");
    assert_eq!(b.receive(SLOTS as usize - 1), SLOTS as usize - 1);
    for _ in 0..3 * SLOTS {
        a.send(&frame(2, 1)).unwrap();
        assert_eq!(b.receive(1), 1, "the port works on");
    }
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

#[test]
fn regression_a_successor_knows_of_the_error_state() {
    if let Some(status) = in_child("regression_a_successor_knows_of_the_error_state") {
        return assert!(status.success(), "{status}");
    }
    let [mut a, mut bad] = [0, 1].map(|id| Client::new(id, Policy::default()));
    let (thread, connection) = serve(&[&a, &bad], 10);
    break_rings(&bad, Fault::BadBuffer);
    assert_eq!(bad.fault(), Some(Fault::BadBuffer));
    assert_eq!(ask(&connection, &Command::RemovePort { id: 1 }, &[]), Answer::Done);
    // Frames that the port sends from here on must not go out.
    bad.ring(false).control.owner.0.publish(5);
    bad.attach(&connection, true);
    assert!(wait(|| bad.was_kicked()), "what the predecessor owed");
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(a.port.receive(SLOTS as usize).count(), 0);
    bad.reset();
    bad.send(&frame(1, 3)).unwrap();
    assert_eq!(a.receive(1), 1);
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

#[test]
fn a_monitor_with_send_rings_and_another_version_are_refused() {
    if let Some(status) = in_child("a_monitor_with_send_rings_and_another_version_are_refused") {
        return assert!(status.success(), "{status}");
    }
    let a = Client::new(0, Policy::default());
    let (thread, connection) = serve(&[&a], 10);
    let Attachment::Ring(ring) = a.config.attachment.clone() else { unreachable!() };
    let attachment = Attachment::Monitor { ring, of: 0, tx: true, rx: true };
    let config = PortConfig { attachment, ..a.config.clone() };
    let command = Command::AddPort { id: 1, config, resume: false };
    let fds = [a.region.file().unwrap(), a.switch_end.as_fd()];
    let answer = ask(&connection, &command, &fds);
    assert!(matches!(&answer, Answer::Failed { reason } if reason.contains("monitor")));
    assert!(matches!(
        ask(&connection, &Command::Hello { version: VERSION + 1 }, &[]),
        Answer::Hello { .. }
    ));
    let gone = toklat_dataplane::control::receive::<Answer>(&connection);
    assert!(gone.is_err(), "told our version, then left");
    drop(thread);
}
