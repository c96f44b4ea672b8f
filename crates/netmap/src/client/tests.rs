use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

use netring::layout::{RingHeader, SlotWord, slot_flags};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::ring::Ring;
use super::*;
use crate::abi::{Header, Legacy, OptionHeader, Register, flags, mode, name_of, option, reqtype};
use crate::broker::{Accounts, Attached, Broker, Charge, Effect, Facts, Held, Interface, Outcome};
use crate::wire::{Answer, Ask, kind};

/// A program's memory, which starts at [`BASE`].
struct Fake(RefCell<Vec<u8>>);

const BASE: u64 = 0x1000;

impl Fake {
    fn new() -> Self {
        Self(RefCell::new(vec![0; 0x10000]))
    }

    fn put(&self, at: u64, value: &(impl IntoBytes + zerocopy::Immutable)) -> u64 {
        self.write(at, value.as_bytes()).unwrap();
        at
    }

    fn get<T: FromBytes>(&self, at: u64) -> T {
        let mut bytes = vec![0; size_of::<T>()];
        self.read(at, &mut bytes).unwrap();
        T::read_from_bytes(&bytes).ok().unwrap()
    }

    fn range(&self, at: u64, len: usize) -> Result<std::ops::Range<usize>, Errno> {
        let start = usize::try_from(at.checked_sub(BASE).ok_or(Errno::FAULT)?).unwrap();
        let good = start + len <= self.0.borrow().len();
        good.then_some(start..start + len).ok_or(Errno::FAULT)
    }
}

impl UserMemory for Fake {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        let range = self.range(at, into.len())?;
        into.copy_from_slice(&self.0.borrow()[range]);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let range = self.range(at, bytes.len())?;
        self.0.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
    }
}

const HEADER: u64 = BASE + 0x100;
const BODY: u64 = BASE + 0x200;
const OPTION: u64 = BASE + 0x400;

fn header(reqtype: u16, options: u64, body: u64) -> Header {
    Header { version: 14, reqtype, reserved: 0, name: name_of("vale0:a"), options, body }
}

fn given(reqtype: u32, next: u64) -> OptionHeader {
    OptionHeader { next, reqtype, status: 7, size: 0 }
}

/// Returns an answer of success.
fn well(question: &mut Question) -> Result<Answer, Errno> {
    Ok(Answer::to(&question.ask))
}

/// Carries out a `REGISTER` with a list of these options.
fn with_options(reqtypes: &[u32], last_next: u64) -> (Result<(), Errno>, Vec<u32>) {
    let user = Fake::new();
    let at = |n: usize| OPTION + 128 * n as u64;
    for (n, reqtype) in reqtypes.iter().enumerate() {
        let next = if n + 1 == reqtypes.len() { last_next } else { at(n + 1) };
        user.put(at(n), &given(*reqtype, next));
    }
    user.put(HEADER, &header(reqtype::REGISTER, OPTION, BODY));
    let done = control(&user, HEADER, well);
    let status = |n| user.get::<OptionHeader>(at(n)).status;
    (done, (0..reqtypes.len()).map(status).collect())
}

#[test]
fn options_are_walked_by_the_kernels_arithmetic() {
    const NO: u32 = 95;
    const BAD: u32 = 22;
    let unknown = vec![99; 127];
    // 120 bytes come before 127 options of 32 bytes; the 128th does not fit.
    assert_eq!(with_options(&unknown, 0), (Ok(()), vec![NO; 127]));
    assert_eq!(with_options(&[99; 128], 0), (Err(Errno::MSGSIZE), vec![7; 128]));
    assert_eq!(with_options(&[99], OPTION), (Err(Errno::MSGSIZE), vec![7]), "a circle");
    assert_eq!(with_options(&[99, 0, 99], 0), (Err(Errno::INVAL), vec![0, BAD, 7]));
    let csb = option::CSB;
    assert_eq!(with_options(&[csb, 99, csb], 0), (Err(Errno::INVAL), vec![BAD, 0, BAD]));
    assert_eq!(with_options(&[csb], OPTION), (Err(Errno::INVAL), vec![BAD]), "its own next");
    assert_eq!(with_options(&[99], 8), (Err(Errno::FAULT), vec![7]));
}

