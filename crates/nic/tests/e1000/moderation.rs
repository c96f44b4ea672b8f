//! When interrupts come: delays, gaps, and combined doorbells.

use nic::device::Combining;
use nic::e1000::Chip;
use port::Nanos;

use super::bed::*;

const UNIT: u64 = 1024;

fn bed() -> Bed {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(64, 64);
    bed
}

/// Returns the interrupt that is raised at `now`, and when to ask again.
fn at(bed: &mut Bed, now: Nanos) -> (u32, Option<Nanos>) {
    bed.now = now;
    let interrupt = bed.interrupt();
    (interrupt.vectors, interrupt.due)
}

#[test]
fn each_frame_restarts_the_receive_delay_up_to_the_absolute_one() {
    let mut bed = bed();
    bed.write(reg::RDTR, 10);
    bed.write(reg::RADV, 25);
    let start = bed.now;
    assert_eq!(bed.deliver(&[frame(64, 1)]), (1, true), "somebody must know when it is due");
    assert_eq!(at(&mut bed, start), (0, Some(start + 10 * UNIT)));
    for step in [8u64, 16, 24] {
        bed.now = start + step * UNIT;
        assert_eq!(bed.deliver(&[frame(64, 2)]), (1, false));
        let due = (step + 10).min(25);
        assert_eq!(bed.interrupt().due, Some(start + due * UNIT), "{step}");
    }
    assert_eq!(bed.read(reg::ICS), 0);
    assert_eq!(at(&mut bed, start + 25 * UNIT), (1, None));
    assert_eq!(bed.read(reg::ICR), RXT0);
    // Both delays restart with the next frame: the receive delay and the absolute one.
    let start = start + 100 * UNIT;
    bed.now = start;
    assert_eq!(bed.deliver(&[frame(64, 3)]), (1, true));
    assert_eq!(at(&mut bed, start + 9 * UNIT), (0, Some(start + 10 * UNIT)));
    assert_eq!(at(&mut bed, start + 10 * UNIT), (1, None));
}

#[test]
fn a_driver_may_have_what_waits_at_once() {
    let mut bed = bed();
    bed.write(reg::RDTR, 100);
    let _ = bed.deliver(&[frame(64, 1)]);
    assert_eq!(bed.interrupt().vectors, 0);
    bed.write(reg::RDTR, 100 | 1 << 31);
    assert_eq!(bed.read(reg::RDTR), 100, "the bit clears itself");
    assert_eq!(bed.interrupt().vectors, 1);
}

#[test]
fn other_causes_are_not_held_back_by_the_delay() {
    let mut bed = bed();
    bed.write(reg::RDTR, 100);
    bed.write(reg::IMS, 1 << 4 | 1 << 16);
    bed.write(0x2c00, 68);
    assert_eq!(bed.deliver(&[frame(64, 1)]), (1, true));
    assert_eq!((bed.interrupt().vectors, bed.read(reg::ICR)), (1, 1 << 16), "a small frame");
    assert_eq!(bed.deliver(&(0..32).map(|i| frame(100, i)).collect::<Vec<_>>()).0, 32);
    assert_eq!((bed.interrupt().vectors, bed.read(reg::ICR)), (1, 1 << 4), "few buffers");
}

#[test]
fn transmit_delays_are_for_descriptors_that_allow_them() {
    let mut bed = bed();
    bed.write(reg::TIDV, 8);
    bed.write(reg::TADV, 20);
    let start = bed.now;
    let send = |bed: &mut Bed, bits: u64| {
        let buffer = bed.tx_buffer();
        bed.set_bytes(buffer, &frame(64, 1));
        bed.describe(buffer, EOP_RS | bits | 64);
        bed.doorbell();
        bed.gather_from(0).1
    };
    assert!(send(&mut bed, 1 << 31));
    assert_eq!(at(&mut bed, start), (0, Some(start + 8 * UNIT)));
    bed.now = start + 6 * UNIT;
    assert!(!send(&mut bed, 1 << 31));
    bed.now = start + 12 * UNIT;
    assert!(!send(&mut bed, 1 << 31));
    assert_eq!(at(&mut bed, start + 19 * UNIT), (0, Some(start + 20 * UNIT)));
    assert_eq!(at(&mut bed, start + 20 * UNIT), (1, None));
    let _ = bed.read(reg::ICR);
    assert!(send(&mut bed, 0), "at once");
    assert_eq!(bed.interrupt().vectors, 1);
    let _ = bed.read(reg::ICR);
    // A descriptor without RS causes no interrupt.
    let buffer = bed.tx_buffer();
    bed.describe(buffer, 1 << 24 | 64);
    bed.doorbell();
    assert!(!bed.gather_from(0).1);
    assert!(!bed.is_done(4));
}

#[test]
fn gaps_are_between_interrupts_whatever_their_cause() {
    let mut bed = bed();
    bed.write(reg::ITR, 200);
    let start = bed.now;
    let mut raised = Vec::new();
    for step in 0..1000u64 {
        bed.now = start + step * 1000;
        let _ = bed.deliver(&[frame(64, 1)]);
        if bed.interrupt().vectors == 1 {
            raised.push(step);
            let _ = bed.read(reg::ICR);
        }
        while bed.receive().is_some() {}
    }
    assert_eq!(raised[0], 0);
    assert!(raised.windows(2).all(|pair| pair[1] - pair[0] == 52), "51.2 us: {raised:?}");
}

#[test]
fn a_gap_is_not_paid_twice() {
    let mut bed = bed();
    bed.write(reg::ITR, 200);
    bed.write(reg::ICS, RXT0);
    let start = bed.now;
    assert_eq!(at(&mut bed, start).0, 1);
    let _ = bed.read(reg::ICR);
    bed.write(reg::ICS, RXT0);
    assert_eq!(at(&mut bed, start + 1), (0, Some(start + 51_200)));
    bed.write(reg::ITR, 0);
    assert_eq!(at(&mut bed, start + 2), (1, None), "the driver took the gap away");
}

#[test]
fn doorbells_are_held_back_while_traffic_is_heavy_and_only_then() {
    let combining = Combining { frames: 8, delay_us: 20 };
    let mut bed = Bed::with(Chip::Em82540, |config| config.combining = Some(combining));
    bed.start(64, 64);
    bed.send(&frame(64, 0));
    assert_eq!(bed.gather().len(), 1, "the first one goes at once");
    let mut batches = Vec::new();
    for seed in 0..80 {
        bed.now = bed.now + 1_000;
        bed.send(&frame(64, seed));
        batches.push(bed.gather().len());
    }
    let (quiet, heavy) = batches.split_at(40);
    assert!(quiet.starts_with(&[1, 1, 1]), "three are not many");
    assert_eq!(heavy.iter().filter(|frames| **frames > 0).count(), 5);
    assert!(heavy.iter().all(|frames| matches!(frames, 0 | 8)), "eight are enough");
    while !bed.gather().is_empty() {}
    let start = bed.now;
    bed.send(&frame(64, 8));
    assert!(bed.gather().is_empty());
    let due = bed.model.transmit[0].deadline().expect("frames wait");
    assert!(due <= start + 20_000);
    bed.now = Nanos(due.0 - 1);
    assert!(bed.gather().is_empty());
    bed.now = due;
    assert!(!bed.gather().is_empty(), "long enough");
    bed.now = due + 1_000_000;
    bed.send(&frame(64, 9));
    assert_eq!(bed.gather().len(), 1, "it was quiet");
    assert_eq!(bed.model.transmit[0].deadline(), None);
}
