//! Drivers that break the rules, including every class of bug that other models had. The NIC stops
//! or drops, a reset restores it, and nothing else happens.

use nic::e1000::Chip;
use port::{DropReason, Limits, Offload};

use super::bed::*;

const DEXT: u64 = 1 << 29;
const DATA: u64 = DEXT | 1 << 20;
const EOP: u64 = 1 << 24;
const TSE: u64 = 1 << 26;

fn bed() -> Bed {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(16, 16);
    bed
}

/// The device has stopped; a reset restores it.
fn stopped(bed: &mut Bed) {
    assert!(bed.gather().is_empty());
    assert!(bed.model.device.fault().is_some());
    assert!(!bed.model.transmit[0].arm());
    let down = drops(&bed.egress().drops, DropReason::Down);
    assert_eq!(bed.deliver(&[frame(64, 1), frame(64, 2)]).0, 2);
    assert_eq!(drops(&bed.egress().drops, DropReason::Down), down + 2);
    assert!(bed.ingress().faults.get() + bed.egress().faults.get() > 0);
    bed.write(reg::CTRL, 1 << 26);
    assert_eq!(bed.model.device.fault(), None);
    bed.start(16, 16);
    bed.send(&frame(64, 1));
    assert_eq!(bed.gather().len(), 1);
    assert_eq!(bed.deliver(&[frame(64, 1)]).0, 1);
    assert!(bed.receive().is_some());
}

#[test]
fn heads_and_tails_beyond_the_ring_cve_2016_1981_and_2017_9310() {
    for (at, value) in [(reg::TDH, 16), (reg::TDH, 0xffff), (reg::TDT, 16), (reg::TDT, 0xffff)] {
        let mut bed = bed();
        bed.write(at, value);
        bed.write(reg::TDT, if at == reg::TDH { 3 } else { value });
        assert!(bed.gather().is_empty());
        stopped(&mut bed);
    }
    for (at, value) in [(reg::RDH, 16), (reg::RDH, 0xffff), (reg::RDT, 16), (reg::RDT, 0xffff)] {
        let mut bed = bed();
        bed.write(at, value);
        assert_eq!(bed.deliver(&[frame(64, 1)]).0, 1);
        stopped(&mut bed);
    }
}

#[test]
fn rings_outside_of_memory() {
    for base in [MEMORY as u32, MEMORY as u32 - 16] {
        let mut bed = bed();
        bed.write(reg::TDBAL, base);
        bed.write(reg::TDT, 1);
        stopped(&mut bed);
        let mut bed = self::bed();
        bed.write(reg::RDBAL, base);
        assert_eq!(bed.deliver(&[frame(64, 1)]).0, 1);
        stopped(&mut bed);
    }
    // The register's own BAR is not guest memory, either.
    let mut bed = bed();
    bed.write(reg::TDBAH, 0xffff_ffff);
    bed.write(reg::TDT, 1);
    stopped(&mut bed);
}

#[test]
fn rings_of_no_descriptors() {
    let mut bed = bed();
    bed.write(reg::TDLEN, 0);
    bed.write(reg::TDT, 5);
    assert!(bed.gather().is_empty() && !bed.model.transmit[0].arm());
    bed.write(reg::RDLEN, 0);
    assert_eq!(bed.deliver(&[frame(64, 1)]).0, 1);
    assert_eq!(drops(&bed.egress().drops, DropReason::Full), 1);
    assert_eq!(bed.model.device.fault(), None);
}

#[test]
fn buffers_outside_of_memory_cve_2023_3019() {
    let mut bed = bed();
    bed.describe(MEMORY - 10, EOP_RS | 64);
    bed.doorbell();
    stopped(&mut bed);
    let mut bed = self::bed();
    bed.set_word(RX_AT, 0xfebc_0000);
    assert_eq!(bed.deliver(&[frame(64, 1)]).0, 1);
    stopped(&mut bed);
}

