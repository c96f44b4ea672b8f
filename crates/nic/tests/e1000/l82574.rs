//! The 82574L's additions to the 82540EM, as Linux's e1000e uses them.

use nic::device::{Bar, InterruptMode};
use nic::e1000::Chip;
use port::{DropReason, Offload};

use super::bed::*;

const RXQ0: u32 = 1 << 20;
const TXQ0: u32 = 1 << 22;
const OTHER: u32 = 1 << 24;
const ASSERTED: u32 = 1 << 31;

/// Extended descriptors; vector 0 for receive, 1 for transmit, 2 for the rest.
fn with_messages() -> Bed {
    let mut bed = Bed::new(Chip::L82574);
    bed.model.device.set_interrupt_mode(InterruptMode::Msix);
    bed.write(reg::RFCTL, 1 << 15);
    bed.start_transmit(32);
    bed.start_receive(32, RCTL_ON);
    bed.write(reg::IVAR, 0x800a_0908);
    bed.write(reg::CTRL_EXT, 1 << 31 | 1 << 24);
    bed.write(reg::EIAC, RXQ0 | TXQ0);
    bed.write(reg::IMS, RXQ0 | TXQ0 | OTHER | LSC);
    let _ = bed.read(reg::ICR);
    bed
}

/// The next frame received by extended descriptors.
fn receive(bed: &mut Bed) -> Option<(Vec<u8>, u32)> {
    let at = RX_AT + 16 * u64::from(bed.rx_next);
    let second = bed.word(at + 8);
    if second & 1 == 0 {
        return None;
    }
    let buffer = RX_BUFFERS + BUFFER * u64::from(bed.rx_next);
    let bytes = bed.bytes(buffer, (second >> 32 & 0xffff) as usize);
    bed.set_word(at, buffer);
    bed.set_word(at + 8, 0);
    bed.rx_next = (bed.rx_next + 1) % bed.rx_size;
    bed.rx_tail = (bed.rx_tail + 1) % bed.rx_size;
    bed.write(reg::RDT, bed.rx_tail);
    Some((bytes, second as u32 & 0xff))
}

#[test]
fn it_is_probed_as_linux_probes_it() {
    let bed = Bed::new(Chip::L82574);
    let identity = bed.model.device.identity();
    assert_eq!((identity.device, identity.express, identity.msi), (0x10d3, true, true));
    let msix = identity.msix.unwrap();
    assert_eq!((msix.vectors, msix.bar), (5, 3));
    assert_eq!(identity.bars[3], Some(Bar::Memory(0x4000)));
    // There is no flash: 64 words are read by number.
    assert_eq!(bed.read(0x10) >> 15 & 3, 0);
    assert_eq!(bed.read(0x10) >> 11 & 0xf, 0);
    let words = (0..64).map(|n| {
        bed.write(reg::EERD, n << 2 | 1);
        let answer = bed.read(reg::EERD);
        assert_eq!(answer & 2, 2);
        answer >> 16
    });
    assert_eq!(words.sum::<u32>() & 0xffff, 0xbaba);
    // Semaphores.
    assert_eq!((bed.read(0x5b50) & 1, bed.read(0x5b50) & 1), (0, 1), "reading takes it");
    bed.write(0x5b50, 0);
    bed.write(0xf00, 0x20);
    assert_eq!(bed.read(0xf00) & 0x20, 0x20);
    // Bus accesses stop before a reset.
    assert_ne!(bed.read(reg::STATUS) & 1 << 19, 0);
    bed.write(reg::CTRL, bed.read(reg::CTRL) | 4);
    assert_eq!(bed.read(reg::STATUS) & 1 << 19, 0);
    bed.write(reg::CTRL, bed.read(reg::CTRL) | 1 << 26);
    assert_eq!(bed.read(0x1010) & 1 << 18, 1 << 18, "configuration is done");
    for (number, value) in [(2, 0x0141), (3, 0x0cb1)] {
        bed.write(reg::MDIC, 1 << 27 | 1 << 21 | number << 16);
        assert_eq!(bed.read(reg::MDIC) & 0xffff, value);
    }
}

