//! Drivers that break the rules: their queue stops with a named fault, earlier frames are
//! delivered, and nothing else happens.

mod support;

use driver::virtio::Buffer;
use nic::virtio::{Fault, Features};
use port::{DropReason, Egress, FrameIdx, Ingress, MapGuard, Nanos, Scratch};
use support::{BASE, Guest, HEADER, LIMITS, forward, pattern};

const SIZE: u16 = 8;
const TABLE: u64 = 0x20_0000;
/// Memory that no valid frame uses.
const SPOT: u64 = 0x30_0000;
/// Descriptor flags.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// The action of a case, after two good chains were added. The flag is the direction of the queue's
/// buffers.
type Case = fn(&mut Guest, bool);

/// Adds a chain of one buffer.
fn add(guest: &mut Guest, at: u64, len: u32, writable: bool) {
    guest.driver.add(&[Buffer { at, len, writable }], None).expect("room");
}

/// Adds flags to the third chain's first descriptor.
fn add_flags(guest: &Guest, flags: u16) {
    let packed = guest.features.contains(Features::RING_PACKED);
    let at = guest.config.layout.descriptors + 16 * 2 + if packed { 14 } else { 12 };
    let old = guest.memory.bytes(at, 2).unwrap().read::<u16>(0).unwrap();
    guest.scribble(at, &(old | flags).to_le_bytes());
}

/// Writes a table of these descriptors: length, then flags and next (split), or unused and flags
/// (packed).
fn table(guest: &Guest, at: u64, descriptors: &[(u32, u16, u16)]) {
    let packed = guest.features.contains(Features::RING_PACKED);
    for (i, (len, flags, next)) in descriptors.iter().enumerate() {
        let (third, fourth) = if packed { (0, *flags) } else { (*flags, *next) };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&SPOT.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&third.to_le_bytes());
        bytes[14..].copy_from_slice(&fourth.to_le_bytes());
        guest.scribble(at + 16 * i as u64, &bytes);
    }
}

/// Adds a chain that is one table of `len` bytes.
fn add_table(guest: &mut Guest, at: u64, len: u32) {
    add(guest, at, len, false);
    guest.driver.publish();
    add_flags(guest, INDIRECT);
}

fn good(writable: bool) -> u16 {
    if writable { WRITE } else { 0 }
}

/// The cases, for both directions and both kinds of queue.
const CASES: &[(&str, Fault, Case)] = &[
    ("beyond memory", Fault::BadAddress, |g, w| add(g, 1 << 40, 200, w)),
    ("over the end of memory", Fault::BadAddress, |g, w| {
        add(g, g.mapping.len() as u64 - 20, 200, w);
    }),
    ("around the end of addresses", Fault::BadAddress, |g, w| add(g, u64::MAX - 20, 200, w)),
    // The buffer is far too long. If the device writes it, only the part that is needed must be
    // memory, so it begins outside.
    ("far too long", Fault::BadAddress, |g, w| add(g, if w { 1 << 40 } else { 0 }, u32::MAX, w)),
    ("shorter than a header", Fault::BadLength, |g, w| add(g, SPOT, 11, w)),
    ("of no bytes", Fault::BadLength, |g, w| add(g, SPOT, 0, w)),
    ("the wrong way", Fault::BadDirection, |g, w| add(g, SPOT, 200, !w)),
    ("the wrong way, second in its chain", Fault::BadDirection, |g, w| {
        let buffer = |writable| Buffer { at: SPOT, len: 200, writable };
        g.driver.add(&[buffer(w), buffer(!w)], None).expect("room");
    }),
    ("beyond memory, second in its chain", Fault::BadAddress, |g, writable| {
        let buffer = |at, len| Buffer { at, len, writable };
        g.driver.add(&[buffer(SPOT, 20), buffer(1 << 50, 200)], None).expect("room");
    }),
    ("a table inside a chain that goes on", Fault::BadIndirect, |g, w| {
        table(g, TABLE, &[(200, good(w), 0)]);
        add_table(g, TABLE, 16);
        add_flags(g, NEXT);
    }),
    ("an empty table", Fault::BadIndirect, |g, _| add_table(g, TABLE, 0)),
    ("half a descriptor", Fault::BadIndirect, |g, _| add_table(g, TABLE, 8)),
    ("one and a half descriptors", Fault::BadIndirect, |g, _| add_table(g, TABLE, 24)),
    ("a table without end", Fault::BadIndirect, |g, _| add_table(g, TABLE, 16 * 70_000)),
    ("a table outside of memory", Fault::BadAddress, |g, _| add_table(g, u64::MAX - 7, 16)),
    ("a table with the wrong way", Fault::BadDirection, |g, w| {
        table(g, TABLE, &[(200, good(!w), 0)]);
        add_table(g, TABLE, 16);
    }),
];

