//! The first traffic of a NIC, after a bring-up as in Linux.

use nic::device::{Bar, InterruptMode};
use nic::e1000::Chip;
use port::{DropReason, Mac, Nanos};

use super::bed::*;

const MEMBERS: [Chip; 2] = [Chip::Em82540, Chip::L82574];

/// Reads a PHY register.
fn phy(bed: &Bed, number: u32) -> u32 {
    bed.write(reg::MDIC, 1 << 27 | 1 << 21 | number << 16);
    let answer = bed.read(reg::MDIC);
    assert_eq!(answer >> 28 & 5, 1, "ready and no error: {answer:#x}");
    answer & 0xffff
}

#[test]
fn the_82540em_is_probed_as_linux_probes_it() {
    let bed = Bed::new(Chip::Em82540);
    let identity = bed.model.device.identity();
    assert_eq!((identity.vendor, identity.device, identity.subsystem), (0x8086, 0x100e, 0x001e));
    assert_eq!(identity.bars[..2], [Some(Bar::Memory(0x2_0000)), Some(Bar::Io(64))]);
    bed.write(reg::IMC, u32::MAX);
    bed.write(reg::RCTL, 0);
    bed.write(reg::TCTL, 8);
    // The driver resets the chip through the I/O window.
    bed.write(0x5400, 0x1234);
    bed.model.device.write(1, 0, &0u32.to_le_bytes(), bed.now);
    let control = bed.read(reg::CTRL) | 1 << 26;
    bed.model.device.write(1, 4, &control.to_le_bytes(), bed.now);
    assert_eq!(bed.read(reg::CTRL), 0x0014_0240);
    assert_eq!(bed.read(reg::RAL).to_le_bytes(), MAC.octets()[..4], "loaded from the EEPROM");
    assert_eq!(bed.read(reg::RAL + 4), 0x8000_0000 | 0x0302);
    assert_eq!(bed.read(reg::STATUS), 0x8008_0783);
    assert_eq!((phy(&bed, 2), phy(&bed, 3)), (0x0141, 0x0c20));
    bed.write(reg::MDIC, 1 << 27 | 2 << 21);
    assert_eq!(bed.read(reg::MDIC) >> 28 & 5, 5, "no PHY at that address");
    // Link negotiation is complete as soon as it is requested.
    bed.write(reg::MDIC, 1 << 26 | 1 << 21 | 0x1340);
    assert_eq!(phy(&bed, 1) & 0x24, 0x24);
    assert_eq!(phy(&bed, 17), 0xac00);
    assert_eq!(phy(&bed, 0) & 0x0200, 0, "the restart bit clears itself");
}

#[test]
fn frames_go_both_ways() {
    for chip in MEMBERS {
        let mut bed = Bed::new(chip);
        bed.start(64, 64);
        let frames: Vec<_> = (0..5).map(|i| frame(60 + 300 * i, i as u8)).collect();
        frames.iter().for_each(|frame| bed.put(frame));
        bed.doorbell();
        let gathered: Vec<_> = bed.gather().into_iter().map(|(frame, _)| frame).collect();
        assert_eq!(gathered, frames);
        assert!((0..5).all(|i| bed.is_done(i)) && !bed.is_done(5));
        assert_eq!(bed.read(reg::TDH), 5);
        assert_eq!(bed.interrupt().vectors, 1);
        let causes = bed.read(reg::ICR) & 0x1ffff;
        assert_eq!(causes, TXDW | 2, "sent, and the ring is empty");
        assert_eq!(bed.read(reg::ICR), 0);
        assert_eq!(bed.interrupt().vectors, 0);

        let (finished, kick) = bed.deliver(&frames);
        assert_eq!((finished, kick), (5, true));
        assert_eq!(bed.interrupt().vectors, 1);
        assert_eq!(bed.read(reg::ICR) & 0x1ffff, RXT0);
        for frame in &frames {
            let (bytes, status, _) = bed.receive().unwrap();
            assert_eq!((&bytes, status), (frame, 7), "{chip:?}");
        }
        assert_eq!(bed.receive(), None);
        assert_eq!((bed.ingress().frames.get(), bed.egress().frames.get()), (5, 5));
        assert_eq!((bed.read(0x4074), bed.read(0x4074)), (5, 0), "read to clear");
        assert_eq!(bed.read(0x4080), 5);
    }
}

