//! A copy of the guest's memory stays in step with it.

use nic::e1000::Chip;
use nic::remote::Held;

use super::bed::{BUFFER, Bed, MEMORY, RCTL_ON, RX_AT, RX_BUFFERS, RXT0, TX_AT, frame, reg};
use super::carrier::{self, copy};

fn bed(chip: Chip) -> Bed {
    Bed::with(chip, |config| config.memory = copy(MEMORY))
}

/// Fetches what the device wants, and takes what it pushed. Returns where and how much, and the
/// causes to remind it of.
fn carry(bed: &Bed, held: &mut Held) -> (Vec<(u64, usize)>, u32) {
    carrier::carry(&*bed.model.device, &bed.memory, held, bed.now)
}

#[test]
fn frames_go_both_ways_over_a_copy() {
    for chip in [Chip::Em82540, Chip::L82574] {
        let (mut bed, mut held) = (bed(chip), Held::default());
        bed.start(16, 16);
        for round in 0..40u8 {
            let frames: Vec<_> = (0..5).map(|n| frame(60 + 250 * n, round)).collect();
            frames.iter().for_each(|frame| bed.put(frame));
            bed.doorbell();
            assert!(bed.gather().is_empty());
            carry(&bed, &mut held);
            let sent: Vec<_> = bed.gather().into_iter().map(|(frame, _)| frame).collect();
            assert_eq!(sent, frames);
            assert!(!bed.is_done((bed.tx_next + 15) % 16) || round > 2);
            carry(&bed, &mut held);
            assert!(bed.is_done((bed.tx_next + 15) % 16));
            assert_eq!(bed.deliver(&frames), (5, true));
            assert_eq!(bed.receive(), None, "it was not pushed");
            let (writes, causes) = carry(&bed, &mut held);
            assert_eq!(causes & RXT0, RXT0);
            assert!(writes.last().is_some_and(|(at, _)| (RX_AT..RX_AT + 256).contains(at)));
            for frame in &frames {
                assert_eq!(bed.receive().unwrap().0, *frame);
            }
        }
    }
}

/// Frames of several buffers, and descriptors whose addresses are overwritten.
#[test]
fn every_form_of_descriptor_is_pushed() {
    const EXTENDED: u32 = 1 << 15;
    let long = frame(1400, 9);
    for (rctl, rfctl) in
        [(RCTL_ON | 3 << 16, 0), (RCTL_ON | 3 << 16, EXTENDED), (RCTL_ON, EXTENDED)]
    {
        let (mut bed, mut held) = (bed(Chip::L82574), Held::default());
        bed.write(reg::RFCTL, rfctl);
        bed.start_receive(16, rctl);
        carry(&bed, &mut held);
        bed.deliver(std::slice::from_ref(&long));
        carry(&bed, &mut held);
        let size = if rctl == RCTL_ON { 2048 } else { 256 };
        let (mut got, mut n) = (Vec::new(), 0);
        while got.len() < long.len() {
            let second = bed.word(RX_AT + 16 * n + 8);
            let (len, done) = match rfctl {
                0 => (second & 0xffff, second >> 32 & 1),
                _ => (second >> 32 & 0xffff, second & 1),
            };
            assert!(done == 1 && len as usize <= size);
            got.extend(bed.bytes(RX_BUFFERS + BUFFER * n, len as usize));
            n += 1;
        }
        assert_eq!(got, long);
    }
}

#[test]
fn split_packets_are_pushed_to_their_buffers() {
    const SPLIT: u32 = 1 << 10;
    let (mut bed, mut held) = (bed(Chip::L82574), Held::default());
    bed.write(reg::RFCTL, 1 << 15);
    // Sizes of the buffers: 256 bytes, and 1,024 for each of the others.
    bed.write(0x2170, 2 | 1 << 8 | 1 << 16 | 1 << 24);
    bed.start_receive(16, RCTL_ON | SPLIT);
    for n in 0..32 {
        bed.set_word(RX_AT + 8 * n, RX_BUFFERS + BUFFER * n);
    }
    let long = frame(2000, 3);
    bed.write(reg::RCTL, RCTL_ON | SPLIT | 1 << 5);
    for round in 0..3 {
        carry(&bed, &mut held);
        assert_eq!(bed.deliver(std::slice::from_ref(&long)).0, 1);
        carry(&bed, &mut held);
        let first = 4 * round;
        let mut got = Vec::new();
        for (n, len) in [256, 1024, 720].into_iter().enumerate() {
            got.extend(bed.bytes(RX_BUFFERS + BUFFER * (first + n as u64), len));
        }
        assert_eq!(got, long);
        assert_eq!(bed.word(RX_AT + 32 * round + 8) & 3, 3);
    }
}