#[test]
fn bodies_are_there_if_and_only_if_their_request_has_one() {
    let user = Fake::new();
    let try_it = |request: Header| {
        user.put(HEADER, &request);
        control(&user, HEADER, well)
    };
    assert_eq!(try_it(header(reqtype::PORT_INFO_GET, 0, BODY)), Ok(()));
    assert_eq!(try_it(header(reqtype::PORT_INFO_GET, 0, 0)), Err(Errno::INVAL));
    assert_eq!(try_it(header(reqtype::PORT_INFO_GET, 0, 8)), Err(Errno::FAULT));
    assert_eq!(try_it(header(reqtype::VALE_DELIF, 0, 0)), Ok(()));
    assert_eq!(try_it(header(reqtype::VALE_DELIF, 0, BODY)), Err(Errno::INVAL));
    assert_eq!(try_it(header(99, 0, 0)), Err(Errno::INVAL));
    for version in [13, 16] {
        let request = Header { version, ..header(reqtype::VALE_DELIF, 0, 0) };
        assert_eq!(try_it(request), Err(Errno::INVAL));
    }
    assert_eq!(control(&user, 8, well), Err(Errno::FAULT));
    assert_eq!(control(&user, 0, well), Err(Errno::INVAL));
}

#[test]
fn the_old_interface_says_the_same_in_other_words() {
    let cases = [
        // ringid, flags -> mode, ringid, flags, name
        ((0, 0), (mode::ALL_NIC, 0, 0, "vale0:a")),
        ((0x4003, 0), (mode::ONE_NIC, 3, 0, "vale0:a")),
        ((0x2000, 0), (mode::SW, 0, 0, "vale0:a")),
        ((0x9000, 0), (mode::ALL_NIC, 0, flags::NO_TX_POLL | flags::DO_RX_POLL, "vale0:a")),
        ((7, 5), (mode::ALL_NIC, 0, 0, "vale0:a{7")),
        ((12, 0x806), (mode::ALL_NIC, 0, flags::EXCLUSIVE, "vale0:a}12")),
    ];
    for ((ringid, old_flags), (mode, ring, new_flags, name)) in cases {
        let user = Fake::new();
        let mut request = Legacy::read_from_bytes(&[0; 60]).ok().unwrap();
        request.name[..7].copy_from_slice(b"vale0:a");
        (request.version, request.ringid, request.flags) = (14, ringid, old_flags);
        user.put(HEADER, &request);
        let done = legacy_register(&user, HEADER, |ask| {
            let wanted = Register::read_from_prefix(&ask.body).ok().unwrap().0;
            assert_eq!((wanted.mode, wanted.ringid, wanted.flags), (mode, ring, new_flags));
            assert_eq!(crate::abi::text(&ask.name), Some(name));
            let mut answer = Answer::to(ask);
            let got = Register { offset: 64, memsize: 1 << 33 | 5, mem_id: 3, ..wanted };
            answer.body[..56].copy_from_slice(got.as_bytes());
            Ok(answer)
        });
        assert_eq!(done, Ok(()));
        let back: Legacy = user.get(HEADER);
        assert_eq!((back.offset, back.memsize, back.arg2), (64, 5, 3));
        assert_eq!(
            (back.ringid, back.flags, &back.name[..7]),
            (ringid, old_flags, &b"vale0:a"[..])
        );
    }
}

/// Accounts that refuse nothing.
#[derive(Debug)]
struct Free;

impl Accounts for Free {
    fn charge(&self, _: u32, _: Held<'_>) -> Result<Charge, Errno> {
        Ok(Box::new(()))
    }
}

/// Has a broker carry out a request. Returns what it is bound to, and the switches' ends of tokens.
fn ask_broker(broker: &mut Broker, cookie: u64, ask: &Ask, facts: Facts) -> (Bound, Vec<OwnedFd>) {
    let mut task = broker.control(cookie, 1, ask, None, facts);
    let mut tokens = Vec::new();
    while let Some(effect) = broker.next(&mut task) {
        let Effect::Attach(port) = effect else { panic!("{effect:?} is not expected") };
        let (ours, token) = std::os::unix::net::UnixStream::pair().unwrap();
        tokens.push(ours.into());
        let (token, name) = (token.into(), port.place.port);
        let attached = Attached { token, name, number_if_trusted: None };
        broker.told(&mut task, Outcome::Attached(Ok(attached)));
    }
    let (answer, fds) = broker.reply(&task);
    assert_eq!(answer.status, 0);
    (Bound::new(&answer.bound, fds, |fd| fd).unwrap(), tokens)
}

