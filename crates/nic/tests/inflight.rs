//! Buffers in flight, which a front end records for the next process that serves a queue
//! (vhost-user, "Inflight I/O tracking").

mod support;

use std::sync::Arc;

use nic::virtio::{Features, Inflight, QueueError, Receive, Transmit};
use port::{Ingress, Nanos, Scratch};
use shmem::{Mapping, Shared};
use support::{BASE, Guest, HEADER, LIMITS, first_base, forward, pattern};

const SIZE: u16 = 16;
const KINDS: [Features; 2] = [Features::empty(), Features::RING_PACKED];

fn is_packed(guest: &Guest) -> bool {
    guest.features.contains(Features::RING_PACKED)
}

/// A guest's transmit queue with an area.
fn tracked(kind: Features, size: u16) -> (Guest, Arc<Mapping>) {
    let mut guest = Guest::new(BASE | kind | Features::INDIRECT_DESC, SIZE);
    let area = Mapping::private(Inflight::bytes(size, is_packed(&guest)).max(4096)).unwrap();
    guest.config.inflight = Inflight::new(&area, 0, size, is_packed(&guest));
    assert!(guest.config.inflight.is_some());
    (guest, area)
}

fn u16_at(area: &Mapping, at: usize) -> u16 {
    u16::from_le_bytes(area.all().read(at).unwrap())
}

fn u64_at(area: &Mapping, at: usize) -> u64 {
    u64::from_le_bytes(area.all().read(at).unwrap())
}

fn set<const N: usize>(area: &Mapping, at: usize, bytes: [u8; N]) {
    area.all().write(at, bytes);
}

/// The entries in flight, in the specification's layout: number, counter.
fn inflight(area: &Mapping, packed: bool) -> Vec<(usize, u64)> {
    let (head, entry) = if packed { (32, 32) } else { (16, 16) };
    let entries = (0..usize::from(SIZE)).filter(|i| {
        let marked: u8 = area.all().read(head + entry * i).unwrap();
        marked == 1
    });
    entries.map(|i| (i, u64_at(area, head + entry * i + 8))).collect()
}

fn send(guest: &mut Guest, frames: usize, cuts: &[u32]) {
    for i in 0..frames {
        assert!(guest.send([0; HEADER], &pattern(60, i), cuts, false));
    }
    guest.driver.publish();
}

/// Another back end that gets the same area, and `base` from the front end.
fn successor(guest: &mut Guest, area: &Arc<Mapping>, base: u32) -> Transmit {
    guest.config.state = Shared::private().unwrap();
    guest.config.state.start_at(base);
    let found = Inflight::new(area, 0, SIZE, is_packed(guest)).unwrap();
    guest.config.inflight = Some(found.adopted());
    guest.transmit()
}

#[test]
fn what_was_gathered_is_in_flight_until_it_is_completed() {
    for kind in KINDS {
        let (mut guest, area) = tracked(kind, SIZE);
        let packed = is_packed(&guest);
        let mut queue = guest.transmit();
        let mut scratch = Scratch::new(64);
        let mut counted = 0;
        for round in 0..3 * usize::from(SIZE) {
            send(&mut guest, 5, if round % 2 == 0 { &[] } else { &[12, 20] });
            assert_eq!(inflight(&area, packed), [], "{kind:?} {round}");
            assert_eq!(queue.gather(&mut scratch, 64, Nanos(0)), 5);
            let mut counters: Vec<u64> =
                inflight(&area, packed).into_iter().map(|(_, counter)| counter).collect();
            counters.sort_unstable();
            let expected: Vec<u64> = (counted + 1..=counted + 5).collect();
            assert_eq!(counters, expected, "{kind:?} {round}");
            counted += 5;
            queue.complete(2);
            assert_eq!(inflight(&area, packed).len(), 3, "{kind:?} {round}");
            queue.complete(3);
            scratch.clear();
            let position = guest.config.state.base(packed) as u16;
            let written = if packed {
                u16_at(&area, 16) | u16::from(area.all().read::<u8>(20).unwrap()) << 15
            } else {
                u16_at(&area, 14)
            };
            assert_eq!(written, position, "{kind:?} {round}");
            assert_eq!(guest.reap(), 5);
        }
        assert_eq!((u16_at(&area, 8), u16_at(&area, 10)), (1, SIZE), "version and size");
        assert_eq!(inflight(&area, packed), []);
    }
}

