//! Objective: whatever a guest writes, it stops only its own PCnet. Each way in which an emulated
//! PCnet was broken before has a test. Then come arbitrary accesses, ring contents and times.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

mod pcnet_support;

use nic::pcnet::{Chip, Fault};
use pcnet_support::*;
use port::{DropReason, Limits, Nanos};
use proptest::prelude::*;

/// CVE-2015-3209: a frame of several descriptors that is longer than any private buffer.
#[test]
fn a_frame_of_many_long_buffers_is_lent_or_counted_never_copied_together() {
    let mut raw = Raw::new(&Setup { tx: 7, ..Setup::default() });
    for number in 0..64 {
        let ends = [STP, 0, ENP][usize::from(number > 0) + usize::from(number == 63)];
        raw.describe(TX_AT, number, BUFFERS, OWN | ends, 4096);
    }
    raw.demand();
    assert_eq!(raw.bench.gather().iter().map(Vec::len).collect::<Vec<_>>(), [64 * 4096]);
    for number in 64..128 {
        let flags = if number == 64 { STP } else { 0 };
        raw.describe(TX_AT, number, BUFFERS, OWN | flags, 4096);
    }
    raw.describe(TX_AT, 0, BUFFERS, OWN | ENP, 4096);
    raw.demand();
    assert_eq!(raw.bench.gather(), [Vec::<u8>::new()], "a runt, which the switch counts");
    assert_eq!(raw.csr(0) & (BABL | TXON), BABL | TXON);
}

/// CVE-2015-7504: the check sequence was written after the longest looped frame, beyond the buffer.
#[test]
fn a_looped_frame_of_any_length_stays_in_its_buffers() {
    for len in [4080, 4091, 4092, 4093, 4096] {
        let mut raw = Raw::new(&Setup { mode: LOOP | PROM, ..Setup::default() });
        raw.give(0, 4, 1544);
        raw.bench.write(BUFFERS, &frame(len, 1));
        raw.describe(TX_AT, 0, BUFFERS, OWN | STP | ENP, len as u32);
        raw.demand();
        assert!(raw.bench.gather().is_empty());
        assert_eq!(raw.status(TX_AT, 0).0 & OWN, 0);
        let taken = raw.status(RX_AT, 0).0 & OWN == 0;
        assert_eq!(taken, len + 4 <= 4095, "{len}");
    }
    let mut raw = Raw::new(&Setup { mode: LOOP | PROM, ..Setup::default() });
    raw.give(0, 8, 1544);
    for number in 0..3 {
        let ends = [STP, 0, ENP][number as usize];
        raw.describe(TX_AT, number, BUFFERS, OWN | ends, 4096);
    }
    raw.demand();
    assert!(raw.bench.gather().is_empty());
    assert_eq!((raw.status(TX_AT, 2).0 & OWN, raw.status(RX_AT, 0).0), (0, OWN));
}

/// CVE-2015-7512: a frame that is longer than the receive buffers.
#[test]
fn a_frame_longer_than_its_buffer_is_not_written_past_it() {
    let mut raw = Raw::new(&Setup::default());
    raw.give(0, 1, 100);
    raw.bench.write(Raw::rx_buffer(0), &[0xee; 4096]);
    assert_eq!(raw.bench.deliver(&[to(raw.bench.mac, 1500, 1)]), 1);
    assert_eq!(raw.bench.read(Raw::rx_buffer(0) + 100, 3996), [0xee; 3996]);
    raw.give(1, 1, 4096);
    let limits = Limits { max_frame: 9000, lossless: false };
    assert_eq!(raw.bench.deliver_with(&[to(raw.bench.mac, 4092, 1)], limits), 1);
    assert_eq!(raw.bench.dropped(DropReason::TooLong), 1, "a message count has twelve bits");
}

