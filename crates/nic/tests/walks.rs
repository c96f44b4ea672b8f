//! How many descriptors a driver can make the device read. Whatever the ring holds, a turn reads no
//! more than `nic`'s bound for its frames. Drivers that keep to the rules lose nothing by the
//! bound.
#![cfg(debug_assertions)]

mod support;

use std::sync::Arc;

use driver::virtio::{Buffer, Driver, layout_at, queue_bytes};
use nic::most_descriptors;
use nic::virtio::{Fault, Features, QueueConfig, QueueState, Receive, Transmit};
use port::{
    DropReason, Egress, EgressCounters, FrameIdx, Ingress, IngressCounters, Limits, MapGuard,
    Nanos, Scratch,
};
use shmem::{GuestMemory, Mapping, Shared};
use support::{BASE, HEADER, LIMITS, first_base, pattern};

const QUEUE_AT: u64 = 0x1000;
/// A table of indirect descriptors, and buffers of a page each.
const TABLE_AT: u64 = 0x20_0000;
const BUFFERS_AT: u64 = 0x100_0000;
const BUFFER: u64 = 0x1000;
const PAGES: u64 = 0x8000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const SIZES: [u16; 5] = [16, 256, 1024, 4096, 32_768];
const BATCH: usize = 64;

/// A queue, and what its driver writes by hand.
struct Rig {
    memory: Arc<GuestMemory>,
    config: QueueConfig,
    features: Features,
    size: u16,
    sent: Shared<IngressCounters>,
    got: Shared<EgressCounters>,
}

impl Rig {
    fn new(features: Features, size: u16) -> Self {
        let features = BASE | Features::INDIRECT_DESC | features;
        let mapping = Mapping::sparse((BUFFERS_AT + BUFFER * PAGES) as usize).unwrap();
        let memory = Arc::new(GuestMemory::of(mapping, 0).unwrap());
        let state: Shared<QueueState> = Shared::private().unwrap();
        state.start_at(first_base(features));
        assert!(queue_bytes(size) < TABLE_AT - QUEUE_AT);
        let layout = layout_at(QUEUE_AT, size);
        let config = QueueConfig::new(Arc::clone(&memory), layout, features, state);
        let (sent, got) = (Shared::private().unwrap(), Shared::private().unwrap());
        Self { memory, config, features, size, sent, got }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        assert_eq!(self.memory.bytes(at, bytes.len() as u32).unwrap().copy_in(bytes), bytes.len());
    }

    /// Writes descriptor `n` at `at`, of a split queue's ring or table.
    fn describe(&self, at: u64, n: u16, len: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&BUFFERS_AT.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.write(at + 16 * u64::from(n), &bytes);
    }

    /// A chain of `count` descriptors: `first` bytes, empty ones, and `last` bytes.
    fn chain(&self, at: u64, count: u16, (first, last): (u32, u32), kind: u16) {
        for n in 0..count {
            let more = if n + 1 < count { NEXT } else { 0 };
            let len = if n == 0 {
                first
            } else if n + 1 == count {
                last
            } else {
                0
            };
            self.describe(at, n, len, kind | more, n + 1);
        }
    }

    /// Makes the chain at `head` available `count` times from `from` on.
    fn offer(&self, head: u16, from: u16, count: u16) {
        let driver = self.config.layout.driver;
        for n in 0..count {
            let at = from.wrapping_add(n) % self.size;
            self.write(driver + 4 + 2 * u64::from(at), &head.to_le_bytes());
        }
        self.write(driver + 2, &from.wrapping_add(count).to_le_bytes());
    }

    fn receiver(&self) -> Receive {
        Receive::new(self.config.clone(), self.got.clone()).unwrap()
    }

    fn transmit(&self) -> Transmit {
        Transmit::new(self.config.clone(), self.sent.clone()).unwrap()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.got.drops[reason as usize].get()
    }
}

/// Delivers `count` frames of `len` bytes. Returns how many are finished and how many descriptors
/// were read.
#[allow(unsafe_code, reason = "the frames outlive the scratch")]
fn deliver(to: &Receive, count: usize, len: usize, limits: Limits) -> (usize, u64) {
    let mut frames: Vec<Vec<u8>> = (0..count).map(|i| pattern(len, i)).collect();
    let mut scratch = Scratch::new(BATCH);
    frames.iter_mut().for_each(|frame| scratch.push(shmem::Bytes::of(frame).span()));
    // SAFETY: see above.
    let map = unsafe { MapGuard::assume_mapped() };
    scratch.judge(&map, &mut [(); BATCH], |_, _| ());
    let list: Vec<FrameIdx> = (0..count as FrameIdx).collect();
    let before = nic::descriptors_read();
    let delivered = to.deliver(&scratch.batch(&map), &list, limits);
    (delivered.finished, nic::descriptors_read() - before)
}