#[test]
fn rings_go_round_many_times() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(8, 8);
    for round in 0..50u8 {
        for i in 0..5 {
            bed.put(&frame(100 + usize::from(round), 5 * round + i));
        }
        bed.doorbell();
        let sent: Vec<_> = bed.gather().into_iter().map(|(frame, _)| frame).collect();
        assert_eq!(sent.len(), 5);
        assert_eq!(bed.deliver(&sent), (5, true));
        let _ = bed.read(reg::ICR);
        for i in 0..5 {
            let (bytes, ..) = bed.receive().expect("five frames a round");
            assert_eq!(bytes, frame(100 + usize::from(round), 5 * round + i));
        }
    }
    assert_eq!(bed.ingress().frames.get(), 250);
}

#[test]
fn without_buffers_frames_are_dropped_and_counted() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(8, 8);
    let frames: Vec<_> = (0..10).map(|i| frame(64, i)).collect();
    assert_eq!(bed.deliver(&frames).0, 10);
    assert_eq!(drops(&bed.egress().drops, DropReason::Full), 3);
    assert_eq!((bed.read(0x4010), bed.read(0x40a0)), (3, 3));
    assert_eq!(bed.read(reg::ICR), RXT0 | 1 << 6 | 1 << 4);
    assert_eq!(std::iter::from_fn(|| bed.receive()).count(), 7);
    let limits = port::Limits { lossless: true, ..LIMITS };
    assert_eq!(
        bed.deliver_to(0, &frames, limits, port::Offload::NONE).0,
        7,
        "stalled, not dropped"
    );
    assert_eq!(drops(&bed.egress().drops, DropReason::Full), 3);
}

#[test]
fn addresses_are_filtered() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(8, 8);
    let (other, group) = (Mac::new([2, 9, 9, 9, 9, 9]), Mac::new([1, 0, 0x5e, 0, 0, 0xfb]));
    let takes = |bed: &mut Bed, to| {
        let _ = bed.deliver(&[frame_to(to, 64, 1)]);
        bed.receive().is_some()
    };
    assert!(takes(&mut bed, MAC) && takes(&mut bed, Mac::new([0xff; 6])));
    assert!(!takes(&mut bed, other) && !takes(&mut bed, group));
    assert_eq!(drops(&bed.egress().drops, DropReason::Filtered), 2);
    bed.write(reg::RCTL, RCTL_ON & !(1 << 15));
    assert!(!takes(&mut bed, Mac::new([0xff; 6])));
    // The hash of 0xfb00 with offset 0: bits 47:36.
    bed.write(reg::MTA + 4 * (0xfb0 >> 5), 1 << (0xfb0 & 31));
    assert!(takes(&mut bed, group));
    bed.write(reg::MTA + 4 * (0xfb0 >> 5), 0);
    bed.write(reg::RAL + 8, 0x0909_0902);
    bed.write(reg::RAL + 12, 0x8000_0909);
    assert!(takes(&mut bed, other));
    bed.write(reg::RAL + 12, 0x0909);
    assert!(!takes(&mut bed, other));
    bed.write(reg::RCTL, RCTL_ON | 1 << 3);
    assert!(takes(&mut bed, other) && !takes(&mut bed, group));
    bed.write(reg::RCTL, RCTL_ON | 1 << 4);
    assert!(!takes(&mut bed, other) && takes(&mut bed, group));
}