/// CVE-2016-7909: rings whose length is zero.
#[test]
fn rings_without_length_have_one_descriptor() {
    let mut raw = Raw::new(&Setup::default());
    raw.set_csr(0, 4);
    raw.set_csr(76, 0);
    raw.set_csr(78, 0);
    raw.set_csr(0, 0x42);
    raw.give(0, 2, 1544);
    raw.send(0, &frame(60, 1), STP | ENP);
    raw.send(1, &frame(60, 2), STP | ENP);
    raw.demand();
    assert_eq!(raw.bench.gather(), [frame(60, 1)]);
    assert_eq!(raw.bench.gather(), Vec::<Vec<u8>>::new());
    let mac = raw.bench.mac;
    raw.bench.deliver(&[to(mac, 60, 1), to(mac, 60, 2)]);
    assert_eq!((raw.status(RX_AT, 0).0 & OWN, raw.status(RX_AT, 1).0), (0, OWN));
    assert_eq!(raw.csr(112), 1);
}

/// The controller owns every descriptor of the ring, and no frame ends.
#[test]
fn a_ring_without_an_end_is_an_underflow_at_once() {
    for style in [0, 2] {
        for mode in [0, LOOP] {
            let mut raw = Raw::new(&Setup { style, mode, ..Setup::default() });
            for number in 0..8 {
                raw.send(number, &frame(60, 1), STP);
            }
            raw.demand();
            assert!(raw.bench.gather().is_empty());
            assert_eq!(raw.csr(0) & (TXON | TINT), TINT, "{style} {mode}");
            assert_eq!(raw.status(TX_AT, 7).0 & (OWN | ERR), ERR);
        }
    }
}

/// CVE-2018-17962: frames whose lengths do not fit the buffers.
#[test]
fn frames_of_every_length_are_delivered_or_counted() {
    let mut raw = Raw::new(&Setup::default());
    for len in [14, 59, 60, 64, 1514, 1540, 4000, 4001, 4091, 4092] {
        raw.give(0, 8, 0);
        raw.bench.deliver(&[to(raw.bench.mac, len, 1)]);
    }
    let counted: u64 = raw.bench.egress().drops.iter().map(|drops| drops.get()).sum();
    assert_eq!(raw.bench.egress().frames.get() + counted, 10);
}

/// CVE-2021-3416: a looped frame whose buffer is the ring itself.
#[test]
fn a_looped_frame_over_the_rings_ends() {
    let mut raw = Raw::new(&Setup { mode: LOOP | PROM, ..Setup::default() });
    for number in 0..8 {
        raw.describe(RX_AT, number, TX_AT, OWN, 1544);
        raw.describe(TX_AT, number, TX_AT, OWN | STP | ENP, 128);
    }
    raw.demand();
    for _ in 0..20 {
        assert!(raw.bench.gather().is_empty());
    }
    raw.describe(RX_AT, 0, RX_AT, OWN, 1544);
    raw.bench.deliver(&[to(raw.bench.mac, 200, 1)]);
}