#[test]
fn a_packed_area_names_every_descriptor() {
    let (mut guest, area) = tracked(Features::RING_PACKED, SIZE);
    let mut queue = guest.transmit();
    send(&mut guest, 1, &[12, 20]);
    queue.gather(&mut Scratch::new(64), 64, Nanos(0));
    let [first, last] = [32, 32 + 2 * 32];
    assert_eq!([4, 6].map(|at| u16_at(&area, first + at)), [2, 3], "its last entry, and how many");
    let ring =
        |slot: u64, at| guest.memory.bytes(guest.config.layout.descriptors + 16 * slot + at, 8);
    for (slot, entry) in [(0, first), (2, last)] {
        let [address, word] = [0, 8].map(|at| ring(slot, at).unwrap().read::<u64>(0).unwrap());
        assert_eq!(u64_at(&area, entry + 24), address);
        // In the ring, the length comes before number and flags; in the area, it comes after them.
        assert_eq!(u64_at(&area, entry + 16), word.rotate_left(32));
    }
    assert_eq!([12, 14].map(|at| u16_at(&area, at)), [3, 3], "the free list's head");
}

#[test]
fn a_successor_of_another_kind_gives_back_what_is_in_flight_and_goes_on() {
    for kind in KINDS {
        for turned in 0..2 * usize::from(SIZE) {
            let (mut guest, area) = tracked(kind, SIZE);
            let what = format!("{kind:?} {turned}");
            let mut queue = guest.transmit();
            let mut scratch = Scratch::new(64);
            for _ in 0..turned {
                send(&mut guest, 1, &[]);
                assert_eq!(queue.gather(&mut scratch, 64, Nanos(0)), 1, "{what}");
                queue.complete(1);
                scratch.clear();
                assert_eq!(guest.reap(), 1);
            }
            send(&mut guest, 2, &[12]);
            send(&mut guest, 2, &[]);
            assert_eq!(queue.gather(&mut scratch, 4, Nanos(0)), 4);
            queue.complete(1);
            // Not gathered.
            send(&mut guest, 3, &[]);
            std::mem::forget(queue);
            let mut next = successor(&mut guest, &area, first_base(kind));
            assert_eq!(inflight(&area, is_packed(&guest)), [], "{what}");
            assert_eq!(guest.reap(), 4, "{what}");
            let mut taker = Guest::new(BASE, SIZE);
            (0..8).for_each(|_| assert!(taker.add(&[2000], true, false).is_some()));
            taker.driver.publish();
            let to = taker.receiver();
            assert_eq!(forward(&mut next, &to, LIMITS).0, 3, "{what}: those that nobody had");
            assert_eq!((guest.reap(), guest.config.state.fault()), (3, None), "{what}");
            (0..3).for_each(|i| assert_eq!(taker.receive().unwrap().1, pattern(60, i)));
        }
    }
}

#[test]
fn a_back_end_that_died_as_it_published_has_nothing_of_that_batch_in_flight() {
    for kind in KINDS {
        let (mut guest, area) = tracked(kind, SIZE);
        let packed = is_packed(&guest);
        let mut queue = guest.transmit();
        let mut scratch = Scratch::new(64);
        send(&mut guest, 4, &[]);
        queue.gather(&mut scratch, 64, Nanos(0));
        let before = area.all().to_vec();
        queue.complete(3);
        // Restores what the area held before the back end published: the marks, and its position.
        let head = if packed { 32 } else { 16 };
        let marks: Vec<usize> = inflight_before(&before, head);
        for at in marks.iter().take(3) {
            set(&area, *at, [1]);
        }
        if packed {
            set(&area, 14, [before[14], before[15]]);
            set(&area, 18, [before[18], before[19]]);
            set(&area, 21, [before[21]]);
        } else {
            set(&area, 14, [before[14], before[15]]);
        }
        std::mem::forget(queue);
        let _next = successor(&mut guest, &area, first_base(kind));
        // The driver would notice a chain that is given back twice, because it does not wait for it
        // any more.
        assert_eq!(guest.reap(), 4, "{kind:?}");
        assert_eq!(inflight(&area, packed), []);
    }
}