const SPLIT_CASES: &[(&str, Fault, Case)] = &[
    ("a loop of one", Fault::EndlessChain, |g, w| {
        add(g, SPOT, 20, w);
        add_flags(g, NEXT);
        g.scribble(g.config.layout.descriptors + 16 * 2 + 14, &2u16.to_le_bytes());
        g.driver.publish();
    }),
    ("a descriptor beyond the table", Fault::BadDescriptor, |g, w| {
        add(g, SPOT, 20, w);
        add_flags(g, NEXT);
        g.scribble(g.config.layout.descriptors + 16 * 2 + 14, &SIZE.to_le_bytes());
        g.driver.publish();
    }),
    ("a head beyond the table", Fault::BadDescriptor, |g, w| {
        add(g, SPOT, 200, w);
        g.driver.publish();
        g.scribble(g.config.layout.driver + 4 + 2 * 2, &SIZE.to_le_bytes());
    }),
    ("a loop in a table", Fault::EndlessChain, |g, w| {
        table(g, TABLE, &[(20, good(w) | NEXT, 1), (20, good(w) | NEXT, 0)]);
        add_table(g, TABLE, 32);
    }),
    ("beyond a table's end", Fault::BadDescriptor, |g, w| {
        table(g, TABLE, &[(20, good(w) | NEXT, 1), (20, good(w) | NEXT, 2)]);
        add_table(g, TABLE, 32);
    }),
    ("a table in a table", Fault::BadIndirect, |g, w| {
        table(g, TABLE, &[(16, good(w) | INDIRECT, 0)]);
        add_table(g, TABLE, 16);
    }),
];

const PACKED_CASES: &[(&str, Fault, Case)] =
    &[("a chain all around", Fault::EndlessChain, |g, w| {
        let buffers = [Buffer { at: SPOT, len: 20, writable: w }; SIZE as usize - 2];
        g.driver.add(&buffers, None).expect("room");
        g.driver.publish();
        let last = g.config.layout.descriptors + 16 * u64::from(SIZE - 1) + 14;
        let flags = g.memory.bytes(last, 2).unwrap().read::<u16>(0).unwrap();
        g.scribble(last, &(flags | NEXT).to_le_bytes());
    })];

fn cases() -> impl Iterator<Item = (Features, &'static str, Fault, Case)> {
    let kinds = [
        (Features::empty(), CASES),
        (Features::empty(), SPLIT_CASES),
        (Features::RING_PACKED, CASES),
        (Features::RING_PACKED, PACKED_CASES),
    ];
    kinds.into_iter().flat_map(|(packed, cases)| {
        let features = BASE | Features::INDIRECT_DESC | packed;
        cases.iter().map(move |(name, fault, deed)| (features, *name, *fault, *deed))
    })
}