/// A pipe: both ends, bound.
fn pipe() -> [Bound; 2] {
    let mut broker = Broker::new(Box::new(Free));
    ["p{1", "p}1"].map(|name| {
        let cookie = if name == "p{1" { 1 } else { 2 };
        broker.open(cookie, 0).unwrap();
        let request =
            Register { mode: mode::ALL_NIC, tx_slots: 8, rx_slots: 8, ..Register::default() };
        let mut ask = Ask::new(kind::CONTROL, reqtype::REGISTER);
        ask.name = name_of(name);
        ask.body[..56].copy_from_slice(request.as_bytes());
        ask_broker(&mut broker, cookie, &ask, Facts::default()).0
    })
}

fn cursors(header: &RingHeader) -> (u32, u32) {
    (header.head.load(Relaxed), header.tail.load(Relaxed))
}

fn set_head(header: &RingHeader, head: u32) {
    header.head.store(head, Relaxed);
    header.cur.store(head, Relaxed);
}

#[test]
fn a_pipe_moves_slots_there_and_back() {
    let [writer, reader] = pipe();
    let user = Fake::new();
    let (t, r) = (&writer.send_ring(0).memory, &reader.receive_ring(0).memory);
    t.slots[0].store(SlotWord { buf: 9, len: 60, flags: slot_flags::BUF_CHANGED });
    t.slots[1].store(SlotWord { buf: 3, len: 60, flags: slot_flags::MOREFRAG });
    set_head(&t.header, 2);
    assert!(writer.poll(true, false, &user).writable);
    assert_eq!(t.slots[0].load().flags, 0, "the mark went with the slot");
    let ready = reader.poll(false, true, &user);
    assert!(ready.readable && !ready.error);
    assert_eq!(cursors(&r.header), (0, 1), "a frame that is not complete stays");
    assert_eq!(r.slots[0].load(), SlotWord { buf: 9, len: 60, flags: slot_flags::BUF_CHANGED });
    set_head(&r.header, 1);
    r.slots[0].store(SlotWord { buf: 7, len: 60, flags: slot_flags::BUF_CHANGED });
    assert!(!reader.poll(false, true, &user).readable);
    assert_eq!(cursors(&t.header), (2, 7), "the writer's tail is as its last sync left it");
    assert!(writer.poll(true, false, &user).writable);
    assert_eq!((cursors(&t.header), t.slots[0].load().buf), ((2, 0), 7));
}

#[test]
fn a_spoilt_list_of_monitors_ends_and_leads_to_no_other_memory() {
    let [writer, reader] = pipe();
    let user = Fake::new();
    let (t, r) = (&writer.send_ring(0).memory, &reader.receive_ring(0).memory);
    let (sent, received) = (&t.control.owner_flags.0.copiers, &r.control.owner_flags.0.copiers);
    // A ring that names itself, no ring of the region, and rings with too many slots.
    let mut head = 0;
    for word in [1 | 8 << 16, 2 | 8 << 16, 0xffff | 8 << 16, 1 | 0xffff << 16, 1, u32::MAX] {
        sent[0].store(word, Relaxed);
        sent[1].store(word, Relaxed);
        received[0].store(word, Relaxed);
        received[1].store(word, Relaxed);
        head = (head + 1) % 8;
        set_head(&t.header, head);
        writer.poll(true, false, &user);
        set_head(&r.header, head);
        reader.poll(false, true, &user);
        let cursors = [cursors(&t.header), cursors(&r.header)];
        assert!(cursors.iter().all(|(head, tail)| *head < 8 && *tail < 8), "{word:x} {cursors:?}");
    }
}