#[test]
fn null_descriptors_move_on_cve_2020_25707_and_28916() {
    let mut bed = bed();
    for _ in 0..5 {
        bed.describe(0, EOP_RS);
    }
    bed.put(&frame(64, 1));
    bed.describe(0, 1 << 27);
    bed.describe(0, EOP_RS);
    bed.doorbell();
    let lens: Vec<usize> = bed.gather().iter().map(|(frame, _)| frame.len()).collect();
    assert_eq!(lens, [0, 0, 0, 0, 0, 64, 0]);
    assert_eq!(bed.read(reg::TDH), 8);
    assert!((0..8).all(|i| bed.is_done(i)));
    // All receive buffers are at address 0: they are skipped, and none of them is waited for.
    (0..16).for_each(|i| bed.set_word(RX_AT + 16 * i, 0));
    assert_eq!(bed.deliver(&[frame(64, 1)]).0, 1);
    assert_eq!(drops(&bed.egress().drops, DropReason::Full), 1);
    bed.set_word(RX_AT + 16 * 3, RX_BUFFERS);
    assert_eq!(bed.deliver(&[frame(64, 2)]).0, 1);
    assert_eq!((bed.read(reg::RDH), bed.word(RX_AT + 8)), (4, 1 << 32));
    assert_eq!(bed.word(RX_AT + 16 * 3 + 8), 7 << 32 | 64);
}

#[test]
fn a_ring_full_of_frames_without_an_end() {
    let mut bed = bed();
    for _ in 0..15 {
        bed.describe(TX_BUFFERS, DATA | 10);
    }
    bed.doorbell();
    stopped(&mut bed);
}

#[test]
fn a_frame_that_is_not_whole_yet_is_waited_for_without_turning_in_circles() {
    let mut bed = bed();
    let whole = frame(300, 4);
    bed.set_bytes(TX_BUFFERS, &whole);
    for (i, end) in [(0, 0), (1, 0), (2, EOP)] {
        bed.describe(TX_BUFFERS + 100 * i, 1 << 27 | end | 100);
        bed.doorbell();
        let got = bed.gather();
        assert_eq!(got.len(), usize::from(end != 0));
        assert!(!bed.model.transmit[0].arm(), "asleep until the tail moves");
    }
    assert_eq!(bed.read(reg::TDH), 3);
}

#[test]
fn more_pieces_than_a_frame_may_have() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(256, 16);
    for (pieces, len) in [(63, 630), (64, 0), (200, 0)] {
        for i in 0..pieces {
            bed.describe(TX_BUFFERS, DATA | 10 | if i + 1 == pieces { EOP } else { 0 });
        }
        bed.doorbell();
        assert_eq!(bed.gather()[0].0.len(), len);
    }
    // The frame is longer than any packet may be.
    for i in 0..5 {
        bed.describe(TX_BUFFERS, DATA | 0x3fff | if i == 4 { EOP } else { 0 });
    }
    bed.doorbell();
    assert_eq!(bed.gather()[0].0.len(), 0);
    bed.describe(TX_BUFFERS, DATA | EOP | 0xf_ffff);
    bed.doorbell();
    assert_eq!(bed.gather()[0].0.len(), 0);
    assert_eq!(bed.model.device.fault(), None);
}

/// A context with these offsets and lengths, then a frame of `len` bytes for it.
fn segmented(
    bed: &mut Bed,
    places: [u64; 4],
    headers: u64,
    mss: u64,
    len: u64,
) -> (usize, Offload) {
    let [ip, ip_sum, transport, sum] = places;
    let first = ip | ip_sum << 8 | 33 << 16 | transport << 32 | sum << 40;
    bed.describe(first, DEXT | TSE | 3 << 24 | headers << 40 | mss << 48);
    bed.describe(TX_BUFFERS, DATA | EOP | TSE | 3 << 40 | len);
    bed.doorbell();
    let (frame, mut offload) = bed.gather().remove(0);
    let wire = offload.validate(&frame[..frame.len().min(128)], frame.len());
    assert!(wire.is_err(), "{places:?} {headers} {mss} {len}: {offload:?}");
    (frame.len(), offload)
}

#[test]
fn segments_that_make_no_sense_cve_2015_6815_2019_5609_2021_20257() {
    let mut bed = bed();
    bed.set_bytes(TX_BUFFERS, &frame(4000, 1));
    let good = [14, 24, 34, 50];
    for (places, headers, mss, len) in [
        (good, 54, 0, 3000),
        (good, 0, 1448, 3000),
        (good, 54, 1448, 54),
        (good, 54, 1448, 10),
        (good, 255, 1448, 3000),
        (good, 241, 1448, 3000),
        (good, 40, 1448, 3000),
        ([255, 255, 255, 255], 240, 1448, 3000),
        ([34, 24, 14, 50], 54, 1448, 3000),
        ([14, 24, 34, 10], 54, 1448, 3000),
        ([14, 24, 34, 53], 54, 1448, 3000),
        ([14, 255, 34, 50], 54, 1448, 3000),
    ] {
        segmented(&mut bed, places, headers, mss, len);
    }
    assert_eq!(bed.model.device.fault(), None);
}

