//! Objective: rings, and the handling of frames, follow the Am79C970A's data sheet, in every
//! software style.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

mod pcnet_support;

use nic::device::Combining;
use nic::pcnet::Chip;
use pcnet_support::*;
use port::{DropReason, Limits, Mac, Nanos};

const STYLES: [u16; 4] = [0, 1, 2, 3];
const BUFF: u16 = 0x400;
const PAM: u16 = 0x40;
const LAFM: u16 = 0x20;
const BAM: u16 = 0x10;

fn with(style: u16) -> Setup {
    Setup { style, ..Setup::default() }
}

#[test]
fn frames_of_one_and_of_several_buffers_are_sent_in_every_style() {
    for style in STYLES {
        let mut raw = Raw::new(&with(style));
        let frame = frame(900, 1);
        raw.send(0, &frame[..100], STP);
        raw.send(1, &frame[100..101], 0);
        raw.send(2, &frame[101..], ENP);
        raw.send(3, &frame[..60], STP | ENP);
        raw.demand();
        assert_eq!(raw.bench.gather(), [frame.clone(), frame[..60].to_vec()], "{style}");
        for number in 0..4 {
            assert_eq!(raw.status(TX_AT, number).0 & (OWN | ERR), 0, "{style}");
        }
        assert_eq!(raw.csr(0) & TINT, TINT);
        assert_eq!(raw.csr(4) & 8, 8, "TXSTRT");
    }
}

#[test]
fn a_count_of_zero_is_a_buffer_of_4096_bytes() {
    let mut raw = Raw::new(&with(2));
    raw.bench.write(BUFFERS, &frame(4096, 3));
    raw.describe(TX_AT, 0, BUFFERS, OWN | STP | ENP, 0);
    raw.demand();
    assert_eq!(raw.bench.gather(), [frame(4096, 3)]);
    assert_eq!(raw.csr(0) & BABL, BABL);
}

#[test]
fn short_frames_are_padded_if_the_driver_wishes() {
    let short = frame(42, 5);
    let mut padded = short.clone();
    padded.resize(60, 0);
    for (features, want) in [(0x0915, &padded), (0x0115, &short)] {
        let mut raw = Raw::new(&Setup { features, ..Setup::default() });
        raw.send(0, &short, STP | ENP);
        raw.demand();
        assert_eq!(raw.bench.gather(), [want.as_slice()]);
    }
}

#[test]
fn check_sequences_that_drivers_bring_stay_behind() {
    const DXMTFCS: u16 = 8;
    const ADD_FCS: u16 = 0x2000;
    for (mode, style, flag, strips) in [
        (DXMTFCS, 2, 0, true),
        (DXMTFCS, 2, ADD_FCS, false),
        (0, 2, ADD_FCS, false),
        (0, 1, ADD_FCS, true),
        (DXMTFCS, 0, 0, true),
    ] {
        let mut raw = Raw::new(&Setup { mode, ..with(style) });
        let frame = frame(104, 2);
        raw.send(0, &frame, STP | ENP | flag);
        raw.send(1, &frame[..102], STP | flag);
        raw.send(2, &frame[102..], ENP);
        raw.demand();
        let want = if strips { &frame[..100] } else { &frame[..] };
        assert_eq!(raw.bench.gather(), [want, want], "{mode} {style} {flag}");
    }
}

#[test]
fn the_rest_of_a_frame_that_was_given_up_is_skipped() {
    let mut raw = Raw::new(&with(2));
    raw.send(0, &frame(60, 1), STP | ENP);
    raw.send(1, &frame(60, 2), 0);
    raw.send(2, &frame(60, 3), ENP);
    raw.send(3, &frame(60, 4), STP | ENP);
    raw.demand();
    assert_eq!(raw.bench.gather(), [frame(60, 1)]);
    assert_eq!(raw.bench.gather(), [frame(60, 4)]);
    assert_eq!(raw.status(TX_AT, 2).0 & OWN, 0);
}