#[test]
fn a_ring_that_is_held_is_passed_over_until_its_holder_is_dead() {
    let [writer, _reader] = pipe();
    let user = Fake::new();
    let ring = &writer.send_ring(0).memory;
    let holder = &ring.header.holder;
    set_head(&ring.header, 1);
    holder.store(std::process::id(), Relaxed);
    writer.poll(true, false, &user);
    assert_eq!(ring.control.owner.0.own(), 0, "another thread of ours syncs it");
    let parent = std::os::unix::process::parent_id();
    holder.store(parent, Relaxed);
    for _ in 0..2 {
        writer.poll(true, false, &user);
        let (owner, holds) = (ring.control.owner.0.own(), holder.load(Relaxed));
        assert_eq!((owner, holds), (0, parent), "another process that lives syncs it");
    }
    // No process has this highest number.
    holder.store(i32::MAX.cast_unsigned(), Relaxed);
    writer.poll(true, false, &user);
    assert_eq!((ring.control.owner.0.own(), holder.load(Relaxed)), (1, 0));
}

#[test]
fn cursors_that_make_no_sense_are_put_right_and_told() {
    let [writer, reader] = pipe();
    let user = Fake::new();
    let (t, r) = (&writer.send_ring(0).memory, &reader.receive_ring(0).memory);
    for (head, cur) in [(8, 0), (0, 8), (u32::MAX, 0), (3, 2)] {
        t.slots[4].store(SlotWord { buf: u32::MAX, len: 9, flags: 0 });
        t.header.head.store(head, Relaxed);
        t.header.cur.store(cur, Relaxed);
        assert!(writer.poll(true, false, &user).error, "{head} {cur}");
        assert_eq!((cursors(&t.header), t.header.cur.load(Relaxed)), ((0, 7), 0));
        assert_eq!(t.slots[4].load().buf, 0, "mended");
    }
    set_head(&r.header, 1);
    assert!(reader.poll(false, true, &user).error, "nothing was received");
    assert_eq!(cursors(&r.header), (0, 0));
}

/// An interface with its host rings, of 8 slots each, and the switches' ends of its tokens: the
/// host's, and the card's.
fn interface() -> (Bound, Vec<OwnedFd>) {
    interface_in(mode::NIC_SW, |_| {})
}

/// The rings of an interface that a request with these options gets.
fn interface_in(mode: u32, give: impl FnOnce(&mut crate::wire::Options)) -> (Bound, Vec<OwnedFd>) {
    let mut broker = Broker::new(Box::new(Free));
    broker.open(1, 0).unwrap();
    let request = Register { mode, tx_slots: 8, rx_slots: 8, ..Register::default() };
    let mut ask = Ask::new(kind::CONTROL, reqtype::REGISTER);
    ask.name = name_of("eth0");
    give(&mut ask.options);
    ask.body[..56].copy_from_slice(request.as_bytes());
    let interface = Some(Interface { name: "eth0".into(), is_card: false });
    ask_broker(&mut broker, 1, &ask, Facts { interface, cpus: 1 })
}

/// Puts frames into the next slots of a receive ring, as its switch would.
fn receive(ring: &Ring, flags: &[u16]) {
    let from = ring.memory.control.core.0.own();
    let mut at = from;
    for &flags in flags {
        let word = ring.memory.slots[at as usize].load();
        ring.memory.slots[at as usize].store(SlotWord { len: 60, flags, ..word });
        at = (at + 1) % 8;
    }
    ring.memory.control.core.0.publish(at);
}