#[test]
fn checksums_outside_of_their_frame_cve_2022_23087() {
    let mut bed = bed();
    let sent = frame(100, 1);
    for (start, store) in [(0, 98), (0, 99), (0, 255), (99, 98), (100, 0), (255, 255), (50, 10)] {
        bed.set_bytes(TX_BUFFERS, &sent);
        bed.describe(TX_BUFFERS, EOP_RS | 1 << 26 | store << 16 | start << 40 | 100);
        bed.doorbell();
        let (got, offload) = bed.gather().remove(0);
        assert_eq!((got.len(), offload), (100, Offload::NONE));
        let differ = (0..100).filter(|i| got[*i] != sent[*i]);
        let inside = store as usize..store as usize + 2;
        assert!(differ.into_iter().all(|i| inside.contains(&i)), "{start} {store}");
        for (end, kind) in [(0, 0), (20, 1), (0xffff, 1)] {
            let place = start | store << 8 | end << 16;
            bed.describe(place | place << 32, DEXT | kind << 24);
            bed.describe(TX_BUFFERS, DATA | EOP | 3 << 40 | 100);
            bed.doorbell();
            let (got, mut offload) = bed.gather().remove(0);
            assert_eq!(got.len(), 100);
            let _ = offload.validate(&got, 100);
        }
    }
}

#[test]
fn contexts_do_not_touch_a_frame_that_was_begun() {
    let mut bed = bed();
    bed.describe(14 | 24 << 8 | 33 << 16 | 34 << 32 | 50 << 40, DEXT | 3 << 24);
    bed.set_bytes(TX_BUFFERS, &frame(100, 1));
    bed.describe(TX_BUFFERS, DATA | 2 << 40 | 50);
    bed.describe(0xff, DEXT | 1 << 24);
    bed.describe(TX_BUFFERS + 50, DATA | EOP | 2 << 40 | 50);
    bed.doorbell();
    let (_, offload) = bed.gather().remove(0);
    assert_eq!((offload.checksum_start, offload.checksum_offset), (34, 16));
}

#[test]
fn frames_longer_than_buffers_cve_2012_6075() {
    let mut bed = Bed::new(Chip::Em82540);
    // Buffers of 256 bytes, each followed by bytes that must not be written.
    bed.start_receive(16, RCTL_ON | 3 << 16);
    let guard = [0xee; 64];
    (0..16).for_each(|i| bed.set_bytes(RX_BUFFERS + BUFFER * i + 256, &guard));
    let _ = bed.deliver(&[frame(1518, 1), frame(1519, 2), frame(9000, 3)]);
    assert_eq!(bed.receive().unwrap().0, frame(1518, 1));
    assert!(bed.receive().is_none());
    assert!((0..16).all(|i| bed.bytes(RX_BUFFERS + BUFFER * i + 256, 64) == guard));
    assert_eq!(drops(&bed.egress().drops, DropReason::TooLong), 2);
    bed.write(reg::RCTL, RCTL_ON | 3 << 16 | 1 << 5);
    let _ = bed.deliver(&[frame(9000, 3)]);
    assert_eq!(drops(&bed.egress().drops, DropReason::Full), 1, "not even half of it is written");
    assert_eq!(bed.word(RX_AT + 16 * 6 + 8), 0);
    let limits = Limits { max_frame: 200, lossless: false };
    let _ = bed.deliver_to(0, &[frame(201, 3)], limits, Offload::NONE);
    assert_eq!(drops(&bed.egress().drops, DropReason::TooLong), 3);
}

#[test]
fn loopback_does_not_recurse_cve_2021_3416() {
    let mut bed = bed();
    bed.write(reg::RCTL, RCTL_ON | 1 << 6);
    // The receive ring is the transmit ring: a looped-back frame is sent again, once a turn.
    bed.write(reg::RDBAL, TX_AT as u32);
    bed.write(reg::RDH, 0);
    for _ in 0..15 {
        bed.put(&frame(64, 1));
    }
    bed.doorbell();
    assert!(bed.gather().len() <= 15);
    assert!(bed.gather().len() <= 15);
}