#[test]
fn a_frame_without_an_end_waits_and_is_an_underflow_then() {
    for (dxsuflo, goes_on) in [(0, false), (0x40, true)] {
        let mut raw = Raw::new(&with(2));
        raw.set_csr(3, dxsuflo);
        raw.send(0, &frame(60, 1), STP);
        raw.demand();
        assert!(raw.bench.gather().is_empty());
        assert_eq!(raw.status(TX_AT, 0).0 & OWN, OWN);
        // A frame that is completed in time is like any other.
        raw.send(1, &frame(60, 2), ENP);
        assert_eq!(raw.bench.gather().len(), 1);
        raw.send(2, &frame(60, 1), STP);
        raw.demand();
        assert!(raw.bench.gather().is_empty());
        let deadline = raw.bench.model.transmit[0].deadline().unwrap();
        assert!(deadline <= raw.bench.now.get() + 2 * Nanos::MILLI);
        raw.bench.pass(2 * Nanos::MILLI);
        assert!(raw.bench.gather().is_empty());
        assert_eq!(raw.status(TX_AT, 2), (ERR | STP, 0xc000), "BUFF and UFLO");
        assert_eq!(raw.csr(0) & TXON != 0, goes_on);
        raw.send(3, &frame(60, 7), STP | ENP);
        raw.demand();
        assert_eq!(raw.bench.gather().len(), usize::from(goes_on));
    }
}

#[test]
fn without_demands_the_poll_timer_finds_frames_unless_it_is_off() {
    for (features, polls) in [(0x0915, true), (0x1915, false)] {
        let mut raw = Raw::new(&Setup { features, ..Setup::default() });
        assert!(raw.bench.gather().is_empty());
        raw.send(0, &frame(60, 1), STP | ENP);
        assert_eq!(raw.bench.model.transmit[0].deadline().is_some(), polls);
        assert_eq!(raw.bench.model.transmit[0].arm(), polls);
        assert_eq!(raw.bench.gather().len(), usize::from(polls));
        raw.demand();
        assert_eq!(raw.bench.gather().len(), usize::from(!polls));
    }
}

#[test]
fn an_idle_chip_is_polled_less_and_less_often() {
    let mut raw = Raw::new(&with(2));
    let mut gaps = Vec::new();
    for _ in 0..12 {
        raw.bench.gather();
        let next = raw.bench.model.transmit[0].deadline().unwrap();
        gaps.push(next - raw.bench.now.get());
        raw.bench.now.set(next);
    }
    assert_eq!(gaps[0], 65_536 * 30_303 / 1000, "the longest interval that CSR47 has");
    assert!(gaps.is_sorted() && gaps[11] <= Nanos::SECOND);
    raw.demand();
    raw.bench.gather();
    let next = raw.bench.model.transmit[0].deadline().unwrap();
    assert_eq!(next - raw.bench.now.get(), gaps[0]);
}

#[test]
fn transmit_interrupts_come_as_csr5_has_them() {
    const LTINT: u16 = 0x1000;
    for (csr5, flags, interrupts) in
        [(0, 0, true), (0x8000, LTINT, false), (0x4000, 0, false), (0x4000, LTINT, true)]
    {
        let mut raw = Raw::new(&with(2));
        raw.set_csr(5, csr5);
        raw.send(0, &frame(60, 1), STP | ENP | flags);
        raw.demand();
        assert_eq!(raw.bench.gather().len(), 1);
        assert_eq!(raw.csr(0) & TINT != 0, interrupts, "{csr5:#x} {flags:#x}");
        assert_eq!(raw.bench.level(), interrupts);
    }
}

#[test]
fn frames_are_received_in_every_style() {
    for style in STYLES {
        let mut raw = Raw::new(&with(style));
        raw.give(0, 8, 1544);
        let frame = to(raw.bench.mac, 100, 1);
        assert_eq!(raw.bench.deliver(&[frame.clone(), frame.clone()]), 2);
        let matched = if style == 0 { 0 } else { PAM };
        for number in 0..2 {
            assert_eq!(raw.status(RX_AT, number), (STP | ENP | matched, 104), "{style}");
            let got = raw.bench.read(Raw::rx_buffer(number), 104);
            assert_eq!(got, [&frame[..], &[0; 4]].concat());
        }
        assert_eq!(raw.status(RX_AT, 2).0, OWN);
        assert_eq!(raw.csr(0) & RINT, RINT);
        assert!(raw.bench.level());
    }
}