#[test]
fn released_slots_that_are_flagged_go_on_to_the_other_end() {
    const FORWARD: u16 = slot_flags::FORWARD;
    const CHAIN: u16 = FORWARD | slot_flags::MOREFRAG;
    let (bound, _tokens) = interface();
    let user = Fake::new();
    for (receiving, onward) in [(0, bound.up_ring()), (1, bound.down_ring())] {
        let ring = bound.receive_ring(receiving);
        let (rx, to) = (&ring.memory, &onward.memory);
        let buffer = |slot: usize| rx.slots[slot].load().buf;
        let moved = || to.control.owner.0.own();
        let sync = |head| {
            set_head(&rx.header, head);
            assert!(!bound.poll(false, true, &user).error);
        };
        // Without NR_FORWARD the flag means nothing.
        receive(ring, &[FORWARD]);
        sync(1);
        assert_eq!((moved(), rx.control.owner.0.own()), (0, 1));
        rx.header.flags.store(4, Relaxed);
        receive(ring, &[FORWARD, 0, CHAIN, 0]);
        let (first, last) = (buffer(1), buffer(4));
        sync(5);
        assert_eq!((moved(), rx.control.owner.0.own()), (3, 5));
        let sent = |slot: usize| to.slots[slot].load();
        assert_eq!(sent(0), SlotWord { buf: first, len: 60, flags: 0 });
        assert_eq!(sent(1).flags, slot_flags::MOREFRAG);
        assert_eq!(sent(2), SlotWord { buf: last, len: 60, flags: 0 });
        assert!(
            buffer(1) != first && rx.slots[1].load().flags == 0,
            "another buffer took its place"
        );
        // There is room for four more. The others wait, and so does what follows them.
        receive(ring, &[FORWARD, FORWARD, FORWARD, FORWARD, FORWARD, 0, FORWARD]);
        sync(4);
        assert_eq!((moved(), rx.control.owner.0.own()), (7, 1));
        assert!(ring.has_unreleased());
        to.control.core.0.publish(7);
        sync(4);
        assert_eq!((moved(), rx.control.owner.0.own()), (1, 4));
        // What is no frame goes nowhere.
        to.control.core.0.publish(1);
        receive(ring, &[FORWARD, FORWARD, CHAIN]);
        rx.slots[4].store(SlotWord { buf: u32::MAX, len: 60, flags: FORWARD });
        rx.slots[5].store(SlotWord { len: 13, ..rx.slots[5].load() });
        rx.slots[6].store(SlotWord { len: u16::MAX, ..rx.slots[6].load() });
        sync(7);
        assert_eq!((moved(), rx.control.owner.0.own()), (1, 7));
    }
}

#[test]
fn regression_frames_with_offsets_are_forwarded() {
    let (bound, _tokens) = interface_in(mode::NIC_SW, |options| {
        options.given |= 1 << option::OFFSETS;
        (options.offsets.max, options.offsets.initial, options.offsets.bits) = (2000, 32, 12);
    });
    let user = Fake::new();
    for (receiving, onward) in [(0, bound.up_ring()), (1, bound.down_ring())] {
        let ring = bound.receive_ring(receiving);
        let (rx, to) = (&ring.memory, &onward.memory);
        rx.header.flags.store(4, Relaxed);
        receive(ring, &[slot_flags::FORWARD; 3]);
        // The first lies where it was received, the second elsewhere, the third beyond its buffer.
        let bits = 0x5000;
        rx.slots[1].ptr.store(bits | 1000, Relaxed);
        rx.slots[2].ptr.store(bits | 4000, Relaxed);
        let buffers = [0, 1].map(|slot: usize| rx.slots[slot].load().buf);
        set_head(&rx.header, 3);
        assert!(!bound.poll(false, true, &user).error);
        assert_eq!((to.control.owner.0.own(), rx.control.owner.0.own()), (2, 3));
        let format = to.control.owner_flags.0.format();
        let sent = [0, 1].map(|slot: usize| {
            let slot = &to.slots[slot];
            (slot.load(), slot.offset(format))
        });
        let word = |buf| SlotWord { buf, len: 60, flags: 0 };
        assert_eq!(sent, [(word(buffers[0]), 32), (word(buffers[1]), 1000)]);
        // The program's slots keep their offsets.
        assert_eq!([0, 1].map(|slot: usize| rx.slots[slot].ptr.load(Relaxed)), [32, bits | 1000]);
    }
}

#[test]
fn each_end_of_an_interface_is_woken_by_its_own_token_and_either_wakes() {
    let (bound, tokens) = interface();
    let user = Fake::new();
    let has_byte = |token: &OwnedFd| rustix::io::ioctl_fionread(token).unwrap() > 0;
    let mut answers = [true, false].into_iter().cycle();
    for sending in [1, 0] {
        let ring = bound.send_ring(sending);
        ring.memory.control.core_flags.0.wake.arm();
        set_head(&ring.memory.header, 1);
        bound.poll(true, false, &user);
        let (host, card) = (has_byte(&tokens[0]), has_byte(&tokens[1]));
        assert_eq!((host, card), (true, !answers.next().unwrap()));
    }
    for token in &tokens {
        let mut waiter = Waiter::new(|fd| fd).unwrap();
        waiter.watch(bound.wake_fd().unwrap(), 0).unwrap();
        waiter.take();
        assert!(!waiter.take());
        assert_eq!(rustix::io::write(token, b"k").unwrap(), 1);
        assert!(waiter.take(), "an unread byte wakes the waiter once");
        assert!(!waiter.take());
    }
}