/// Gathers a batch and completes it. Returns how many frames it had and how many descriptors were
/// read.
fn gather(from: &mut Transmit) -> (usize, u64) {
    let mut scratch = Scratch::new(BATCH);
    let before = nic::descriptors_read();
    let gathered = from.gather(&mut scratch, BATCH, Nanos(0));
    from.complete(gathered);
    (gathered, nic::descriptors_read() - before)
}

#[test]
fn regression_heads_that_share_a_long_chain_are_not_walked_for_each_batch() {
    for size in SIZES {
        let rig = Rig::new(Features::MRG_RXBUF, size);
        // Every head has the most empty descriptors, and one byte: no frame ever finds room.
        rig.chain(QUEUE_AT, size.min(1024), (HEADER as u32, 1), WRITE);
        rig.offer(0, 0, size);
        let to = rig.receiver();
        let (finished, read) = deliver(&to, BATCH, 9000, LIMITS);
        assert!(read <= most_descriptors(BATCH, 0), "{size}: {read}");
        assert!(read >= u64::from(size.min(1024)), "{size}: {read}: it did look");
        assert_eq!((finished, rig.config.state.fault()), (BATCH, None));
        // The queue remembers the result, so it reads only the first buffers.
        for _ in 0..3 {
            let (_, read) = deliver(&to, BATCH, 9000, LIMITS);
            assert!(read <= (BATCH * BATCH) as u64, "{size}: {read}");
            let (_, read) = deliver(&to, 1, 9000, LIMITS);
            assert!(read <= BATCH as u64, "{size}: {read}");
        }
        let frames = 5 * BATCH as u64 - BATCH as u64 + 3;
        let lost = rig.dropped(DropReason::Full) + rig.dropped(DropReason::TooLong);
        assert_eq!(lost, frames, "{size}: every frame is accounted for");
        assert_eq!(rig.got.frames.get(), 0);
    }
}

#[test]
fn regression_a_driver_that_offers_one_more_chain_at_a_time_has_no_more_read() {
    let rig = Rig::new(Features::MRG_RXBUF, 32_768);
    rig.chain(QUEUE_AT, 500, (HEADER as u32, 0), WRITE);
    let to = rig.receiver();
    for n in 1..100 {
        rig.offer(0, n - 1, 1);
        let (_, read) = deliver(&to, BATCH, 1500, LIMITS);
        assert!(read <= most_descriptors(BATCH, 0), "{n}: {read}");
    }
}

#[test]
fn regression_frames_that_are_too_long_do_not_have_their_buffer_read_again() {
    for (count, features) in [(1024, Features::empty()), (1000, Features::MRG_RXBUF)] {
        let rig = Rig::new(features, 32_768);
        rig.chain(QUEUE_AT, count, (HEADER as u32, 100), WRITE);
        rig.offer(0, 0, 1);
        let to = rig.receiver();
        let (finished, read) = deliver(&to, BATCH, 1500, LIMITS);
        assert_eq!(finished, BATCH);
        assert!((1000..=1024 + (BATCH * BATCH) as u64).contains(&read), "{read}");
        // A shorter frame still finds room.
        let (finished, _) = deliver(&to, 1, 100, LIMITS);
        assert_eq!((finished, rig.got.frames.get()), (1, 1));
    }
}

#[test]
fn regression_tables_of_empty_descriptors_are_read_within_bounds() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let rig = Rig::new(packed | Features::MRG_RXBUF, 4096);
        let mut driver = Driver::new(&rig.memory, rig.config.layout, rig.features).unwrap();
        let piece = |len| Buffer { at: BUFFERS_AT, len, writable: true };
        let mut table = vec![piece(0); 1000];
        table[0] = piece(HEADER as u32);
        table[999] = piece(200);
        // All chains name the same table.
        for _ in 0..4096 {
            driver.add(&table, Some(TABLE_AT)).expect("room");
        }
        driver.publish();
        let to = rig.receiver();
        for turn in 1..20 {
            let (_, read) = deliver(&to, BATCH, 100, LIMITS);
            assert!(read <= most_descriptors(BATCH, 100 * BATCH), "{read}");
            // Each such frame is expensive: a turn delivers a few of them, and the rest finds no
            // room.
            assert!(rig.got.frames.get() >= turn, "some are delivered in every turn");
            assert_eq!(rig.got.frames.get() + rig.dropped(DropReason::Full), turn * BATCH as u64);
        }
        assert_eq!(rig.config.state.fault(), None);
    }
}

