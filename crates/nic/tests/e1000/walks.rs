//! How many descriptors a turn reads, whatever a driver wrote into its rings.

use nic::e1000::Chip;
use port::{DropReason, Limits, Offload};

use super::bed::*;

const DEXT: u64 = 1 << 29;
const DATA: u64 = DEXT | 1 << 20;
const EOP: u64 = 1 << 24;
/// The number of descriptors of the largest ring, and where they begin.
const SIZE: u32 = 65_528;
const RING_AT: u64 = 0x80_0000;

/// A large transmit ring, with `second` in each descriptor.
fn large(second: u64) -> Bed {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(16, 16);
    bed.write(reg::TDLEN, 16 * SIZE);
    bed.write(reg::TDBAL, RING_AT as u32);
    for at in 0..u64::from(SIZE) {
        bed.set_word(RING_AT + 16 * at, TX_BUFFERS);
        bed.set_word(RING_AT + 16 * at + 8, second);
    }
    bed
}

/// Returns how many descriptors `work` reads.
fn read(work: impl FnOnce()) -> u64 {
    let before = nic::descriptors_read();
    work();
    nic::descriptors_read() - before
}

#[test]
fn regression_a_frame_without_an_end_is_not_read_to_the_rings_end() {
    for second in [DATA, DATA | 10, 0, 10] {
        let mut bed = large(second);
        bed.write(reg::TDT, SIZE - 2);
        let read = read(|| assert!(bed.gather().is_empty()));
        assert!((256..600).contains(&read), "{read}");
        assert!(bed.model.device.fault().is_some(), "it has no end");
    }
}

#[test]
fn a_tail_that_moves_by_one_has_few_descriptors_read_again() {
    let mut bed = large(DATA);
    for tail in 1..=250 {
        bed.write(reg::TDT, tail);
        assert!(read(|| assert!(bed.gather().is_empty())) <= 256 + 64);
    }
    assert_eq!(bed.model.device.fault(), None, "it may still end");
    bed.set_word(RING_AT + 16 * 250 + 8, DATA | EOP | 100);
    bed.write(reg::TDT, 251);
    assert_eq!(bed.gather()[0].0.len(), 100);
}

#[test]
fn regression_frames_of_many_descriptors_and_contexts_are_taken_a_few_at_a_time() {
    // Only contexts, then frames with 200 empty descriptors before their bytes.
    for (second, every) in [(DEXT, 0), (DATA, 200)] {
        let mut bed = large(second);
        let ends = (1..u64::from(SIZE)).filter(|n| every > 0 && n % every == 0);
        ends.clone().for_each(|n| bed.set_word(RING_AT + 16 * (n - 1) + 8, DATA | EOP | 100));
        let tail = if every > 0 { SIZE - SIZE % every as u32 } else { SIZE - 1 };
        bed.write(reg::TDT, tail);
        let (mut frames, mut turns) = (0, 0);
        while bed.read(reg::TDH) != tail {
            let read = read(|| frames += bed.gather().len());
            assert!(read <= 64 * 65 + 2048 + 256, "{read}");
            turns += 1;
            assert!(turns < 300, "it gets on");
        }
        assert_eq!(bed.model.device.fault(), None);
        assert!(every == 0 || frames as u64 == ends.count() as u64);
        assert!(turns > 5, "what was allowed was spent");
    }
}

#[test]
fn drivers_segments_of_64_kib_are_gathered_as_many_as_there_is_room_for() {
    let mut bed = large(DATA | 3600);
    // Writes a header and 17 fragments 250 times, as Linux does.
    for n in 1..=250 {
        bed.set_word(RING_AT + 16 * (18 * n - 1) + 8, DATA | EOP | 4000);
    }
    bed.write(reg::TDT, 18 * 250);
    let mut frames = 0;
    while bed.read(reg::TDH) != 18 * 250 {
        let now = bed.gather();
        // 64 segments of a frame must fit.
        assert!(now.len() >= 17 || frames + now.len() == 250, "{}", now.len());
        assert!(now.iter().all(|(frame, _)| frame.len() == 17 * 3600 + 4000));
        frames += now.len();
    }
    assert_eq!(frames, 250);
}

#[test]
fn regression_frames_that_come_back_are_few_a_turn() {
    let mut bed = large(DATA | EOP | 9000);
    bed.write(reg::RCTL, RCTL_ON | 1 << 6 | 1 << 5);
    bed.write(reg::TDT, 64);
    let mut turns = 0;
    while bed.read(reg::TDH) != 64 {
        assert!(bed.gather().len() <= 8, "64 KiB");
        turns += 1;
        assert!(turns <= 64);
    }
}

#[test]
fn regression_receive_buffers_at_address_0_are_not_passed_over_without_end() {
    let lossless = Limits { lossless: true, ..LIMITS };
    for limits in [LIMITS, lossless] {
        let mut bed = Bed::new(Chip::Em82540);
        bed.start(16, 16);
        bed.write(reg::RDLEN, 16 * SIZE);
        bed.write(reg::RDBAL, RING_AT as u32);
        bed.write(reg::RDT, SIZE - 1);
        let frames = vec![frame(64, 1); 64];
        for turn in 1..4 {
            let mut finished = 0;
            let read = read(|| finished = bed.deliver_to(0, &frames, limits, Offload::NONE).0);
            assert_eq!(finished, 64);
            assert!(read <= 64 * 2 * 128, "{read}");
            assert_eq!(drops(&bed.egress().drops, DropReason::TooLong), turn * 64);
        }
        // Descriptors are given back: the last of each frame with an error.
        assert_eq!(bed.word(RING_AT + 16 * 126 + 8) >> 32 & 3, 1);
        assert_eq!(bed.word(RING_AT + 16 * 127 + 8) >> 32 & 3, 3);
        assert_ne!(bed.word(RING_AT + 16 * 127 + 8) >> 40 & 0x80, 0, "RXE");
        // Frames arrive where there are buffers.
        let at = u64::from(bed.read(reg::RDH));
        bed.set_word(RING_AT + 16 * at, RX_BUFFERS - 0x1_0000);
        assert_eq!(bed.deliver(&[frame(64, 2)]).0, 1);
        assert_eq!(bed.egress().frames.get(), 1);
    }
}

#[test]
fn the_longest_frame_fits_the_smallest_buffers() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start_receive(256, RCTL_ON | 3 << 16 | 1 << 5);
    assert_eq!(bed.deliver(&[frame(16_000, 1)]).0, 1);
    assert_eq!(bed.receive().expect("a frame").0, frame(16_000, 1));
}