#[test]
fn nothing_moves_without_bus_mastering_or_a_cable() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(8, 8);
    bed.model.device.set_bus_master(false);
    bed.send(&frame(64, 1));
    assert!(bed.gather().is_empty() && !bed.model.transmit[0].arm());
    assert_eq!(bed.deliver(&[frame(64, 2)]).0, 1);
    assert_eq!(drops(&bed.egress().drops, DropReason::Down), 1);
    bed.model.device.set_bus_master(true);
    bed.model.device.set_link(false, bed.now);
    assert_eq!(bed.read(reg::ICR) & LSC, LSC);
    assert_eq!(bed.read(reg::STATUS) & 2, 0);
    assert!(bed.gather().is_empty() && !bed.model.transmit[0].arm());
    bed.model.device.set_link(true, bed.now);
    assert_eq!(bed.gather().len(), 1, "it stayed in the ring");
    assert_eq!(bed.deliver(&[frame(64, 2)]), (1, true));
}

#[test]
fn a_new_process_goes_on_where_the_old_one_was() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(16, 16);
    for i in 0..3 {
        bed.put(&frame(64, i));
    }
    bed.doorbell();
    // This frame is taken, and never completed.
    bed.scratch.clear();
    assert_eq!(bed.model.transmit[0].gather(&mut bed.scratch, 64, bed.now), 3);
    let _ = bed.deliver(&[frame(70, 9)]);
    bed.remake();
    assert!((0..3).all(|i| bed.is_done(i)), "given back");
    assert_eq!(bed.read(reg::TDH), 3);
    assert_eq!(bed.interrupt().vectors, 1, "and told of");
    assert_eq!(bed.receive().unwrap().0, frame(70, 9));
    bed.send(&frame(64, 7));
    assert_eq!(bed.gather()[0].0, frame(64, 7));
    assert_eq!(bed.deliver(&[frame(71, 8)]).0, 1);
    assert_eq!(bed.receive().unwrap().0, frame(71, 8));
}

#[test]
fn the_line_is_a_level() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(8, 8);
    bed.write(reg::ICS, RXT0);
    assert_eq!((bed.interrupt().vectors, bed.interrupt().vectors), (1, 1));
    bed.write(reg::IMC, u32::MAX);
    assert_eq!(bed.interrupt().vectors, 0);
    bed.write(reg::IMS, RXT0);
    assert_eq!(bed.interrupt().vectors, 1, "a pending cause that is unmasked raises it");
    bed.model.device.set_interrupt_mode(InterruptMode::Msi);
    assert_eq!(
        (bed.interrupt().vectors, bed.interrupt().vectors),
        (1, 0),
        "a message is sent once"
    );
    assert_eq!(bed.read(reg::ICR), RXT0);
    bed.write(reg::ICS, LSC);
    assert_eq!(bed.interrupt().vectors, 0, "masked");
    bed.write(reg::IMS, LSC);
    assert_eq!(bed.interrupt().vectors, 1);
}

#[test]
fn the_first_interrupt_after_idleness_is_not_delayed() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(8, 8);
    bed.write(reg::ITR, 100);
    bed.write(reg::ICS, RXT0);
    assert_eq!(bed.interrupt().vectors, 1);
    let first = bed.now;
    let _ = bed.read(reg::ICR);
    bed.now = first + 1000;
    bed.write(reg::ICS, RXT0);
    let held = bed.interrupt();
    assert_eq!((held.vectors, held.due), (0, Some(first + 25_600)));
    bed.now = Nanos(first.0 + 25_599);
    assert_eq!(bed.interrupt().vectors, 0);
    bed.now = first + 25_600;
    assert_eq!(bed.interrupt().vectors, 1);
}

#[test]
fn regression_u_boot_takes_a_semaphore_that_the_82540em_does_not_have() {
    let bed = Bed::new(Chip::Em82540);
    const SWSM: u64 = 0x5b50;
    // SMBI reads as free every time, and SWESMBI keeps what was written.
    assert_eq!((bed.read(SWSM), bed.read(SWSM)), (0, 0));
    bed.write(SWSM, bed.read(SWSM) | 2);
    assert_eq!((bed.read(SWSM), bed.read(SWSM)), (2, 2));
    bed.write(SWSM, 0);
    assert_eq!(bed.read(SWSM), 0);
    bed.write(SWSM, 3);
    assert_eq!(bed.read(SWSM), 3);
    bed.write(reg::CTRL, bed.read(reg::CTRL) | 1 << 26);
    assert_eq!(bed.read(SWSM), 0, "free after a reset");
}