#[test]
fn a_hostile_sender_stops_its_own_queue_after_its_good_frames() {
    for (features, name, fault, deed) in cases() {
        let mut sender = Guest::new(features, SIZE);
        let mut taker = Guest::new(features, SIZE);
        let (mut from, to) = (sender.transmit(), taker.receiver());
        for i in 0..2 {
            assert!(sender.send([0; HEADER], &pattern(100, i), &[], false));
            taker.add(&[200], true, false).expect("room");
        }
        deed(&mut sender, false);
        sender.driver.publish();
        taker.driver.publish();
        let (gathered, finished, ..) = forward(&mut from, &to, LIMITS);
        assert_eq!((gathered, finished), (2, 2), "{name}");
        assert_eq!(sender.config.state.fault(), Some(fault), "{name} ({features:?})");
        assert_eq!(sender.reap(), 2, "{name}: good frames are given back");
        assert_eq!(sender.sent.faults.get(), 1, "{name}");
        (0..2).for_each(|i| assert_eq!(taker.receive().unwrap().1, pattern(100, i)));
        assert_eq!(forward(&mut from, &to, LIMITS).0, 0, "{name}: stopped");
        assert!(!from.arm(), "{name}: and not woken");
        assert_eq!(sender.sent.faults.get(), 1, "{name}: counted once");
        drop(from);
        assert!(!sender.transmit().has_work(), "{name}: stays stopped");
    }
}

/// Delivers `count` frames of 100 bytes to the guest. Returns how many were finished.
fn deliver(guest: &Guest, to: &impl Egress, count: usize) -> usize {
    let mut frames: Vec<Vec<u8>> = (0..count).map(|i| pattern(100, i)).collect();
    let mut scratch = Scratch::new(64);
    frames.iter_mut().for_each(|frame| scratch.push(shmem::Bytes::of(frame).span()));
    #[allow(unsafe_code, reason = "the frames outlive the scratch")]
    // SAFETY: the frames outlive the batch, as above.
    let map = unsafe { MapGuard::assume_mapped() };
    scratch.judge(&map, &mut [(); 64], |_, _| ());
    let list: Vec<FrameIdx> = (0..count as FrameIdx).collect();
    let delivered = to.deliver(&scratch.batch(&map), &list, LIMITS);
    assert_eq!(
        guest.got.frames.get() + guest.got.drops.iter().map(|d| d.get()).sum::<u64>(),
        count as u64
    );
    delivered.finished
}

#[test]
fn a_hostile_receiver_stops_its_own_queue_and_frames_for_it_are_dropped_as_down() {
    for (features, name, fault, deed) in cases() {
        for mergeable in [Features::empty(), Features::MRG_RXBUF] {
            let mut taker = Guest::new(features | mergeable, SIZE);
            let to = taker.receiver();
            for _ in 0..2 {
                taker.add(&[200], true, false).expect("room");
            }
            deed(&mut taker, true);
            taker.driver.publish();
            // If a frame needs only one buffer, the device does not read the rest of the ring.
            assert_eq!(deliver(&taker, &to, 4), 4, "{name}");
            assert_eq!(taker.config.state.fault(), Some(fault), "{name} ({:?})", taker.features);
            assert_eq!(taker.got.faults.get(), 1, "{name}");
            assert_eq!(taker.got.frames.get(), 2, "{name}");
            assert_eq!(taker.got.drops[DropReason::Down as usize].get(), 2, "{name}");
            (0..2).for_each(|i| assert_eq!(taker.receive().unwrap().1, pattern(100, i)));
        }
    }
}

#[test]
fn indices_that_run_ahead_or_backwards_stop_the_queue() {
    for (index, fault) in [
        (3u16, None),
        (8 + 3, None),
        (8 + 4, Some(Fault::BadIndex)),
        (2, Some(Fault::BadIndex)),
        (0, Some(Fault::BadIndex)),
        (0x8000, Some(Fault::BadIndex)),
        (0xffff, Some(Fault::BadIndex)),
    ] {
        let (mut sender, taker) = (Guest::new(BASE, SIZE), Guest::new(BASE, SIZE));
        let (mut from, to) = (sender.transmit(), taker.receiver());
        (0..3).for_each(|i| assert!(sender.send([0; HEADER], &pattern(100, i), &[], false)));
        sender.driver.publish();
        assert_eq!(forward(&mut from, &to, LIMITS).0, 3);
        // All other entries of the ring name the same good descriptor.
        sender.scribble(sender.config.layout.driver + 2, &index.to_le_bytes());
        let (gathered, ..) = forward(&mut from, &to, LIMITS);
        assert_eq!(sender.config.state.fault(), fault, "index {index}");
        assert_eq!(gathered, if fault.is_some() { 0 } else { usize::from(index - 3) });
    }
}