#[test]
fn missing_memory_stops_the_chip_until_it_is_restarted() {
    type Break = fn(&mut Raw);
    let cases: [(Fault, Break); 5] = [
        (Fault::Buffer, |raw| {
            raw.describe(TX_AT, 0, 0xffff_f000, OWN | STP | ENP, 100);
        }),
        (Fault::Buffer, |raw| {
            raw.send(0, &frame(60, 1), STP);
            raw.describe(TX_AT, 1, MEMORY as u32 - 1, OWN | ENP, 2);
        }),
        (Fault::Buffer, |raw| {
            raw.describe(RX_AT, 0, MEMORY as u32 - 50, OWN, 1544);
        }),
        (Fault::Ring, |raw| {
            raw.set_csr(0, 4);
            raw.set_csr(31, 0xffff);
            raw.set_csr(0, 0x42);
        }),
        (Fault::Ring, |raw| {
            raw.set_csr(0, 4);
            raw.set_csr(25, 0x10);
            raw.set_csr(0, 0x42);
        }),
    ];
    for (fault, break_it) in cases {
        let mut raw = Raw::new(&Setup::default());
        break_it(&mut raw);
        raw.demand();
        raw.bench.gather();
        raw.bench.deliver(&[to(raw.bench.mac, 60, 1)]);
        assert_eq!(raw.bench.registers.fault(), Some(fault));
        assert_eq!(raw.bench.model.device.fault(), Some(fault.sentence()));
        assert_eq!(raw.csr(0) & (TXON | RXON | MERR), MERR);
        assert!(raw.bench.level());
        assert_eq!(raw.bench.deliver(&[to(raw.bench.mac, 60, 1)]), 1);
        assert!(raw.bench.dropped(DropReason::Down) > 0);
        raw.initialize(&Setup::default());
        raw.set_csr(0, 0x42);
        raw.give(0, 8, 1544);
        raw.send(0, &frame(60, 5), STP | ENP);
        assert_eq!(raw.bench.gather(), [frame(60, 5)]);
        assert_eq!(raw.bench.model.device.fault(), None);
    }
}

#[test]
fn an_initialization_block_that_is_not_there_is_a_memory_error() {
    let mut raw = Raw::new(&Setup::default());
    raw.reset();
    raw.set_csr(2, 0xffff);
    raw.set_csr(0, 3);
    assert_eq!(raw.csr(0) & (MERR | IDON | TXON | RXON), MERR);
    assert_eq!(raw.bench.registers.fault(), Some(Fault::InitBlock));
}

#[test]
fn without_bus_mastering_no_memory_is_touched() {
    let mut raw = Raw::new(&Setup::default());
    raw.give(0, 8, 1544);
    raw.send(0, &frame(60, 1), STP | ENP);
    raw.bench.model.device.set_bus_master(false);
    raw.demand();
    assert!(raw.bench.gather().is_empty());
    raw.bench.deliver(&[to(raw.bench.mac, 60, 1)]);
    assert_eq!((raw.status(TX_AT, 0).0 & OWN, raw.status(RX_AT, 0).0), (OWN, OWN));
    raw.bench.model.device.set_bus_master(true);
    assert_eq!(raw.bench.gather().len(), 1);
}

#[test]
fn rings_that_move_while_frames_are_lent_get_nothing_back() {
    let mut raw = Raw::new(&Setup::default());
    raw.send(0, &frame(60, 1), STP | ENP);
    raw.demand();
    assert_eq!(raw.bench.lend().len(), 1);
    raw.set_csr(5, 1);
    raw.set_csr(30, TX_AT as u16 + 0x800);
    raw.set_csr(5, 0);
    raw.bench.complete(1);
    raw.describe(TX_AT + 0x800, 1, BUFFERS, OWN | STP | ENP, 60);
    assert_eq!(raw.bench.gather(), [frame(60, 1)], "goes on at its position in the new ring");
    assert_eq!(raw.bench.registers.fault(), None);
}

#[test]
fn nonsense_widths_and_places_have_answers() {
    let raw = Raw::new(&Setup::default());
    let device = &raw.bench.model.device;
    for bar in 0..7 {
        for at in (0..40).chain([0xffff_ffff, u64::MAX]) {
            for len in [1, 2, 4, 8] {
                device.write(bar, at, &[0xff; 8][..len], Nanos(1));
                device.read(bar, at, &mut [0; 8][..len], Nanos(1));
            }
        }
    }
}

/// The action of a hostile guest, its bus or the network.
#[derive(Clone, Debug)]
enum Step {
    Csr(u16, u16),
    Bcr(u16, u16),
    Access(bool, u64, Vec<u8>),
    Read(u64, usize),
    Word(u32, u32),
    Descriptor(bool, u32, u32, u16, u32),
    Gather(usize),
    Complete,
    Deliver(Vec<(bool, usize)>, bool),
    Pass(u64),
    Arm,
    Link(bool),
    Master(bool),
    Remake,
    Reset,
    Restart,
    /// A status block is announced, or taken away; then a word of it is written.
    Announce(u64),
    Block(u32, u32),
}