#[test]
fn data_interrupts_need_no_reads() {
    let mut bed = with_messages();
    assert_eq!(bed.deliver(&[frame(64, 1)]), (1, true));
    assert_eq!(bed.interrupt().vectors, 1);
    assert_eq!(bed.interrupt().vectors, 0, "a message is sent once");
    assert_eq!(receive(&mut bed).unwrap(), (frame(64, 1), 7));
    // The cause was cleared and masked: no interrupt comes while the driver polls.
    assert_eq!(bed.deliver(&[frame(64, 2)]), (1, false));
    assert_eq!(bed.interrupt().vectors, 0);
    bed.write(reg::IMS, RXQ0);
    assert_eq!(bed.interrupt().vectors, 1, "what came meanwhile is told now");
    bed.send(&frame(64, 3));
    assert_eq!(bed.gather_from(0), (vec![(frame(64, 3), Offload::NONE)], true));
    assert_eq!(bed.interrupt().vectors, 2);
    assert_eq!(bed.interrupt().vectors, 0);
}

#[test]
fn drivers_from_before_2015_do_not_unmask() {
    let mut bed = with_messages();
    bed.write(reg::IAM, !0x01f0_0000 | OTHER);
    bed.write(reg::CTRL_EXT, 1 << 31 | 1 << 27 | 1 << 24);
    for seed in 0..3 {
        bed.send(&frame(64, seed));
        assert!(bed.gather_from(0).1);
        assert_eq!(bed.interrupt().vectors, 2);
    }
}

#[test]
fn other_causes_have_a_vector_of_their_own() {
    let bed = with_messages();
    bed.model.device.set_link(false, bed.now);
    assert_eq!(bed.interrupt().vectors, 4);
    assert_eq!(bed.interrupt().vectors, 0);
    assert_eq!(bed.read(reg::ICR) & (ASSERTED | OTHER | LSC), ASSERTED | OTHER | LSC);
    bed.write(reg::IMS, OTHER | LSC);
    assert_eq!(bed.interrupt().vectors, 0, "read is cleared");
    bed.write(reg::ICS, OTHER | LSC);
    assert_eq!(bed.interrupt().vectors, 4);
}

#[test]
fn a_flood_is_no_other_cause() {
    let mut bed = with_messages();
    bed.write(reg::IMS, 1 << 6);
    let frames: Vec<_> = (0..60).map(|i| frame(64, i)).collect();
    assert_eq!(bed.deliver(&frames).0, 60);
    assert_eq!(bed.interrupt().vectors, 1);
    assert_eq!(bed.read(reg::ICR) & (1 << 6 | OTHER), 1 << 6);
}

#[test]
fn reading_causes_leaves_those_of_queues_to_their_vectors() {
    let mut bed = with_messages();
    let _ = bed.deliver(&[frame(64, 1)]);
    bed.model.device.set_link(false, bed.now);
    assert_ne!(bed.read(reg::ICR) & RXQ0, 0);
    assert_eq!(bed.interrupt().vectors, 1);
}

#[test]
fn with_one_message_reading_masks() {
    let mut bed = with_messages();
    bed.model.device.set_interrupt_mode(InterruptMode::Msi);
    bed.write(reg::CTRL_EXT, 1 << 27);
    bed.write(reg::IAM, u32::MAX);
    bed.write(reg::IMS, RXT0);
    let _ = bed.deliver(&[frame(64, 1)]);
    assert_eq!(bed.interrupt().vectors, 1);
    let causes = bed.read(reg::ICR);
    assert_eq!(causes & (ASSERTED | RXT0 | RXQ0), ASSERTED | RXT0 | RXQ0);
    assert_eq!(bed.read(reg::IMS), 0);
    assert_eq!(bed.deliver(&[frame(64, 1)]), (1, false));
    bed.write(reg::IMS, RXT0);
    assert_eq!(bed.interrupt().vectors, 1);
}

#[test]
fn each_vector_has_a_gap_of_its_own() {
    let mut bed = with_messages();
    bed.write(reg::EITR, 200);
    let _ = bed.deliver(&[frame(64, 1)]);
    assert_eq!(bed.interrupt().vectors, 1);
    bed.write(reg::IMS, RXQ0);
    let _ = bed.deliver(&[frame(64, 2)]);
    let held = bed.interrupt();
    assert_eq!((held.vectors, held.due), (0, Some(bed.now + 200 * 256)));
    bed.send(&frame(64, 3));
    assert!(bed.gather_from(0).1);
    assert_eq!(bed.interrupt().vectors, 2, "transmit is not held back");
    bed.now = bed.now + 200 * 256;
    assert_eq!(bed.interrupt().vectors, 1);
}

