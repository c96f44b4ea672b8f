//! Buffers in memory that the device sees page by page, as behind an IOMMU: no page follows the one
//! before it in the device's view.

use std::sync::Arc;

use nic::e1000::Chip;
use port::DropReason;
use shmem::{GuestMemory, GuestRange, Memfd, Pages};

use super::bed::*;

const PAGE: u64 = 4096;

/// A bed whose driver sees all memory as one piece, and whose device sees each page as a range.
/// What the device sends from can only be read.
fn bed(chip: Chip) -> Bed {
    let file = Memfd::create("guest", MEMORY as usize, Pages::Small).unwrap();
    let views = [file.map().unwrap(), file.map().unwrap()];
    let range = |at: u64| GuestRange {
        guest: at,
        user: at,
        size: PAGE,
        mapping: Arc::clone(&views[(at / PAGE) as usize % 2]),
        offset: at as usize,
    };
    let all = (0..MEMORY).step_by(PAGE as usize).map(range);
    let is_sent = |range: &GuestRange| (TX_BUFFERS..RX_BUFFERS).contains(&range.guest);
    let (read_only, ranges) = all.partition(is_sent);
    let memory = GuestMemory::with_read_only(ranges, read_only).unwrap();
    let mut bed = Bed::with(chip, |config| config.memory = Arc::new(memory));
    bed.memory = Arc::new(GuestMemory::of(Arc::clone(&views[0]), 0).unwrap());
    bed
}

/// Where a buffer begins in a page, and how long the frame is: up to the page's end, and over one
/// border or several.
const PLACES: [(u64, usize); 6] =
    [(PAGE - 60, 60), (PAGE - 61, 62), (PAGE - 1, 1514), (PAGE - 9, 9000), (0, 1000), (4088, 60)];

#[test]
fn frames_are_sent_from_pages_anywhere() {
    for chip in [Chip::Em82540, Chip::L82574] {
        let mut bed = bed(chip);
        bed.start(64, 64);
        let mut want = Vec::new();
        for (i, (from, len)) in PLACES.into_iter().enumerate() {
            let sent = frame(len, i as u8);
            let at = TX_BUFFERS + BUFFER * i as u64 + from;
            bed.set_bytes(at, &sent);
            bed.describe(at, EOP_RS | len as u64);
            want.push(sent);
        }
        // Several buffers, the second of them over a border.
        let sent = frame(1400, 9);
        let at = TX_BUFFERS + BUFFER * 20 + PAGE - 700;
        bed.set_bytes(at, &sent);
        bed.describe(at, 14);
        bed.describe(at + 14, EOP_RS | 1386);
        want.push(sent);
        bed.doorbell();
        let got: Vec<_> = bed.gather().into_iter().map(|(frame, _)| frame).collect();
        assert_eq!(got, want, "{chip:?}");
        assert_eq!(bed.model.device.fault(), None);
        // The end of memory is still a fault.
        bed.describe(MEMORY - 30, EOP_RS | 60);
        bed.doorbell();
        assert!(bed.gather().is_empty() && bed.model.device.fault().is_some());
    }
}

#[test]
fn frames_are_received_into_pages_anywhere() {
    for chip in [Chip::Em82540, Chip::L82574] {
        let mut bed = bed(chip);
        bed.start(64, 64);
        // Long frames go over several buffers.
        bed.write(reg::RCTL, RCTL_ON | 1 << 5);
        let starts = [PAGE - 7, PAGE - 60, PAGE - 2047, 0, 2048, PAGE - 1];
        for i in 0..64u64 {
            let from = starts[i as usize % starts.len()];
            bed.set_word(RX_AT + 16 * i, RX_BUFFERS + BUFFER * i + from);
        }
        for round in 0..20u8 {
            let sent: Vec<_> =
                [60, 61, 1514, 2048, 5000].map(|len| frame(len, round)).into_iter().collect();
            assert_eq!(bed.deliver(&sent).0, sent.len(), "{chip:?}");
            for frame in &sent {
                let (got, _, _) = bed.receive().unwrap();
                assert!(got == *frame, "{chip:?}, round {round}, {} bytes", frame.len());
            }
        }
        assert_eq!(bed.model.device.fault(), None);
        let lost = bed.egress().drops.iter().map(port::Counter::get).sum::<u64>();
        assert_eq!((lost, drops(&bed.egress().drops, DropReason::Full)), (0, 0));
    }
}

/// Packet split (82574L datasheet, 7.1.10).
#[test]
fn packets_are_split_over_pages_anywhere() {
    let mut bed = bed(Chip::L82574);
    bed.start(64, 64);
    bed.write(0x2170, 2 | 4 << 8 | 4 << 16);
    bed.write(reg::RFCTL, 1 << 15);
    bed.write(reg::RCTL, RCTL_ON | 1 << 10 | 1 << 5);
    let buffer = RX_BUFFERS + PAGE - 200;
    let words = [buffer, buffer + 0x1000, buffer + 0x2000, u64::MAX];
    (0..4).for_each(|n| bed.set_word(RX_AT + 8 * n, words[n as usize]));
    bed.write(reg::RDLEN, 256);
    bed.write(reg::RDH, 0);
    bed.write(reg::RDT, 2);
    let sent = frame(5000, 3);
    assert_eq!(bed.deliver(std::slice::from_ref(&sent)).0, 1);
    let parts = [(0, 256), (0x1000, 4096), (0x2000, 648)];
    let got: Vec<u8> = parts.iter().flat_map(|(at, len)| bed.bytes(buffer + at, *len)).collect();
    assert!(got == sent);
    assert_eq!(bed.model.device.fault(), None);
}
