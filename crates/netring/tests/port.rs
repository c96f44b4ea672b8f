//! Objective: a port sends and receives what its core takes and gives, and nothing is visible
//! before a flush. Steps: an inline port, and a fake core in the same process.

mod support;

use std::collections::VecDeque;
use std::time::Duration;

use netring::layout::Fault;
use netring::{Interest, Port, PortError, Region, RegionConfig};
use proptest::prelude::*;
use support::FakeCore;

fn port(slots: u32) -> (Port, FakeCore) {
    let region = Region::private(RegionConfig::ports(1, 1, slots)).unwrap();
    let port = Port::inline(&region, "vale0:test", 1, 1, slots).unwrap();
    let core = FakeCore::of(&port);
    (port, core)
}

#[test]
fn frames_are_seen_when_they_are_flushed_and_not_before() {
    let (mut port, mut core) = port(8);
    assert!(port.send(4).push(b"one"));
    assert!(core.take(9).is_empty());
    port.flush().unwrap();
    assert_eq!(core.take(9), [b"one"]);
    assert!(core.give(b"two"));
    let batch: Vec<_> = port.receive(9).map(|frame| frame.to_vec()).collect();
    assert_eq!(batch, [b"two"]);
    assert_eq!(core.positions()[2], 0, "released, not yet visible");
    port.flush().unwrap();
    assert_eq!(core.positions()[2], 1);
}

#[test]
fn a_ring_of_n_slots_takes_n_minus_one_frames() {
    let (mut port, mut core) = port(8);
    let mut out = port.send(100);
    assert_eq!(out.room(), 7);
    assert!((0..7).all(|i| out.push(&[i])));
    assert!(!out.push(&[7]));
    port.flush().unwrap();
    assert_eq!(port.send(100).room(), 0);
    assert_eq!(core.take(3).len(), 3);
    assert_eq!(port.send(100).room(), 3);
    assert!((0..7).all(|i| core.give(&[i])));
    assert!(!core.give(&[7]));
    assert_eq!(port.receive(3).count(), 3);
    assert!(!core.give(&[7]), "not flushed");
    port.flush().unwrap();
    assert!(core.give(&[7]));
    assert_eq!(
        port.receive(100).map(|frame| frame.to_vec()[0]).collect::<Vec<_>>(),
        [3, 4, 5, 6, 7]
    );
}

#[test]
fn long_frames_take_several_slots_and_incomplete_ones_wait() {
    let (mut port, mut core) = port(8);
    let long: Vec<u8> = (0..5000).map(|i| (i % 251) as u8).collect();
    assert!(port.send(8).push(&long));
    let mut out = port.send(8);
    let mut slot = out.slot().unwrap();
    slot.window().copy_in(b"begun");
    slot.set_len(5);
    slot.set_more(true);
    drop(slot);
    port.flush().unwrap();
    assert_eq!(core.take(9), [&long[..]], "the second frame is not complete");
    assert!(port.send(8).push(b" and ended"));
    port.flush().unwrap();
    assert_eq!(core.take(9), [b"begun and ended"]);
    assert!(core.give(&long) && core.give(b"short"));
    let mut batch = port.receive(9);
    assert!(batch.next_within(2).is_none(), "three slots");
    let frame = batch.next_within(3).unwrap();
    assert_eq!((frame.len(), frame.slot_count(), frame.window().len()), (5000, 3, 2048));
    assert_eq!(frame.to_vec(), long);
    assert!(frame.equals(&long) && !frame.equals(&long[..4999]));
    let frame = batch.next().unwrap();
    assert_eq!(frame.to_vec(), b"short");
    assert!(frame.equals(b"short") && !frame.equals(b"shirt"));
    assert!(batch.next().is_none());
    assert!(!port.send(8).push(&vec![0; 7 * 2048 + 1]), "more than the ring holds");
}

#[test]
fn slots_without_a_length_are_not_sent() {
    let (mut port, mut core) = port(8);
    let mut out = port.send(8);
    drop(out.slot());
    assert_eq!(out.room(), 7);
    let filled = out.fill(8, |window| {
        window.write(0, 5_u8);
        1
    });
    assert_eq!(filled, 7);
    assert_eq!(port.send(8).fill(1, |_| 0), 0);
    port.flush().unwrap();
    assert_eq!(core.take(9), vec![[5]; 7]);
}

#[test]
fn slots_ahead_are_filled_before_they_are_taken() {
    let (mut port, mut core) = port(8);
    // After these frames, the free slots lie on both sides of the ring's end.
    assert_eq!(port.send(8).fill(5, |_| 1), 5);
    port.flush().unwrap();
    assert_eq!(core.take(9).len(), 5);
    let mut out = port.send(8);
    for ahead in 0..7_u8 {
        assert!(out.window(ahead.into()).unwrap().write(0, ahead));
    }
    assert!(out.window(7).is_none() && out.room() == 7);
    for _ in 0..7 {
        out.slot().unwrap().set_len(1);
    }
    port.flush().unwrap();
    assert_eq!(core.take(9), [[0], [1], [2], [3], [4], [5], [6]]);
}