#[test]
fn a_frame_that_waits_keeps_its_slot_whatever_the_index_says() {
    let (mut sender, taker) = (Guest::new(BASE, SIZE), Guest::new(BASE, SIZE));
    let mut from = sender.transmit();
    (0..3).for_each(|i| assert!(sender.send([0; HEADER], &pattern(100, i), &[], false)));
    sender.driver.publish();
    let mut scratch = Scratch::new(64);
    assert_eq!(from.gather(&mut scratch, 64, Nanos(0)), 3);
    sender.scribble(sender.config.layout.driver + 2, &9u16.to_le_bytes());
    scratch.clear();
    assert_eq!(from.gather(&mut scratch, 64, Nanos(0)), 0);
    assert_eq!(sender.config.state.fault(), Some(Fault::BadIndex), "three are lent, six more came");
    from.complete(3);
    assert_eq!(sender.reap(), 3);
    drop(taker);
}

#[test]
fn indirect_tables_and_offloads_need_to_be_negotiated() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let mut sender = Guest::new(BASE | packed, SIZE);
        let mut from = sender.transmit();
        assert!(sender.send([0; HEADER], &pattern(100, 0), &[12], true));
        sender.driver.publish();
        assert_eq!(from.gather(&mut Scratch::new(64), 64, Nanos(0)), 0);
        assert_eq!(sender.config.state.fault(), Some(Fault::BadIndirect));

        let checksum = [1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0];
        let tcp4 = [1, 1, 54, 0, 100, 0, 34, 0, 16, 0, 0, 0];
        let no_size = [1, 1, 54, 0, 0, 0, 34, 0, 16, 0, 0, 0];
        let unknown = [1, 9, 54, 0, 100, 0, 34, 0, 16, 0, 0, 0];
        let (csum, tso) = (Features::CSUM, Features::CSUM | Features::HOST_TSO4);
        for (features, header, good) in [
            (csum, checksum, true),
            (csum, tcp4, false),
            (tso, tcp4, true),
            (tso, no_size, false),
            (tso, unknown, false),
        ] {
            for cuts in [&[][..], &[12], &[6]] {
                let mut sender = Guest::new(BASE | packed | features, SIZE);
                let mut from = sender.transmit();
                for header in [[0; HEADER], header] {
                    assert!(sender.send(header, &pattern(1000, 0), cuts, false));
                }
                sender.driver.publish();
                let gathered = from.gather(&mut Scratch::new(64), 64, Nanos(0));
                let fault = (!good).then_some(Fault::BadOffload);
                assert_eq!(sender.config.state.fault(), fault, "{header:?}");
                assert_eq!(gathered, if good { 2 } else { 1 }, "{header:?}");
            }
        }
    }
}

#[test]
fn a_frame_in_more_pieces_than_a_batch_takes_is_a_runt() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let mut sender = Guest::new(BASE | packed, 256);
        let mut from = sender.transmit();
        for cuts in [vec![10; 63], vec![10; 64 + 12], vec![112], vec![12]] {
            assert!(sender.send([0; HEADER], &pattern(1000, 0), &cuts, false));
        }
        assert!(sender.send([0; HEADER], &[], &[], false));
        sender.driver.publish();
        let mut scratch = Scratch::new(64);
        assert_eq!(from.gather(&mut scratch, 64, Nanos(0)), 5);
        let mut lens = [0; 5];
        #[allow(unsafe_code, reason = "the guest outlives the scratch")]
        // SAFETY: see above.
        let map = unsafe { MapGuard::assume_mapped() };
        scratch.judge(&map, &mut lens, |_, len| len);
        assert_eq!(lens, [1000, 0, 1000, 1000, 0]);
        assert_eq!(sender.config.state.fault(), None, "none of which breaks a rule");
        from.complete(5);
        assert_eq!(sender.reap(), 5);
    }
}
