//! A card joined to a ring port (`card::Bridge`), over the models: frames arrive as they were sent,
//! buffers are never at two places, and a card that writes whatever it likes to its rings harms
//! only its own frames.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

use std::sync::Arc;

use card::{Bridge, Buffers, Direct, Nic};
use driver::e1000::{Config, E1000Driver, Interrupts};
use driver::pcnet::{self as pcnet_driver, Sizes};
use driver::{Dma, Lent};
use netring::{PipeConfig, Port, Region, RegionConfig, pipe};
use nic::device::{DeviceConfig, Model};
use nic::{e1000, pcnet};
use port::{FrameIdx, Limits, Mac, MapGuard, Nanos, Scratch};
use proptest::prelude::*;
use shmem::{Bytes, GuestMemory, GuestRange, Mapping, Shared};

const RINGS: usize = 64 << 10;
const RINGS_AT: u64 = 2 << 20;
const FRAMES_AT: u64 = 16 << 20;
const SLOTS: u32 = 128;
const SIZES: Sizes = Sizes { transmit: 5, receive: 6 };
/// Descriptors of an e1000's rings, each.
const DESCRIPTORS: u32 = 64;

type Registers = Direct<fn() -> Nanos>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    E1000(e1000::Chip),
    Pcnet,
}

const KINDS: [Kind; 3] =
    [Kind::E1000(e1000::Chip::Em82540), Kind::E1000(e1000::Chip::L82574), Kind::Pcnet];

fn now() -> Nanos {
    Nanos(1_000_000_000)
}

/// A card, and a pipe in the place of a switch.
struct Bench {
    model: Model,
    bridge: Bridge<Nic<Registers>>,
    peer: Port,
    region: Arc<Region>,
    rings: Arc<Mapping>,
    scratch: Scratch,
    limits: Limits,
}

impl Bench {
    fn new(kind: Kind) -> Self {
        Self::with_mtu(kind, 1500)
    }

    fn with_mtu(kind: Kind, mtu: u16) -> Self {
        let (receives, sends) = match kind {
            Kind::E1000(_) => (DESCRIPTORS, DESCRIPTORS - 1),
            Kind::Pcnet => (1 << SIZES.receive, 1 << SIZES.transmit),
        };
        let config = RegionConfig::default().interfaces(2).rings(4).slots(SLOTS);
        let region = Region::create(config.buffers(2 * SLOTS + receives + sends)).unwrap();
        let (port, peer) = pipe(&PipeConfig::default().slots(SLOTS).in_region(&region)).unwrap();
        let rings = Mapping::private(RINGS).unwrap();
        // The card sees its rings and the region's buffers, and nothing else.
        let part = Buffers::part(&region);
        let range = |guest: u64, mapping: &Arc<Mapping>, offset: usize, size: usize| GuestRange {
            guest,
            user: guest,
            size: size as u64,
            mapping: Arc::clone(mapping),
            offset,
        };
        let ranges = vec![
            range(RINGS_AT, &rings, 0, RINGS),
            range(FRAMES_AT, region.mapping(), part.start, part.len()),
        ];
        let memory = Arc::new(GuestMemory::new(ranges).unwrap());
        let config = DeviceConfig::alone(memory, Mac::local(1), 1).unwrap();
        let model = match kind {
            Kind::E1000(chip) => e1000::model(chip, Shared::private().unwrap(), config),
            Kind::Pcnet => pcnet::model(pcnet::Chip::Am79C970A, Shared::private().unwrap(), config),
        };
        model.device.set_bus_master(true);
        let regs = Direct::new(Arc::clone(&model.device), now as fn() -> Nanos);
        let mut dma = Dma::new(Arc::clone(&rings), 0, RINGS, RINGS_AT).unwrap();
        let buffers = Buffers::take(&region, (receives, sends), FRAMES_AT).unwrap();
        let lent = buffers.lent();
        let nic = match kind {
            Kind::E1000(chip) => {
                let mut config = Config::stock(chip);
                (config.transmit, config.receive) = (DESCRIPTORS, DESCRIPTORS);
                (config.interrupts, config.promiscuous) = (Interrupts::None, true);
                config.long_frames = mtu > 1500;
                Nic::E1000(Box::new(E1000Driver::over(regs, &mut dma, config, &lent).unwrap()))
            }
            Kind::Pcnet => {
                let mut driver = pcnet_driver::Driver::over(regs, &mut dma, SIZES, &lent).unwrap();
                driver.start(false, true).unwrap();
                Nic::Pcnet(Box::new(driver))
            }
        };
        let bridge = Bridge::new(nic, port, buffers, mtu);
        let limits = Limits { max_frame: u32::from(mtu) + 18, lossless: false };
        Self { model, bridge, peer, region, rings, scratch: Scratch::new(64), limits }
    }

    fn turn(&mut self) -> usize {
        self.bridge.turn(64).unwrap()
    }

    /// Has the peer send a frame; false without room.
    fn hand_in(&mut self, frame: &[u8]) -> bool {
        let sent = self.peer.send(64).push(frame);
        self.peer.flush().unwrap();
        sent
    }