#[test]
fn regression_a_stalled_frame_is_not_looked_for_again_until_there_is_more() {
    let lossless = Limits { lossless: true, ..LIMITS };
    for packed in [Features::empty(), Features::RING_PACKED] {
        let rig = Rig::new(packed | Features::MRG_RXBUF, 1024);
        let mut driver = Driver::new(&rig.memory, rig.config.layout, rig.features).unwrap();
        let buffer = |i| Buffer { at: BUFFERS_AT + BUFFER * i, len: 20, writable: true };
        (0..50).for_each(|i| assert!(driver.add(&[buffer(i)], None).is_some()));
        driver.publish();
        let to = rig.receiver();
        assert!(deliver(&to, 1, 1500, lossless).1 >= 50);
        for _ in 0..3 {
            let (finished, read) = deliver(&to, 1, 1500, lossless);
            assert_eq!(finished, 0);
            assert!(read <= 1, "{read}");
        }
        (50..100).for_each(|i| assert!(driver.add(&[buffer(i)], None).is_some()));
        driver.publish();
        assert_eq!(deliver(&to, 1, 1500, lossless).0, 1, "1,512 bytes in 76 buffers");
        assert_eq!(std::iter::from_fn(|| driver.used()).count(), 76);
    }
}

#[test]
fn regression_a_sender_of_long_chains_gets_on_by_few_frames_a_turn() {
    for size in [1024, 32_768] {
        let rig = Rig::new(Features::empty(), size);
        rig.chain(QUEUE_AT, 1024, (HEADER as u32 + 50, 50), 0);
        rig.offer(0, 0, size);
        let (mut from, mut all, mut turns) = (rig.transmit(), 0, 0);
        while from.has_work() {
            let (frames, read) = gather(&mut from);
            assert!(
                frames > 0 && read <= most_descriptors(frames, 100 * frames),
                "{frames}: {read}"
            );
            (all, turns) = (all + frames, turns + 1);
            assert!(turns <= usize::from(size));
        }
        assert_eq!((all, rig.config.state.fault()), (size.into(), None));
    }
}

#[test]
fn chains_of_more_than_1024_descriptors_stop_their_queue() {
    for kind in [WRITE, 0] {
        for indirect in [false, true] {
            let rig = Rig::new(Features::empty(), 4096);
            if indirect {
                rig.chain(TABLE_AT, 1025, (HEADER as u32, 200), kind);
                rig.describe(QUEUE_AT, 0, 16 * 1025, INDIRECT, 0);
                rig.write(QUEUE_AT, &TABLE_AT.to_le_bytes());
            } else {
                rig.chain(QUEUE_AT, 1025, (HEADER as u32, 200), kind);
            }
            rig.offer(0, 0, 1);
            let read = match kind {
                WRITE => deliver(&rig.receiver(), 1, 100, LIMITS).1,
                _ => gather(&mut rig.transmit()).1,
            };
            assert_eq!(rig.config.state.fault(), Some(Fault::EndlessChain));
            assert!((1024..1030).contains(&read), "{read}");
        }
    }
}

#[test]
fn regression_what_a_dead_process_had_taken_is_given_back_unread() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let rig = Rig::new(packed, 1024);
        let mut driver = Driver::new(&rig.memory, rig.config.layout, rig.features).unwrap();
        let table = vec![Buffer { at: BUFFERS_AT, len: 20, writable: false }; 1000];
        for _ in 0..1024 {
            driver.add(&table, Some(TABLE_AT)).expect("room");
        }
        driver.publish();
        let end = if packed == Features::RING_PACKED { 0 } else { 1024 };
        let (mut dead, mut scratch) = (rig.transmit(), Scratch::new(BATCH));
        let mut lent = 0;
        while dead.has_work() {
            scratch.clear();
            lent += dead.gather(&mut scratch, BATCH, Nanos(0));
        }
        assert_eq!(lent, 1024);
        std::mem::forget(dead);
        let before = nic::descriptors_read();
        let _successor = rig.transmit();
        assert_eq!(nic::descriptors_read(), before, "{end}");
        assert_eq!(std::iter::from_fn(|| driver.used()).count(), 1024);
    }
}

/// The buffers of a chain with this many descriptors in one place: one for a header, and partial
/// pages.
fn pieces(place: u64, lens: &[u32], writable: bool) -> Vec<Buffer> {
    let mut at = BUFFERS_AT + BUFFER * place;
    let buffer = |len: &u32| {
        let buffer = Buffer { at, len: *len, writable };
        at += u64::from(*len);
        buffer
    };
    lens.iter().map(buffer).collect()
}