/// The address of the guest's status block, if it has one.
const BLOCK: u32 = 0x6000;

fn step() -> impl Strategy<Value = Step> {
    let place = prop_oneof![0..0x6000_u32, 0..0x1_0000_u32, Just(MEMORY as u32 - 8)];
    let buffer = prop_oneof![8 => 0x1_0000..0x4_0000_u32, 1 => any::<u32>()];
    let flags =
        prop_oneof![Just(0x8300_u16), Just(0x8200), Just(0x8100), Just(0x8000), any::<u16>()];
    prop_oneof![
        4 => (0..128_u16, any::<u16>()).prop_map(|(n, v)| Step::Csr(n, v)),
        4 => (prop_oneof![Just(0_u16), Just(3), Just(4), Just(5), Just(15)], any::<u16>())
            .prop_map(|(n, v)| Step::Csr(n, v)),
        2 => (0..64_u16, any::<u16>()).prop_map(|(n, v)| Step::Bcr(n, v)),
        1 => (any::<bool>(), 0..34_u64, prop::collection::vec(any::<u8>(), 0..9))
            .prop_map(|(bar, at, data)| Step::Access(bar, at, data)),
        1 => (0..34_u64, 0..9_usize).prop_map(|(at, len)| Step::Read(at, len)),
        2 => (place, any::<u32>()).prop_map(|(at, value)| Step::Word(at & !3, value)),
        6 => (any::<bool>(), 0..8_u32, buffer, flags, 0..5000_u32)
            .prop_map(|(tx, n, at, flags, len)| Step::Descriptor(tx, n, at, flags, len)),
        6 => (0..65_usize).prop_map(Step::Gather),
        3 => Just(Step::Complete),
        4 => (prop::collection::vec((any::<bool>(), 14..4096_usize), 1..6), any::<bool>())
            .prop_map(|(frames, lossless)| Step::Deliver(frames, lossless)),
        2 => prop_oneof![0..1000_u64, 0..3_000_000_u64].prop_map(Step::Pass),
        1 => Just(Step::Arm),
        1 => any::<bool>().prop_map(Step::Link),
        1 => prop::bool::weighted(0.9).prop_map(Step::Master),
        1 => Just(Step::Remake),
        1 => announce(),
        3 => (block_word(), 0..20_u32).prop_map(|(at, value)| Step::Block(at, value)),
        1 => Just(Step::Reset),
        2 => Just(Step::Restart),
    ]
}

/// A status block at its usual address, at none, or anywhere.
fn announce() -> impl Strategy<Value = Step> {
    prop_oneof![4 => Just(u64::from(BLOCK)), 1 => Just(0), 1 => any::<u64>()]
        .prop_map(Step::Announce)
}

/// Offsets of meaningful words in a block of either version.
fn block_word() -> impl Strategy<Value = u32> {
    let queues = [0x400_u32, 0x480, 0x800, 0x880];
    let two = (0..4_usize, 0..4_u32).prop_map(move |(queue, word)| queues[queue] + 4 * word);
    prop_oneof![0..0x60_u32, two].prop_map(|at| at & !3)
}