#[test]
fn a_reset_in_the_middle_of_a_batch() {
    let mut bed = bed();
    bed.put(&frame(64, 1));
    bed.put(&frame(64, 2));
    bed.doorbell();
    bed.scratch.clear();
    let ingress = &mut bed.model.transmit[0];
    assert_eq!(ingress.gather(&mut bed.scratch, 64, bed.now), 2);
    bed.write(reg::CTRL, 1 << 26);
    bed.start(16, 16);
    bed.put(&frame(64, 3));
    bed.put(&frame(64, 4));
    bed.doorbell();
    let ingress = &mut bed.model.transmit[0];
    ingress.complete(1);
    assert!(!bed.is_done(0), "it is another ring's descriptor");
    assert_eq!(bed.gather().len(), 2);
    bed.model.transmit[0].complete(1);
    assert_eq!(bed.read(reg::TDH), 2);
    assert!(bed.is_done(0) && bed.is_done(1) && !bed.is_done(2));
}

#[test]
fn accesses_of_any_width_and_place_have_an_answer() {
    let bed = bed();
    let before = bed.read(reg::TDLEN);
    for bar in 0..7 {
        for at in [0u64, 1, 2, 3, 4, 0x3808, 0x3809, 0x1_fffc, 0x1_ffff, 0x2_0000, u64::MAX - 1] {
            for width in [0, 1, 2, 3, 4, 8, 16] {
                let mut data = vec![0xaa; width];
                bed.model.device.read(bar, at, &mut data, bed.now);
                if width != 4 && width != 8 || at % 4 != 0 {
                    bed.model.device.write(bar, at, &data, bed.now);
                }
            }
        }
    }
    assert_eq!(bed.read(reg::TDLEN), before);
}

#[test]
fn regression_what_comes_back_finds_a_head_beyond_the_ring() {
    let mut bed = bed();
    bed.write(reg::RCTL, RCTL_ON | 1 << 6);
    bed.write(reg::RDH, 17);
    bed.send(&frame(64, 1));
    let _ = bed.gather();
    stopped(&mut bed);
}

#[test]
fn regression_the_second_buffer_of_a_frame_is_outside_of_memory() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(16, 16);
    bed.write(reg::RCTL, RCTL_ON | 3 << 16);
    bed.set_word(RX_AT + 16, MEMORY);
    assert_eq!(bed.deliver(&[frame(300, 1)]).0, 1);
    assert_eq!(bed.word(RX_AT + 8), 0, "nothing is published of it");
    stopped(&mut bed);
}

#[test]
fn a_head_beyond_an_unused_ring_is_no_fault() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(16, 16);
    for (head, tail) in [(reg::TDH, reg::TDT), (reg::RDH, reg::RDT)] {
        bed.write(head, 40);
        bed.write(tail, 40);
    }
    assert!(bed.gather().is_empty() && !bed.model.transmit[0].arm());
    assert_eq!(bed.deliver(&[frame(64, 1)]).0, 1);
    assert_eq!(drops(&bed.egress().drops, DropReason::Full), 1);
    assert_eq!(bed.model.device.fault(), None);
}

#[test]
fn regression_a_tag_goes_in_behind_a_checksum_that_is_stored_at_the_start() {
    let mut bed = bed();
    bed.write(reg::CTRL, bed.read(reg::CTRL) | 1 << 30);
    let sent = frame(600, 1);
    for store in [0u64, 5, 11, 12, 13, 40, 249, 250, 251, 254] {
        bed.set_bytes(TX_BUFFERS, &sent);
        let bits = EOP_RS | 1 << 26 | 1 << 30 | store << 16 | 20 << 40 | 0x64 << 48;
        bed.describe(TX_BUFFERS, bits | 600);
        bed.doorbell();
        let (mut got, _) = bed.gather().remove(0);
        assert_eq!(got.len(), 604);
        assert_eq!(got.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 0x64]);
        let inside = store as usize..store as usize + 2;
        assert!((0..600).all(|i| got[i] == sent[i] || inside.contains(&i)), "{store}");
    }
}