#[test]
fn queues_that_do_not_exist_have_neither_room_nor_frames() {
    let region = Region::private(RegionConfig::ports(1, 1, 8)).unwrap();
    let mut monitor = Port::inline(&region, "vale0:p/t", 0, 1, 8).unwrap();
    assert_eq!(monitor.send(8).room(), 0);
    assert!(!monitor.send(8).push(b"x"));
    assert!(monitor.send(8).slot().is_none());
    assert_eq!(monitor.queue(1).receive(8).count(), 0);
    assert!(monitor.queue(0).both(1, 1).is_none());
    assert_eq!(monitor.receive(8).count(), 0);
    monitor.flush().unwrap();
}

#[test]
fn a_fault_is_reported_until_the_port_is_reset() {
    let (mut port, mut core) = port(8);
    let region = port.region().unwrap().clone();
    assert!(core.give(b"lost") && port.send(1).push(b"lost"));
    port.flush().unwrap();
    core.fail(Fault::BadLength);
    assert!(matches!(port.flush(), Err(PortError::Fault(Fault::BadLength))));
    let waited = port.wait(Interest::READ, Some(Duration::ZERO));
    assert!(matches!(waited, Err(PortError::Fault(_))));
    let free = region.free_buffers();
    port.reset().unwrap();
    assert!(core.reset_if_wanted());
    assert_eq!(region.free_buffers(), free);
    port.flush().unwrap();
    for round in 0..20_u8 {
        assert!(port.send(1).push(&[round]));
        port.flush().unwrap();
        assert_eq!(core.reflect(), 1);
        assert_eq!(port.receive(1).next().unwrap().to_vec(), [round]);
        port.flush().unwrap();
    }
}

#[test]
fn a_port_in_order_is_not_reset() {
    let (mut port, mut core) = port(8);
    assert!(port.send(1).push(b"kept"));
    port.flush().unwrap();
    port.reset().unwrap();
    assert_eq!(core.take(1), [b"kept"]);
}

#[test]
fn a_reader_that_armed_is_to_be_woken_once() {
    let (mut port, mut core) = port(8);
    let mut answered = 0;
    assert!(!core.reader_sleeps(&mut answered));
    assert!(!port.arm(Interest::READ).any());
    assert!(core.give(b"frame") && core.reader_sleeps(&mut answered));
    assert!(core.give(b"frame") && !core.reader_sleeps(&mut answered), "one kick an arming");
    assert!(port.arm(Interest::READ).readable, "the second look finds what came meanwhile");
    port.disarm().unwrap();
    assert!(core.give(b"frame") && !core.reader_sleeps(&mut answered));
}

#[derive(Clone, Debug)]
enum Step {
    Send { count: usize, len: usize },
    Receive { max: usize },
    Flush,
    Reflect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..6_usize, prop_oneof![4..64_usize, 2000..7000_usize])
            .prop_map(|(count, len)| Step::Send { count, len }),
        (1..20_usize).prop_map(|max| Step::Receive { max }),
        Just(Step::Flush),
        Just(Step::Reflect),
    ]
}

proptest! {
    /// The model is a queue: what was pushed comes back complete, in order and once, through a core
    /// that sends everything back, whenever slots are flushed. What the core has no room for is
    /// lost and counted.
    #[test]
    fn rings_agree_with_queues(slots in 4..40_u32, steps in prop::collection::vec(step(), 1..120)) {
        let (mut port, mut core) = port(slots);
        let (mut pushed, mut published, mut back) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let mut number = 0_u32;
        for step in steps {
            match step {
                Step::Send { count, len } => for _ in 0..count {
                    let frame: Vec<u8> =
                        number.to_ne_bytes().into_iter().cycle().take(len).collect();
                    if port.send(100).push(&frame) {
                        pushed.push_back(frame);
                        number += 1;
                    }
                },
                Step::Receive { max } => for frame in port.receive(max) {
                    prop_assert_eq!(Some(frame.to_vec()), back.pop_front());
                },
                Step::Flush => {
                    port.flush().unwrap();
                    published.append(&mut pushed);
                }
                Step::Reflect => {
                    let frames = core.take(usize::MAX);
                    prop_assert_eq!(&frames, &Vec::from(std::mem::take(&mut published)));
                    back.extend(frames.into_iter().filter(|frame| core.give(frame)));
                }
            }
        }
        let rest: Vec<_> = port.receive(usize::MAX).map(|frame| frame.to_vec()).collect();
        prop_assert_eq!(rest, Vec::from(back));
    }
}