/// Performs a step; `lent` is the number of lent frames.
fn carry_out(raw: &mut Raw, step: Step, lent: &mut usize, delivered: &mut u64) {
    let now = raw.bench.now.get();
    match step {
        Step::Csr(number, value) => raw.set_csr(number, value),
        Step::Bcr(number, value) => raw.set_bcr(number, value),
        Step::Access(bar, at, data) => {
            raw.bench.model.device.write(usize::from(bar), at, &data, now);
        }
        Step::Read(at, len) => raw.bench.model.device.read(0, at, &mut vec![0; len], now),
        Step::Word(at, value) => raw.bench.write(at, &value.to_le_bytes()),
        Step::Descriptor(tx, number, at, flags, len) => {
            raw.describe(if tx { TX_AT } else { RX_AT }, number, at, flags, len);
        }
        Step::Gather(max) if *lent == 0 => {
            raw.bench.scratch.clear();
            let bench = &mut raw.bench;
            *lent = bench.model.transmit[0].gather(&mut bench.scratch, max, now);
            assert!(*lent <= max, "{lent} of {max}");
        }
        Step::Gather(_) => {}
        Step::Complete => {
            // Frames are completed one at a time, as in a stalled batch.
            for _ in 0..std::mem::take(lent) {
                raw.bench.complete(1);
            }
            let _ = raw.bench.model.transmit[0].settle(now);
        }
        Step::Deliver(frames, lossless) => {
            let mac = raw.bench.mac;
            let frames: Vec<_> = frames
                .into_iter()
                .map(|(mine, len)| if mine { to(mac, len, len) } else { frame(len, len) })
                .collect();
            let limits = Limits { lossless, ..LIMITS };
            *delivered += raw.bench.deliver_with(&frames, limits) as u64;
            let _ = raw.bench.model.receive[0].settle(now);
        }
        Step::Pass(nanos) => raw.bench.pass(nanos),
        Step::Arm => {
            raw.bench.model.transmit[0].arm();
            raw.bench.model.transmit[0].deadline();
        }
        Step::Link(up) => raw.bench.model.device.set_link(up, now),
        Step::Master(on) => raw.bench.model.device.set_bus_master(on),
        Step::Remake => {
            *lent = 0;
            raw.remake();
        }
        Step::Announce(at) => {
            for quarter in (0..4_u16).rev() {
                raw.set_csr(96 + quarter, (at >> (16 * quarter)) as u16);
            }
        }
        Step::Block(at, value) => raw.bench.write(BLOCK + at, &value.to_le_bytes()),
        Step::Reset => raw.bench.model.device.reset(now),
        Step::Restart => {
            raw.bench.model.device.set_bus_master(true);
            raw.bench.model.device.reset(now);
            raw.initialize(&Setup::default());
            raw.set_csr(0, 0x42);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_guest_does_every_frame_is_accounted_for(
        fast in any::<bool>(),
        style in 0..4_u16,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let chip = if fast { Chip::Am79C973 } else { Chip::Am79C970A };
        let setup = Setup { style, ..Setup::default() };
        let mut raw = Raw::over(Bench::with_csb(chip), &setup);
        let (mut lent, mut delivered) = (0, 0);
        for step in steps {
            carry_out(&mut raw, step, &mut lent, &mut delivered);
            let egress = raw.bench.egress();
            let dropped: u64 = egress.drops.iter().map(|drops| drops.get()).sum();
            prop_assert_eq!(egress.frames.get() + dropped, delivered);
            let level = raw.bench.level();
            prop_assert_eq!(raw.bench.level(), level, "asking changes nothing");
        }
        // A reset restores the device in any case.
        raw.bench.complete(lent);
        raw.bench.model.device.reset(Nanos(0));
        raw.bench.model.device.set_bus_master(true);
        raw.bench.model.device.set_link(true, Nanos(0));
        raw.initialize(&setup);
        raw.set_csr(0, 0x42);
        raw.give(0, 1, 1544);
        raw.send(0, &frame(60, 5), STP | ENP);
        raw.send(1, &frame(60, 5), 0);
        raw.describe(TX_AT, 1, 0, 0, 0);
        prop_assert_eq!(raw.bench.gather(), [frame(60, 5)]);
        let frames = raw.bench.egress().frames.get();
        raw.bench.deliver(&[to(raw.bench.mac, 60, 1)]);
        prop_assert_eq!(raw.bench.egress().frames.get(), frames + 1);
    }
}