fn inflight_before(area: &[u8], head: usize) -> Vec<usize> {
    (0..usize::from(SIZE)).map(|i| head + head * i).filter(|at| area[*at] == 1).collect()
}

#[test]
fn what_another_back_end_used_out_of_order_is_given_back_in_its_order() {
    let (mut guest, area) = tracked(Features::empty(), SIZE);
    send(&mut guest, 4, &[]);
    // Heads 0 to 3 were taken, and 2 was used. Their order differs from that of their numbers.
    let used = guest.config.layout.device;
    guest.scribble(used + 4, &2u32.to_le_bytes());
    guest.scribble(used + 2, &1u16.to_le_bytes());
    for (head, counter) in [(0, 9u64), (1, 4), (3, 7)] {
        set(&area, 16 + 16 * head, [1]);
        set(&area, 24 + 16 * head, counter.to_le_bytes());
    }
    set(&area, 8, [1, 0, SIZE as u8, 0, 2, 0, 1, 0]);
    let _queue = successor(&mut guest, &area, 4);
    let order: Vec<u16> = std::iter::from_fn(|| guest.driver.used().map(|(id, _)| id)).collect();
    assert_eq!(order, [2, 1, 3, 0]);
}

#[test]
fn receive_buffers_in_flight_are_given_back_empty() {
    let (mut guest, area) = tracked(Features::empty(), SIZE);
    for _ in 0..3 {
        guest.add(&[2000], true, false).unwrap();
    }
    guest.driver.publish();
    set(&area, 16, [1]);
    set(&area, 8, [1, 0, SIZE as u8, 0]);
    guest.config.inflight = guest.config.inflight.map(Inflight::adopted);
    let to = guest.receiver();
    assert_eq!(guest.driver.used(), Some((0, 0)));
    let (mut sender, _) = tracked(Features::empty(), SIZE);
    let mut from = sender.transmit();
    send(&mut sender, 2, &[]);
    assert_eq!(forward(&mut from, &to, LIMITS).1, 2);
    assert_eq!(guest.driver.used().map(|(id, _)| id), Some(1));
    assert_eq!(u16_at(&area, 14), 3, "where it stands");
}

#[test]
fn areas_that_are_not_the_queues_are_refused_and_any_content_is_survived() {
    for packed in [false, true] {
        let bytes = Inflight::bytes(SIZE, packed);
        let area = Mapping::private(4096).unwrap();
        assert!(Inflight::new(&area, 4096 - bytes, SIZE, packed).is_some());
        assert!(Inflight::new(&area, 4096 - bytes + 64, SIZE, packed).is_none());
        assert!(Inflight::new(&area, usize::MAX - 63, SIZE, packed).is_none());
        for (version, size) in [(2_u16, SIZE), (1, SIZE + 1), (1, 0), (0xffff, SIZE)] {
            set(&area, 8, version.to_le_bytes());
            set(&area, 10, size.to_le_bytes());
            assert!(Inflight::new(&area, 0, SIZE, packed).is_none(), "{version} {size}");
        }
    }
    for kind in KINDS {
        let (guest, _) = tracked(kind, SIZE / 2);
        let made = Transmit::new(guest.config.clone(), guest.sent.clone());
        assert_eq!(made.err(), Some(QueueError::Inflight));
        let made = Receive::new(guest.config.clone(), guest.got.clone());
        assert_eq!(made.err(), Some(QueueError::Inflight));
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..3000 {
            let (mut guest, area) = tracked(kind, SIZE);
            send(&mut guest, 3, &[12]);
            for at in (0..Inflight::bytes(SIZE, is_packed(&guest))).step_by(8) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Fills the area with random words, most of them with numbers that are in range.
                let word = random >> 8 & if random >> 60 < 12 { 0x001f_001f_001f_0001 } else { !0 };
                set(&area, at, word.to_le_bytes());
            }
            set(&area, 8, [1, 0, SIZE as u8, 0]);
            let mut queue = successor(&mut guest, &area, first_base(kind));
            let mut scratch = Scratch::new(64);
            let gathered = queue.gather(&mut scratch, 64, Nanos(0));
            assert!(gathered <= usize::from(SIZE));
            queue.complete(gathered);
        }
    }
}