/// Objective: a buffer may go from one range of memory into the next, as it does behind an IOMMU.
#[test]
fn buffers_cross_the_border_between_two_ranges() {
    for (style, before) in STYLES.into_iter().zip([1, 13, 300, 899]) {
        let mut raw = Raw::new(&with(style));
        let at = DMA - before as u64;
        assert!(raw.bench.memory.bytes(at, before as u32 + 1).is_none(), "a border");
        let sent = frame(900, 1);
        raw.bench.write(at as u32, &sent[..before]);
        raw.bench.write(DMA as u32, &sent[before..]);
        raw.describe(TX_AT, 0, at as u32, OWN | STP | ENP, 900);
        raw.demand();
        assert_eq!(raw.bench.gather(), [sent], "{style}");
        raw.describe(RX_AT, 0, at as u32, OWN, 1544);
        let frame = to(raw.bench.mac, 900, 2);
        assert_eq!(raw.bench.deliver(&[&frame]), 1);
        let parts = [raw.bench.read(at as u32, before as u32), raw.bench.read(DMA as u32, 904)];
        assert_eq!(parts.concat()[..900], frame, "{style}");
        assert_eq!(raw.bench.model.device.fault(), None);
    }
}

#[test]
fn a_frame_goes_over_as_many_buffers_as_it_needs() {
    for style in STYLES {
        let mut raw = Raw::new(&with(style));
        raw.give(0, 4, 64);
        let frame = to(raw.bench.mac, 150, 1);
        assert_eq!(raw.bench.deliver(&[&frame]), 1);
        let matched = if style == 0 { 0 } else { PAM };
        let statuses: Vec<_> = (0..4).map(|number| raw.status(RX_AT, number).0).collect();
        assert_eq!(statuses, [STP, 0, ENP | matched, OWN], "{style}");
        assert_eq!(raw.status(RX_AT, 2).1, 154);
        let parts = (0..3).map(|number| raw.bench.read(Raw::rx_buffer(number), 64));
        assert_eq!(parts.collect::<Vec<_>>().concat()[..154], [&frame[..], &[0; 4]].concat());
    }
}

#[test]
fn without_buffers_frames_are_missed_and_counted() {
    let mut raw = Raw::new(&with(2));
    raw.give(0, 1, 1544);
    let frame = to(raw.bench.mac, 60, 1);
    let filtered = to(Mac::local(9), 60, 1);
    let frames = [frame.clone(), frame.clone(), filtered, frame];
    assert_eq!(raw.bench.deliver(&frames), 4);
    assert_eq!(raw.csr(0) & MISS, MISS);
    assert_eq!(raw.csr(0) & 0x8000, 0x8000, "ERR");
    assert_eq!(raw.csr(112), 2);
    let dropped = |reason| raw.bench.dropped(reason);
    assert_eq!((dropped(DropReason::Full), dropped(DropReason::Filtered)), (2, 1));
    assert_eq!(raw.bench.egress().frames.get(), 1);
}

#[test]
fn a_frame_without_enough_buffers_is_a_buffer_error() {
    for style in STYLES {
        let mut raw = Raw::new(&with(style));
        raw.give(0, 2, 64);
        assert_eq!(raw.bench.deliver(&[to(raw.bench.mac, 150, 1)]), 1);
        assert_eq!(raw.status(RX_AT, 0).0, STP, "{style}");
        assert_eq!(raw.status(RX_AT, 1).0, ERR | BUFF);
        assert_eq!(raw.csr(0) & (MISS | RINT), RINT);
        assert_eq!(raw.bench.dropped(DropReason::Full), 1);
    }
}