#[test]
fn two_queues_if_the_driver_spreads_over_them() {
    let mut bed = with_messages();
    // The second queue's ring lies elsewhere.
    for i in 0..8u64 {
        bed.set_word(0x3_0000 + 16 * i, RX_BUFFERS + 0x40_0000 + BUFFER * i);
    }
    for (at, value) in [(0x2908, 128), (0x2904, 0), (0x2900, 0x3_0000), (0x2910, 0), (0x2918, 7)] {
        bed.write(at, value);
    }
    let _ = bed.deliver_to(1, &[frame(64, 1)], LIMITS, Offload::NONE);
    assert!(receive(&mut bed).is_some(), "there is one queue until the driver asks for two");
    bed.write(reg::MRQC, 1);
    for i in 0..32 {
        bed.write(reg::RETA + 4 * i, 0x8000_8000);
    }
    let _ = bed.deliver_to(1, &[frame(64, 2)], LIMITS, Offload::NONE);
    assert!(receive(&mut bed).is_none());
    assert_eq!(bed.word(0x3_0008), 7 | 64 << 32);
    let _ = bed.deliver_to(0, &[frame(64, 3)], LIMITS, Offload::NONE);
    assert!(receive(&mut bed).is_some());
    assert_eq!(bed.read(reg::ICR) & 3 << 20, 3 << 20);
}

#[test]
fn packets_are_split_over_several_buffers() {
    let mut bed = with_messages();
    bed.write(0x2170, 2 | 4 << 8 | 4 << 16);
    bed.write(reg::RCTL, RCTL_ON | 1 << 10 | 1 << 5);
    for i in 0..8u64 {
        let buffer = RX_BUFFERS + BUFFER * i;
        let words = [buffer, buffer + 0x1000, buffer + 0x2000, u64::MAX];
        (0..4).for_each(|n| bed.set_word(RX_AT + 32 * i + 8 * n, words[n as usize]));
    }
    // Head and tail count units of 16 bytes, two for each descriptor.
    bed.write(reg::RDLEN, 256);
    bed.write(reg::RDH, 0);
    bed.write(reg::RDT, 14);
    let sent = frame(5000, 3);
    assert_eq!(bed.deliver(std::slice::from_ref(&sent)).0, 1);
    assert_eq!(bed.word(RX_AT + 8), 7 | 256 << 32);
    assert_eq!(bed.word(RX_AT + 16), 4096 << 16 | 648 << 32);
    let parts = [(0, 256), (0x1000, 4096), (0x2000, 648)];
    let got: Vec<u8> =
        parts.iter().flat_map(|(at, len)| bed.bytes(RX_BUFFERS + at, *len)).collect();
    assert_eq!(got, sent);
    assert_eq!(bed.read(reg::RDH), 2);
    assert_eq!(bed.deliver(&[frame(8448, 3), frame(8449, 4)]).0, 2);
    assert_eq!(drops(&bed.egress().drops, DropReason::TooLong), 1);
    let many: Vec<_> = (0..6).map(|i| frame(300, i)).collect();
    assert_eq!(bed.deliver(&many).0, 6);
    assert_eq!(drops(&bed.egress().drops, DropReason::Full), 1, "one of eight is the driver's");
    assert_eq!(bed.read(reg::RDH), 14);
    assert_eq!(bed.model.device.fault(), None);
}

#[test]
fn what_is_known_to_be_good_is_said() {
    use frame::{Ipv4, Protocol};
    use zerocopy::IntoBytes;
    let mut bed = with_messages();
    bed.write(reg::RXCSUM, 3 << 8);
    let mut good = frame(100, 0);
    good[12..14].copy_from_slice(&[8, 0]);
    let addresses = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let ip = Ipv4::new(addresses.0, addresses.1, Protocol::TCP, 66);
    good[14..34].copy_from_slice(ip.as_bytes());
    good[46] = 5 << 4;
    let valid = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
    let _ = bed.deliver_to(0, &[good.clone()], LIMITS, valid);
    assert_eq!(receive(&mut bed).unwrap().1, 0x63, "TCP and IP were looked at");
    let _ = bed.deliver(&[good.clone()]);
    assert_eq!(receive(&mut bed).unwrap().1, 7, "nobody vouches");
    good[24] ^= 1;
    let _ = bed.deliver_to(0, &[good], LIMITS, valid);
    assert_eq!(receive(&mut bed).unwrap().1, 7);
}