/// Objective: after a death, the successor leaves no driver waiting.
///
/// Steps: frames are sent and received, and are lost with the copy before they are pushed. The
/// successor has an empty copy. It gives sent frames back as sent, and received ones as damaged;
/// then traffic resumes.
#[test]
fn what_died_with_a_copy_is_given_back() {
    for chip in [Chip::Em82540, Chip::L82574] {
        let (mut bed, mut held) = (bed(chip), Held::default());
        bed.start(16, 16);
        carry(&bed, &mut held);
        let frames = [frame(100, 1), frame(200, 2), frame(300, 3)];
        frames.iter().for_each(|frame| bed.put(frame));
        bed.doorbell();
        carry(&bed, &mut held);
        assert_eq!(bed.gather().len(), 3);
        bed.deliver(&frames);
        bed.put(&frames[0]);
        bed.doorbell();
        bed.config.memory = copy(MEMORY);
        bed.remake();
        let mut held = Held::default();
        let (_, causes) = carry(&bed, &mut held);
        assert_eq!(causes & RXT0, RXT0);
        assert!([0, 1, 2].iter().all(|n| bed.is_done(*n)) && !bed.is_done(3));
        for n in 0..3 {
            let second = bed.word(RX_AT + 16 * n + 8);
            assert_eq!((second >> 32) as u16, 0x8003, "damaged");
            assert!(bed.receive().is_some());
        }
        carry(&bed, &mut held);
        assert_eq!(bed.gather().len(), 1);
        bed.deliver(&frames);
        carry(&bed, &mut held);
        assert_eq!(bed.receive().unwrap().0, frames[0]);
        assert_eq!(bed.model.device.fault(), None);
    }
}

/// Objective: what had left before a death belongs to the driver, even if that was not recorded.
/// None of it is written again.
///
/// Steps: three frames are received and pushed. The driver takes the first, and makes its
/// descriptor available again. The successor leaves all three as they are.
#[test]
fn regression_what_had_left_before_a_death_is_not_written_again() {
    for chip in [Chip::Em82540, Chip::L82574] {
        let (mut bed, mut held) = (bed(chip), Held::default());
        bed.start(16, 16);
        carry(&bed, &mut held);
        let frames = [frame(100, 1), frame(200, 2), frame(300, 3)];
        bed.deliver(&frames);
        carrier::take_and_die(&*bed.model.device, &bed.memory);
        assert_eq!(bed.receive().unwrap().0, frames[0]);
        bed.config.memory = copy(MEMORY);
        bed.remake();
        let mut held = Held::default();
        carry(&bed, &mut held);
        assert_eq!(bed.word(RX_AT + 8), 0, "it waits for a frame");
        for frame in &frames[1..] {
            assert_eq!(bed.receive().unwrap().0, *frame);
        }
        bed.deliver(&frames[..1]);
        carry(&bed, &mut held);
        assert_eq!(bed.receive().unwrap().0, frames[0]);
    }
}

#[test]
fn what_is_wrong_is_found_as_ever() {
    // Each case has one bad value: the tail, the ring's address, or a buffer's address.
    for (tail, ring, buffer) in
        [(16, TX_AT, 0x1000), (1, MEMORY, 0x1000), (1, TX_AT, MEMORY), (1, TX_AT, u64::MAX - 3)]
    {
        let (mut bed, mut held) = (bed(Chip::Em82540), Held::default());
        bed.start(16, 16);
        bed.write(reg::TDBAL, ring as u32);
        bed.describe(buffer, 1 << 24 | 100);
        bed.write(reg::TDT, tail);
        carry(&bed, &mut held);
        assert!(bed.gather().is_empty());
        assert!(bed.model.device.fault().is_some(), "{tail} {ring:#x} {buffer:#x}");
    }
}