#[test]
fn a_lossless_port_stalls_instead() {
    let mut raw = Raw::new(&with(2));
    raw.give(0, 2, 64);
    let limits = Limits { lossless: true, ..LIMITS };
    let frames = [to(raw.bench.mac, 60, 1), to(raw.bench.mac, 100, 1)];
    assert_eq!(raw.bench.deliver_with(&frames, limits), 1);
    assert_eq!(raw.csr(0) & MISS, 0);
    assert_eq!(raw.status(RX_AT, 1).0, OWN);
    raw.give(2, 1, 64);
    assert_eq!(raw.bench.deliver_with(&frames[1..], limits), 1);
}

#[test]
fn addresses_are_filtered_as_csr8_to_csr15_say() {
    let group = Mac::new([1, 0, 0x5e, 0, 0, 1]);
    let hash = 1 << (crc(&group.octets()) >> 26);
    let other = Mac::local(77);
    for (mode, logical, to_whom, want) in [
        (0, 0, None, Some(PAM)),
        (0x2000, 0, None, None),
        (0, 0, Some(Mac::BROADCAST), Some(BAM)),
        (0x4000, 0, Some(Mac::BROADCAST), None),
        (0, 0, Some(group), None),
        (0, hash, Some(group), Some(LAFM)),
        (0, !hash, Some(group), None),
        (0, u64::MAX, Some(other), None),
        (PROM, 0, Some(other), Some(0)),
        (PROM, 0, None, Some(PAM)),
    ] {
        let mut raw = Raw::new(&Setup { mode, logical, ..Setup::default() });
        raw.give(0, 1, 1544);
        let address = to_whom.unwrap_or(raw.bench.mac);
        assert_eq!(raw.bench.deliver(&[to(address, 60, 1)]), 1);
        let status = raw.status(RX_AT, 0).0;
        let got = (status & OWN == 0).then_some(status & 0x70);
        assert_eq!(got, want, "{mode:#x} {address}");
        assert_eq!(raw.bench.dropped(DropReason::Filtered), u64::from(want.is_none()));
    }
}

fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |mut crc, byte| {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 });
        crc
    })
}

#[test]
fn padding_of_8023_frames_is_stripped_if_the_driver_wishes() {
    let mut raw = Raw::new(&Setup { features: 0x0d15, ..Setup::default() });
    raw.give(0, 3, 1544);
    let mut short = to(raw.bench.mac, 60, 1);
    short[12..14].copy_from_slice(&[0, 20]);
    let mut full = short.clone();
    full[12..14].copy_from_slice(&[0, 46]);
    let typed = to(raw.bench.mac, 60, 1);
    assert_eq!(raw.bench.deliver(&[short.clone(), full, typed]), 3);
    let lens = [0, 1, 2].map(|number| raw.status(RX_AT, number).1);
    assert_eq!(lens, [34, 64, 64]);
    assert_eq!(raw.bench.read(Raw::rx_buffer(0), 34), short[..34]);
}

#[test]
fn a_looped_frame_comes_back_with_its_check_sequence_and_goes_nowhere_else() {
    for mode in [LOOP, LOOP | 0x40] {
        let mut raw = Raw::new(&Setup { mode, ..Setup::default() });
        raw.give(0, 8, 1544);
        let frame = to(raw.bench.mac, 100, 1);
        raw.send(0, &frame[..50], STP);
        raw.send(1, &frame[50..], ENP);
        raw.demand();
        assert!(raw.bench.model.device.interrupt(raw.bench.now.get()).due.is_some());
        assert!(raw.bench.gather().is_empty());
        assert_eq!(raw.status(TX_AT, 1).0 & (OWN | ERR), 0);
        assert_eq!(raw.status(RX_AT, 0), (STP | ENP | PAM, 104));
        let got = raw.bench.read(Raw::rx_buffer(0), 104);
        assert_eq!(got, [&frame[..], &(!crc(&frame)).to_le_bytes()].concat());
        assert_eq!(raw.csr(0) & (TINT | RINT), TINT | RINT);
        assert_eq!(raw.bench.config.ingress.frames.get(), 0);
        // In loopback, no frame from outside is received.
        raw.bench.deliver(&[frame]);
        assert_eq!(raw.status(RX_AT, 1).0, OWN);
        assert_eq!(raw.bench.dropped(DropReason::Down), 1);
    }
}