    /// The frames that the peer has received.
    fn handed_out(&mut self) -> Vec<Vec<u8>> {
        let frames = self.peer.receive(64).map(|frame| frame.to_vec()).collect();
        self.peer.flush().unwrap();
        frames
    }

    /// The frames that the card sends to its cable.
    fn gather(&mut self) -> Vec<Vec<u8>> {
        let (queue, scratch) = (&mut self.model.transmit[0], &mut self.scratch);
        scratch.clear();
        let count = queue.gather(scratch, 64, now());
        // SAFETY: the memory outlives the scratch's use.
        let map = unsafe { MapGuard::assume_mapped() };
        scratch.judge_requests(&map, &mut [false; 64], false, |_, len| len > 0);
        let batch = scratch.batch(&map);
        let copy = |i: FrameIdx| {
            let mut bytes = vec![0; batch.frame(i).len()];
            batch.copy_frame(i, Bytes::of(&mut bytes));
            bytes
        };
        let frames = (0..count as FrameIdx).map(copy).collect();
        queue.complete(count);
        let _ = queue.settle(now());
        frames
    }

    /// Has frames arrive at the card by its cable.
    fn deliver(&mut self, frames: &[Vec<u8>]) {
        let mut copies = frames.to_vec();
        self.scratch.clear();
        copies.iter_mut().for_each(|copy| self.scratch.push(Bytes::of(copy).span()));
        // SAFETY: the copies live until the batch is delivered.
        let map = unsafe { MapGuard::assume_mapped() };
        self.scratch.judge(&map, &mut [(); 64], |_, _| ());
        let list: Vec<FrameIdx> = (0..frames.len() as FrameIdx).collect();
        let _ = self.model.receive[0].deliver(&self.scratch.batch(&map), &list, self.limits);
        let _ = self.model.receive[0].settle(now());
    }

    /// Takes everything apart: a buffer that was at two places would be given back twice.
    fn count_buffers(self) {
        let Self { bridge, peer, region, .. } = self;
        let all = region.geometry().buf_num as usize - 2;
        drop((bridge, peer));
        assert_eq!(region.free_buffers(), all, "all buffers are back");
    }
}

fn frame(number: usize) -> Vec<u8> {
    const LENS: [usize; 5] = [60, 61, 777, 1514, 1518];
    frame_of(number, LENS[number % LENS.len()])
}

/// Frames that fill buffers exactly, or miss that by as much as a check sequence or less.
fn long_frame(number: usize) -> Vec<u8> {
    const LENS: [usize; 12] =
        [60, 1518, 1519, 2044, 2045, 2047, 2048, 2049, 4096, 6143, 9014, 9018];
    frame_of(number, LENS[number % LENS.len()])
}

fn frame_of(number: usize, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i * 7 + number * 13 + number / 256) as u8).collect();
    frame[..6].copy_from_slice(&Mac::local(9).octets());
    frame[6..12].copy_from_slice(&Mac::local(8).octets());
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

#[test]
fn frames_go_both_ways_as_they_are() {
    for kind in KINDS {
        let mut bench = Bench::new(kind);
        // Several times around all rings.
        for round in 0..200 {
            let frames: Vec<_> = (0..16).map(|i| frame(16 * round + i)).collect();
            assert!(frames.iter().all(|frame| bench.hand_in(frame)), "{kind:?}");
            bench.turn();
            assert!(bench.gather() == frames, "{kind:?}, to the card, round {round}");
            bench.deliver(&frames);
            bench.turn();
            assert!(bench.handed_out() == frames, "{kind:?}, from the card, round {round}");
        }
        let counts = bench.bridge.counts();
        assert_eq!((counts.sent, counts.received), (3200, 3200), "{kind:?}");
        assert_eq!((counts.unsendable, counts.damaged), (0, 0), "{kind:?}");
        bench.count_buffers();
    }
}

#[test]
fn long_frames_go_both_ways_in_several_buffers() {
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Pcnet) {
        let mut bench = Bench::with_mtu(kind, 9000);
        for round in 0..200 {
            // They need 5 buffers at most, of 63 descriptors.
            let frames: Vec<_> = (0..8).map(|i| long_frame(8 * round + i)).collect();
            assert!(frames.iter().all(|frame| bench.hand_in(frame)), "{kind:?}");
            bench.turn();
            assert!(bench.gather() == frames, "{kind:?}, to the card, round {round}");
            bench.deliver(&frames);
            bench.turn();
            let out = bench.handed_out();
            let lens: Vec<_> = out.iter().map(Vec::len).collect();
            assert!(out == frames, "{kind:?}, from the card, round {round}: {lens:?}");
        }
        // The longest may be; a longer one is counted, and others pass.
        assert!(bench.hand_in(&frame_of(0, 9019)) && bench.hand_in(&frame_of(1, 9018)));
        bench.turn();
        assert_eq!(bench.gather(), [frame_of(1, 9018)], "{kind:?}");
        // So is one of more pieces than any frame has.
        assert!(bench.hand_in(&vec![1; 40 * 2048]) && bench.hand_in(&frame(3)));
        bench.turn();
        assert_eq!(bench.gather(), [frame(3)], "{kind:?}");
        let counts = bench.bridge.counts();
        assert_eq!((counts.sent, counts.received), (1602, 1600), "{kind:?}");
        assert_eq!((counts.unsendable, counts.damaged), (2, 0), "{kind:?}");
        bench.count_buffers();
    }
}

