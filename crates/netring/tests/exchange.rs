//! Objective: buffers change places between ports of one region, and none is lost or doubled.
//! Steps: two inline ports with a core each; every buffer's number is accounted for at the end.

mod support;

use std::sync::Arc;

use netring::layout::RingMemory;
use netring::{OtherRegion, PipeConfig, Port, Region, RegionConfig, pipe};
use support::FakeCore;

const SLOTS: u32 = 8;

fn region() -> Arc<Region> {
    Region::private(RegionConfig::ports(2, 1, SLOTS).buffers(4 * SLOTS + 2)).unwrap()
}

fn port(region: &Arc<Region>, name: &str) -> (Port, FakeCore) {
    let port = Port::inline(region, name, 1, 1, SLOTS).unwrap();
    let core = FakeCore::of(&port);
    (port, core)
}

#[test]
fn frames_are_forwarded_without_being_copied() {
    let region = region();
    let ((mut left, mut from), (mut right, mut to)) = (port(&region, "a:l"), port(&region, "a:r"));
    let long: Vec<u8> = (0..5000).map(|i| i as u8).collect();
    for round in 0..50_u8 {
        assert!(from.give(&[round; 100]) && from.give(&long));
        let (mut batch, mut out) = (left.receive(8), right.send(8));
        let short = batch.next().unwrap();
        let written = short.window();
        out.forward(short).unwrap();
        written.write(0, 200_u8);
        out.forward(batch.next().unwrap()).unwrap();
        assert_eq!((batch.count(), out.room()), (0, 3));
        left.flush().unwrap();
        right.flush().unwrap();
        let mut expected = vec![round; 100];
        expected[0] = 200;
        assert_eq!(to.take(9), [expected, long.clone()], "the buffer itself was sent");
    }
    drop((left, right));
    assert_eq!(region.free_buffers(), 4 * SLOTS as usize + 2);
}

/// In a pipe no core holds buffers, so all of them can be counted: none is lost or doubled.
#[test]
fn an_echo_keeps_every_buffer_once() {
    let sizes = RegionConfig::default().interfaces(2).rings(4).slots(SLOTS).buffers(2 * SLOTS);
    let region = Region::private(sizes).unwrap();
    let config = PipeConfig::default().slots(SLOTS).in_region(&region);
    let (mut near, mut far) = pipe(&config).unwrap();
    for round in 0..100_u8 {
        let count = 1 + round % 7;
        assert!((0..count).all(|i| near.send(1).push(&[round, i])));
        near.flush().unwrap();
        let (mut out, mut batch) = far.queue(0).both(8, 8).unwrap();
        while let Some(frame) = batch.next_within(out.room()) {
            out.forward(frame).unwrap();
        }
        far.flush().unwrap();
        let back: Vec<_> = near.receive(8).map(|frame| frame.to_vec()).collect();
        assert_eq!(back, (0..count).map(|i| vec![round, i]).collect::<Vec<_>>());
        near.flush().unwrap();
    }
    let mut all = Vec::new();
    for rings in [near.rings(), far.rings()] {
        let ring = RingMemory::of(&rings.mapping, &rings.geometry, rings.rx.first, SLOTS).unwrap();
        all.extend(ring.slots.iter().map(|slot| slot.load().buf));
    }
    all.sort_unstable();
    assert_eq!(all, (2..2 + 2 * SLOTS).collect::<Vec<_>>());
}

#[test]
fn other_regions_are_copied_to() {
    let (one, other) = (region(), region());
    let ((mut left, mut from), (mut right, mut to)) = (port(&one, "a:l"), port(&other, "b:r"));
    let long: Vec<u8> = (0..5000).map(|i| (i / 7) as u8).collect();
    assert!(from.give(b"short") && from.give(&long));
    let (batch, mut out) = (left.receive(8), right.send(8));
    for mut frame in batch {
        let mut slot = out.slot().unwrap();
        assert_eq!(slot.swap(&mut frame), Err(OtherRegion));
        drop(slot);
        out.forward(frame).unwrap();
    }
    right.flush().unwrap();
    assert_eq!(to.take(9), [b"short".to_vec(), long]);
}

#[test]
fn a_full_ring_gives_the_frame_back() {
    let region = region();
    let ((mut left, mut from), (mut right, _to)) = (port(&region, "a:l"), port(&region, "a:r"));
    while right.send(1).push(b"full") {}
    assert!(from.give(b"frame"));
    let mut batch = left.receive(8);
    let mut out = right.send(8);
    assert!(batch.next_within(out.room()).is_none(), "it stays in its ring");
    let frame = out.forward(batch.next().unwrap()).unwrap_err();
    assert_eq!(frame.to_vec(), b"frame");
}

#[test]
fn loose_buffers_are_filled_ahead_and_exchanged() {
    let region = region();
    let (mut port, mut core) = port(&region, "a:p");
    let mut ahead = region.buffer().unwrap();
    ahead.window().copy_in(b"filled ahead");
    let number = ahead.number();
    let mut out = port.send(1);
    let mut slot = out.slot().unwrap();
    slot.swap(&mut ahead).unwrap();
    slot.set_len(12);
    drop(slot);
    assert_ne!(ahead.number(), number);
    port.flush().unwrap();
    assert_eq!(core.take(1), [b"filled ahead"]);
    assert!(region.give_back(number).is_err(), "it is the port's now");
    drop(port);
    drop(ahead);
    assert_eq!(region.free_buffers(), 4 * SLOTS as usize + 2);
}

#[test]
fn a_port_answers_on_itself() {
    let region = region();
    let (mut port, mut core) = port(&region, "a:p");
    for round in 0..30_u8 {
        assert!((0..5).all(|i| core.give(&[round, i])));
        let (mut out, mut batch) = port.queue(0).both(8, 8).unwrap();
        while let Some(frame) = batch.next_within(out.room()) {
            out.forward(frame).unwrap();
        }
        port.flush().unwrap();
        assert_eq!(core.take(9), (0..5).map(|i| vec![round, i]).collect::<Vec<_>>());
    }
}

#[test]
#[expect(unsafe_code, reason = "indirect slots are addresses")]
fn indirect_slots_are_resolved_when_they_are_flushed() {
    let region = region();
    let (mut port, mut core) = port(&region, "a:p");
    let bytes = b"elsewhere".to_vec();
    let mut out = port.send(1);
    out.slot().unwrap().set_indirect(bytes.as_ptr(), bytes.len());
    // SAFETY: `bytes` lives, and no other thread writes to the slots.
    unsafe { port.flush_indirect() }.unwrap();
    assert_eq!(core.take(1), [bytes]);
}