#[test]
fn without_a_cable_the_carrier_is_lost() {
    let mut raw = Raw::new(&with(2));
    raw.give(0, 8, 1544);
    raw.bench.model.device.set_link(false, Nanos(0));
    assert_eq!(raw.bcr(4), 0x00c0, "the link LED is off");
    raw.send(0, &frame(60, 1), STP | ENP);
    raw.demand();
    assert!(raw.bench.gather().is_empty());
    assert_eq!(raw.status(TX_AT, 0), (ERR | STP | ENP, 0x0800), "LCAR");
    assert_eq!(raw.csr(0) & (CERR | TINT), CERR | TINT);
    assert_eq!(raw.bench.config.ingress.drops[DropReason::Down as usize].get(), 1);
    let frame = to(raw.bench.mac, 60, 1);
    assert_eq!(raw.bench.deliver(&[&frame]), 1);
    assert_eq!(raw.bench.dropped(DropReason::Down), 1);
    raw.bench.model.device.set_link(true, Nanos(0));
    assert_eq!(raw.bcr(4), 0x80c0);
    raw.bench.deliver(&[frame]);
    assert_eq!(raw.status(RX_AT, 0).0 & OWN, 0);
}

#[test]
fn suspended_it_moves_nothing_and_goes_on_where_it_was() {
    let mut raw = Raw::new(&with(2));
    raw.give(0, 8, 1544);
    raw.send(0, &frame(60, 1), STP | ENP);
    raw.demand();
    assert_eq!(raw.bench.gather().len(), 1);
    let frame_in = to(raw.bench.mac, 60, 1);
    raw.bench.deliver(&[&frame_in]);
    raw.set_csr(5, 1);
    assert_eq!(raw.csr(5) & 1, 1, "drivers wait for it");
    raw.send(1, &frame(60, 2), STP | ENP);
    raw.demand();
    assert!(raw.bench.gather().is_empty());
    raw.bench.deliver(&[&frame_in]);
    assert_eq!(raw.bench.dropped(DropReason::Down), 1);
    // A new logical filter, as pcnet32 writes it.
    raw.set_csr(8, 0xffff);
    assert_eq!(raw.csr(8), 0xffff);
    raw.set_csr(5, 0);
    assert_eq!(raw.bench.gather(), [frame(60, 2)]);
    raw.bench.deliver(&[frame_in]);
    assert_eq!(raw.status(RX_AT, 1).0 & OWN, 0);
}

#[test]
fn what_is_lent_when_the_chip_stops_is_not_given_back() {
    for stop in [|raw: &mut Raw| raw.set_csr(0, 4), |raw: &mut Raw| raw.reset()] {
        let mut raw = Raw::new(&with(2));
        raw.send(0, &frame(60, 1), STP | ENP);
        raw.send(1, &frame(60, 2), STP | ENP);
        raw.demand();
        assert_eq!(raw.bench.lend().len(), 2);
        stop(&mut raw);
        assert_eq!(raw.csr(0), 4);
        raw.bench.complete(2);
        assert_eq!(raw.status(TX_AT, 0).0 & OWN, OWN);
        assert_eq!(raw.csr(0), 4);
        // The chip starts from the ring's base again.
        raw.initialize(&with(2));
        raw.set_csr(0, 0x42);
        assert_eq!(raw.bench.gather(), [frame(60, 1), frame(60, 2)]);
    }
}

#[test]
fn stop_and_start_without_init_begin_at_the_bases() {
    let mut raw = Raw::new(&with(2));
    raw.send(0, &frame(60, 1), STP | ENP);
    raw.demand();
    assert_eq!(raw.bench.gather().len(), 1);
    assert_eq!(raw.csr(34), TX_AT as u16 + 16, "the current descriptor's address");
    assert_eq!(raw.csr(74), 7u16.wrapping_neg(), "descriptors to the end of the ring");
    raw.set_csr(0, 4);
    raw.send(0, &frame(60, 9), STP | ENP);
    raw.set_csr(0, 0x42);
    assert_eq!(raw.bench.gather(), [frame(60, 9)]);
}