#[test]
fn long_frames_wait_for_room_as_wholes() {
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Pcnet) {
        let mut bench = Bench::with_mtu(kind, 9000);
        let (mut sent, mut received) = (0, Vec::new());
        for round in 0..300 {
            if round < 200 {
                bench.deliver(&[frame_of(sent, 9000 + sent % 10)]);
                sent += 1;
            }
            bench.turn();
            // The peer reads late, and all there is.
            if round % 40 == 39 || round >= 200 {
                received.extend(bench.handed_out());
            }
        }
        // The card drops what it has no room for, as wholes.
        assert!(received.len() >= 100, "{kind:?}: {} of {sent}", received.len());
        let whole = |frame: &Vec<u8>| (0..sent).any(|n| *frame == frame_of(n, 9000 + n % 10));
        assert!(received.iter().all(whole), "{kind:?}");
        assert_eq!(bench.bridge.counts().damaged, 0, "{kind:?}");
        bench.count_buffers();
    }
}

#[test]
fn a_peer_that_does_not_read_makes_frames_wait_in_the_card() {
    for kind in KINDS {
        let mut bench = Bench::new(kind);
        let mut delivered = 0;
        // More than the port has slots, at the pace at which the card has room.
        for _ in 0..12 {
            let frames: Vec<_> = (0..16).map(|i| frame(delivered + i)).collect();
            bench.deliver(&frames);
            bench.turn();
            delivered += frames.len();
        }
        let waits = bench.bridge.nic().has_frames();
        assert!(waits, "{kind:?}: {delivered} frames and {SLOTS} slots");
        let mut received = Vec::new();
        loop {
            let frames = bench.handed_out();
            if frames.is_empty() && bench.turn() == 0 {
                break;
            }
            received.extend(frames);
        }
        // The card drops the newest when it is full.
        let expected: Vec<_> = (0..received.len()).map(frame).collect();
        assert!(received == expected, "{kind:?}: {} frames", received.len());
        assert!(received.len() as u32 >= SLOTS, "{kind:?}: {}", received.len());
        bench.count_buffers();
    }
}

#[test]
fn frames_that_a_card_cannot_send_are_counted_and_their_buffers_are_not_lost() {
    for kind in KINDS {
        let mut bench = Bench::new(kind);
        for round in 0..100 {
            assert!(bench.hand_in(&[0; 1519]), "too long, {round}");
            assert!(bench.hand_in(&[0; 3000]), "of two slots, {round}");
            assert!(bench.hand_in(&frame(round)));
            bench.turn();
            assert_eq!(bench.gather(), [frame(round)], "{kind:?}");
        }
        assert_eq!(bench.bridge.counts().unsendable, 200, "{kind:?}");
        bench.count_buffers();
    }
}

/// What a hostile card writes to its rings, and what happens between.
#[derive(Clone, Debug)]
enum Deed {
    Write(usize, u64),
    Fill(u8),
    Turn,
    HandIn(usize),
    Deliver(usize),
    Gather,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        // Descriptors are at the start, and have interesting bits at the end of their words.
        4 => (0..RINGS / 32, any::<u64>()).prop_map(|(at, word)| Deed::Write(at, word)),
        1 => any::<u8>().prop_map(Deed::Fill),
        4 => Just(Deed::Turn),
        2 => (0..5000_usize).prop_map(Deed::HandIn),
        2 => (0..5000_usize).prop_map(Deed::Deliver),
        1 => Just(Deed::Gather),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_card_that_writes_its_rings_at_will_harms_its_own_frames_alone(
        kind in prop::sample::select(&KINDS[..]),
        mtu in prop::sample::select(&[1500, 9000][..]),
        deeds in prop::collection::vec(deed(), 1..200),
    ) {
        let mut bench = Bench::with_mtu(kind, mtu);
        for deed in deeds {
            match deed {
                Deed::Write(at, word) => {
                    bench.rings.bytes(8 * at, 8).unwrap().copy_in(&word.to_le_bytes());
                }
                Deed::Fill(byte) => bench.rings.bytes(0, RINGS).unwrap().fill(byte),
                Deed::Turn => _ = bench.turn(),
                Deed::HandIn(number) if mtu > 1500 => _ = bench.hand_in(&long_frame(number)),
                Deed::HandIn(number) => _ = bench.hand_in(&frame(number)),
                Deed::Deliver(number) if mtu > 1500 => bench.deliver(&[long_frame(number)]),
                Deed::Deliver(number) => bench.deliver(&[frame(number)]),
                Deed::Gather => _ = bench.gather(),
            }
            for frame in bench.handed_out() {
                let most = if mtu == 1500 { 2048 } else { 8 * 2048 };
                prop_assert!((14..=most).contains(&frame.len()), "{}", frame.len());
            }
        }
        bench.count_buffers();
    }
}