#[test]
fn drivers_as_they_are_receive_every_frame_at_every_ring_size() {
    // Chains as in Linux and FreeBSD (big packets), DPDK and iPXE (two buffers), mergeable buffers,
    // and very small ones.
    let big = [&[12, 4084][..], &[4096; 17]].concat();
    let clusters = [&[12][..], &[2048; 34]].concat();
    let kinds: [(&[u32], Features, usize, usize); 6] = [
        (&big, Features::empty(), 20, 65_000),
        (&clusters, Features::empty(), 17, 1514),
        (&[12, 1514], Features::empty(), 1, 1514),
        (&[1536], Features::MRG_RXBUF, 1, 60_000),
        (&[256], Features::MRG_RXBUF, 1, 9000),
        (&[12], Features::MRG_RXBUF, 1, 1514),
    ];
    for (lens, features, pages, len) in kinds {
        for (size, packed) in SIZES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
            let packed = if packed { Features::RING_PACKED } else { Features::empty() };
            let rig = Rig::new(features | packed, size);
            let mut driver = Driver::new(&rig.memory, rig.config.layout, rig.features).unwrap();
            let to = rig.receiver();
            let slots = lens.len().max(
                (len + HEADER).div_ceil(*lens.last().unwrap() as usize)
                    * usize::from(lens.len() == 1),
            );
            // The number of frames that fit the ring, at most a batch.
            let frames = (usize::from(size) / slots).min(BATCH);
            for turn in 0..4 {
                let mut place = 0;
                while place + (pages as u64) < PAGES
                    && driver.add(&pieces(place, lens, true), None).is_some()
                {
                    place += pages as u64;
                }
                driver.publish();
                let (finished, _) = deliver(&to, frames, len, LIMITS);
                assert_eq!(finished, frames);
                assert_eq!(rig.got.frames.get(), ((turn + 1) * frames) as u64, "{len} {size}");
                while driver.used().is_some() {}
            }
            assert_eq!(rig.config.state.fault(), None, "{len} {size}");
        }
    }
}

#[test]
fn drivers_as_they_are_send_every_frame_at_every_ring_size() {
    // A header and the fragments of a 64 KiB frame, the most that Linux uses, in either kind of
    // chain.
    let linux = [&[12, 54][..], &[3850; 17]].concat();
    for (lens, indirect) in [(&linux[..], false), (&linux, true), (&[1526], false)] {
        for (size, packed) in SIZES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
            let packed = if packed { Features::RING_PACKED } else { Features::empty() };
            let rig = Rig::new(packed, size);
            let mut driver = Driver::new(&rig.memory, rig.config.layout, rig.features).unwrap();
            let table = |n: u64| indirect.then_some(TABLE_AT + 0x200 * (n % 0x4000));
            let mut added = 0;
            while driver.add(&pieces(added % 1000 * 20, lens, false), table(added)).is_some() {
                added += 1;
            }
            driver.publish();
            let (mut from, mut all) = (rig.transmit(), 0);
            while from.has_work() {
                let (frames, _) = gather(&mut from);
                assert!(frames >= 4, "as many as there is room for segments of");
                all += frames as u64;
                if all + 64 > added {
                    break;
                }
            }
            while from.has_work() {
                all += gather(&mut from).0 as u64;
            }
            assert_eq!((all, rig.config.state.fault()), (added, None), "{size}");
            assert!(added > 0 || lens.len() > usize::from(size));
        }
    }
}

#[test]
fn regression_an_honest_sender_goes_on_beside_a_receiver_that_shares_chains() {
    let victim = Rig::new(Features::empty(), 256);
    let attacker = Rig::new(Features::MRG_RXBUF, 32_768);
    attacker.chain(QUEUE_AT, 1024, (HEADER as u32, 1), WRITE);
    attacker.offer(0, 0, 32_768);
    let mut driver = Driver::new(&victim.memory, victim.config.layout, victim.features).unwrap();
    let (mut from, to) = (victim.transmit(), attacker.receiver());
    let (mut sent, before) = (0, nic::descriptors_read());
    for turn in 0..200u64 {
        while driver.used().is_some() {}
        for n in 0..BATCH as u64 {
            let buffer = Buffer { at: BUFFERS_AT + BUFFER * n, len: 1526, writable: false };
            driver.add(&[buffer], None).expect("what was sent comes back in every turn");
        }
        driver.publish();
        let (gathered, finished, ..) = support::forward(&mut from, &to, LIMITS);
        assert_eq!((gathered, finished), (BATCH, BATCH), "turn {turn}");
        sent += gathered as u64;
    }
    assert_eq!(victim.sent.frames.get(), sent);
    // The bound: the descriptors of the batch itself, and reads of the attacker's first buffers.
    let read = nic::descriptors_read() - before;
    assert!(read <= 200 * 4 * (BATCH * BATCH) as u64, "{read}");
}