#[test]
fn a_successor_in_another_process_finds_everything_in_the_registers() {
    for style in STYLES {
        let mut raw = Raw::new(&with(style));
        raw.give(0, 8, 1544);
        for round in 0..20_u32 {
            let seed = round as usize;
            let (now, next) = (2 * round % 8, (2 * round + 1) % 8);
            raw.send(now, &frame(60, seed), STP | ENP);
            raw.demand();
            raw.remake();
            assert_eq!(raw.bench.gather(), [frame(60, seed)], "{style}, round {round}");
            let incoming = to(raw.bench.mac, 70, seed);
            raw.bench.deliver(&[&incoming]);
            let number = round % 8;
            assert_eq!(raw.bench.read(Raw::rx_buffer(number), 70), incoming, "{style}");
            raw.give(number, 1, 1544);
            // The device died with a frame lent: the frame comes back unsent.
            raw.send(next, &frame(60, seed), STP | ENP);
            raw.demand();
            assert_eq!(raw.bench.lend().len(), 1);
            raw.remake();
            assert_eq!(raw.status(TX_AT, next).0 & OWN, 0);
            assert!(raw.bench.gather().is_empty());
            assert_eq!(raw.csr(0) & TINT, TINT);
        }
    }
}

#[test]
fn heavy_demands_are_combined_and_quiet_ones_are_not() {
    let limits = Combining { frames: 4, delay_us: 20 };
    let bench = Bench::with(Chip::Am79C970A, Some(limits));
    let mut raw = Raw::over(bench, &Setup { tx: 9, ..Setup::default() });
    raw.bench.gather();
    let (mut at, mut looks) = (0, 0);
    for _ in 0..200 {
        raw.bench.pass(1_000);
        raw.send(at % 8, &frame(60, 1), STP | ENP);
        raw.describe(TX_AT, at, BUFFERS, OWN | STP | ENP, 60);
        at += 1;
        raw.demand();
        looks += usize::from(!raw.bench.gather().is_empty());
    }
    assert!((50..70).contains(&looks), "{looks}");
    let accesses = raw.bench.registers.accesses();
    assert!(accesses.deferred >= 130, "{accesses:?}");
    // The remaining frames are sent in time.
    raw.bench.pass(20_000);
    raw.bench.gather();
    for _ in 0..10 {
        raw.bench.pass(Nanos::MILLI);
        raw.describe(TX_AT, at, BUFFERS, OWN | STP | ENP, 60);
        at += 1;
        raw.demand();
        assert_eq!(raw.bench.gather().len(), 1, "at once");
    }
}

#[test]
fn what_a_batch_leaves_behind_is_not_held_back() {
    let limits = Combining { frames: 100, delay_us: 1000 };
    let bench = Bench::with(Chip::Am79C970A, Some(limits));
    let mut raw = Raw::over(bench, &Setup { tx: 9, features: 0x1915, ..Setup::default() });
    raw.bench.gather();
    for number in 0..200 {
        raw.describe(TX_AT, number, BUFFERS, OWN | STP | ENP, 60);
    }
    raw.bench.pass(Nanos::SECOND);
    raw.demand();
    let lens: Vec<_> = (0..5).map(|_| raw.bench.gather().len()).collect();
    assert_eq!(lens, [64, 64, 64, 8, 0]);
}

#[test]
fn what_is_done_in_software_for_it_is_counted() {
    let raw = Raw::new(&Setup::default());
    let receive = &raw.bench.model.receive[0];
    assert_eq!(receive.takes(), port::OffloadSet::NONE);
    receive.count_software(port::Software { segmented: 1, segments: 2, checksums: 3 });
    let egress = raw.bench.egress();
    assert_eq!((egress.segmented.get(), egress.segments.get(), egress.checksums.get()), (1, 2, 3));
}
