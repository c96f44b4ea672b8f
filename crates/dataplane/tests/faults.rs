//! Clients that break their rings: the port fails with a name, nobody else loses a frame, a reset
//! brings it back. Against a data process; the ports are those of the client library.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabric::Policy;
use frame::Mac;
use ring::layout::{Fault, RingMemory, SlotWord, slot_flags};
use ring::{Port, PortError, Region, RegionConfig};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use toklat_dataplane::RingAttach;
use toklat_dataplane::config::{Attachment, Idle, PortConfig};
use toklat_dataplane::control::{Answer, Command};

use process::{ask, in_child, start};

mod process;

const SLOTS: u32 = 128;

/// A port of the data process, and what its owner could do to it behind the library's back.
struct Client {
    port: Port,
    region: std::sync::Arc<Region>,
    token: OwnedFd,
    switch_end: OwnedFd,
    config: PortConfig,
    id: u16,
}

impl Client {
    /// Made before the process is confined.
    fn new(id: u16, policy: Policy) -> Self {
        let region = Region::create(RegionConfig::ports(1, 1, SLOTS)).unwrap();
        let port = Port::inline(&region, "p", 1, 1, SLOTS).unwrap();
        let ring::Rings { geometry, tx, rx, buf_usable, .. } = port.rings();
        let attachment = Attachment::Ring(RingAttach { geometry, tx, rx, buf_usable });
        let config = PortConfig { name: format!("p{id}"), policy, worker: None, attachment };
        let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
        let (token, switch_end) = rustix::net::socketpair(kind.0, kind.1, kind.2, None).unwrap();
        Self { port, region, token, switch_end, config, id }
    }

    fn attach(&self, connection: &OwnedFd, resume: bool) {
        let command = Command::AddPort { id: self.id, config: self.config.clone(), resume };
        let fds = [self.region.file().unwrap(), self.switch_end.as_fd()];
        let answer = ask(connection, &command, &fds);
        assert!(matches!(answer, Answer::Added { .. }), "{answer:?}");
    }

    fn ring(&self, receive: bool) -> RingMemory {
        let rings = self.port.rings();
        let spec = if receive { rings.rx } else { rings.tx };
        RingMemory::of(&rings.mapping, &rings.geometry, spec.first, spec.slots).unwrap()
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), PortError> {
        self.port.send(1).fill(1, |window| window.copy_in(frame));
        self.port.flush()
    }

    /// What it was sent until `count` came, or time is up.
    fn receive(&mut self, count: usize) -> usize {
        let mut got = 0;
        wait(|| {
            got += self.port.receive(SLOTS as usize).count();
            let _ = self.port.flush();
            got >= count
        });
        got
    }

    fn fault(&mut self) -> Option<Fault> {
        let mut seen = None;
        wait(|| match self.port.flush() {
            Err(PortError::Fault(fault)) => {
                seen = Some(fault);
                true
            }
            _ => false,
        });
        seen
    }

    /// Resets the port, and waits until the data process has done so.
    fn reset(&mut self) {
        self.port.reset().unwrap();
        let _ = rustix::net::send(&self.token, &[1], rustix::net::SendFlags::DONTWAIT);
        let control = self.ring(false).control;
        let wanted = control.owner_flags.0.reset_wanted.load(Ordering::Relaxed);
        assert!(
            wait(|| control.core_flags.0.reset_done.load(Ordering::Acquire) == wanted),
            "reset"
        );
        self.port.flush().unwrap();
    }

    /// True if a kick came.
    fn was_kicked(&self) -> bool {
        let flags = rustix::net::RecvFlags::DONTWAIT;
        rustix::net::recv(&self.token, &mut [0u8; 64], flags).is_ok_and(|(_, bytes)| bytes > 0)
    }
}

fn wait(mut until: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        if until() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

fn frame(to: u32, from: u32) -> Vec<u8> {
    let mut frame = vec![0x55; 60];
    frame[..6].copy_from_slice(&Mac::local(to).octets());
    frame[6..12].copy_from_slice(&Mac::local(from).octets());
    frame
}

/// A data process with these ports. Their owners do not kick: its worker polls.
fn serve(clients: &[&Client], stall_timeout_ms: u32) -> (std::thread::JoinHandle<()>, OwnedFd) {
    let (thread, connection) = start();
    let idle = Idle::Poll;
    let command = Command::SetSwitch { idle, batch: 64, fdb_ageing_s: 300, stall_timeout_ms };
    assert_eq!(ask(&connection, &command, &[]), Answer::Done);
    clients.iter().for_each(|client| client.attach(&connection, false));
    (thread, connection)
}

/// Breaks the send ring of a port in order.
fn break_rings(client: &Client, fault: Fault) {
    let ring = client.ring(false);
    let head = ring.control.owner.0.own();
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
    // A receive ring is looked into when somebody sends there.
    bad.ring(true).control.owner.0.publish(SLOTS);
    a.send(&frame(3, 1)).unwrap();
    assert_eq!(bad.fault(), Some(Fault::BadHead));
    assert!(wait(|| bad.was_kicked()), "who waits for frames hears that none will come");
    bad.reset();
    a.send(&frame(3, 1)).unwrap();
    assert_eq!(bad.receive(1), 1);
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

#[test]
fn slots_that_change_while_they_are_read_harm_nobody_else() {
    if let Some(status) = in_child("slots_that_change_while_they_are_read_harm_nobody_else") {
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
                // Any 64 bits: a linear congruential generator's.
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
            // What the bad port sends may reach b, too.
            assert!(b.receive(50) >= 50, "nobody else loses a frame");
            a.port.receive(SLOTS as usize).count();
            a.port.flush().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    break_rings(&bad, Fault::BadHead);
    assert!(bad.fault().is_some());
    bad.reset();
    bad.send(&frame(1, 3)).unwrap();
    assert!(a.receive(1) >= 1, "the port is back");
    assert_eq!(ask(&connection, &Command::Stop, &[]), Answer::Done);
    thread.join().unwrap();
}

#[test]
fn regression_a_reset_waits_for_stalled_frames() {
    if let Some(status) = in_child("regression_a_reset_waits_for_stalled_frames") {
        return assert!(status.success(), "{status}");
    }
    let mut a = Client::new(0, Policy::default());
    let mut b = Client::new(1, Policy { lossless: true, ..Policy::default() });
    let (thread, connection) = serve(&[&a, &b], 300);
    b.send(&frame(1, 2)).unwrap();
    assert_eq!(a.receive(1), 1);
    // B makes no room: the last frames stay with their sender, whose rings break meanwhile.
    let (mut left, end) = (SLOTS + 20, Instant::now() + Duration::from_secs(1));
    while left > 0 && Instant::now() < end {
        let data = frame(2, 1);
        left -= a.port.send(left as usize).fill(left as usize, |w| w.copy_in(&data)) as u32;
        let _ = a.port.flush();
    }
    assert_eq!(left, 0);
    std::thread::sleep(Duration::from_millis(20));
    let ring = a.ring(true);
    ring.control.owner.0.publish(SLOTS);
    b.send(&frame(1, 2)).unwrap();
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
    // What it may send now must not go out.
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
    assert!(matches!(ask(&connection, &Command::Hello { version: 9 }, &[]), Answer::Hello { .. }));
    let gone = toklat_dataplane::control::receive::<Answer>(&connection);
    assert!(gone.is_err(), "told our version, then left");
    drop(thread);
}
