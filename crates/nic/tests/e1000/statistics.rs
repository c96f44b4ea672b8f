//! The statistics, and how to read them.

use nic::e1000::{Access, Chip, TABLE};
use port::Mac;

use super::bed::*;

#[test]
fn every_frame_is_counted_in_all_its_places() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(64, 64);
    bed.write(reg::RCTL, RCTL_ON | 1 << 4);
    let group = Mac::new([1, 0, 0x5e, 0, 0, 1]);
    // With check sequence: 64, 65, 127, 128, 255, 256, 511, 512, 1023, 1024, 1518.
    let lens = [60, 61, 123, 124, 251, 252, 507, 508, 1019, 1020, 1514];
    let mut frames: Vec<_> = lens.iter().map(|len| frame(*len, 1)).collect();
    frames.push(frame_to(group, 60, 1));
    frames.push(frame_to(Mac::new([0xff; 6]), 60, 1));
    let octets = lens.iter().map(|len| *len as u32 + 4).sum::<u32>() + 128;
    frames.iter().for_each(|frame| bed.put(frame));
    // A frame in two pieces counts the same.
    let at = bed.tx_buffer();
    bed.set_bytes(at, &frame_to(group, 100, 1));
    bed.describe(at, 40);
    bed.describe(at + 40, EOP_RS | 60);
    bed.doorbell();
    assert_eq!(bed.gather().len(), 14);
    assert_eq!(bed.deliver(&frames).0, 13);
    let expect = |name: &str, at: u64, want: u32| {
        assert_eq!((bed.read(at), bed.read(at)), (want, 0), "{name} {at:#x}");
    };
    for (received, sent) in [(0x405c, 0x40d8)] {
        for (class, want) in [3, 2, 2, 2, 2, 2].into_iter().enumerate() {
            expect("PRC", received + 4 * class as u64, want);
            expect("PTC", sent + 4 * class as u64, want + u32::from(class == 1));
        }
    }
    for (name, at, want) in [
        ("GPRC", 0x4074, 13),
        ("BPRC", 0x4078, 1),
        ("MPRC", 0x407c, 1),
        ("GPTC", 0x4080, 14),
        ("TPR", 0x40d0, 13),
        ("TPT", 0x40d4, 14),
        ("MPTC", 0x40f0, 2),
        ("BPTC", 0x40f4, 1),
    ] {
        expect(name, at, want);
    }
    for (low, want) in
        [(0x4088, octets), (0x4090, octets + 104), (0x40c0, octets), (0x40c8, octets + 104)]
    {
        assert_eq!(bed.read(low), want, "{low:#x}");
        assert_eq!(bed.read(low), want, "reading the low word clears nothing");
        assert_eq!((bed.read(low + 4), bed.read(low)), (0, 0), "the high one does");
    }
}

#[test]
fn drivers_hear_that_few_descriptors_are_left() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(64, 64);
    bed.write(0x3828, 1 << 25);
    bed.write(reg::IMS, 1 << 15);
    (0..16).for_each(|i| bed.put(&frame(64, i)));
    bed.write(reg::TDT, 16);
    let (frames, kick) = bed.gather_from(0);
    assert_eq!((frames.len(), kick), (16, true));
    assert_ne!(bed.read(reg::ICR) & 1 << 15, 0);
    bed.send(&frame(64, 1));
    let _ = bed.gather();
    assert_eq!(bed.read(reg::ICR) & 1 << 15, 0, "it was low before");
}

#[test]
fn regression_drivers_that_do_not_ask_are_not_told_that_few_descriptors_are_left() {
    for chip in [Chip::Em82540, Chip::L82574] {
        let mut bed = Bed::new(chip);
        bed.start(64, 64);
        // iPXE switches its transmit queue on, as on later chips, and checks all causes.
        bed.write(0x3828, 1 << 25);
        bed.write(reg::IMC, u32::MAX);
        (0..16).for_each(|i| bed.put(&frame(64, i)));
        bed.write(reg::TDT, 16);
        assert_eq!(bed.gather().len(), 16);
        let known = TXDW | 1 << 1 | LSC | 1 << 4 | 1 << 6 | RXT0;
        assert_eq!(bed.read(reg::ICR) & 0xf_ffff & !known, 0, "{chip:?}");
    }
}

#[test]
fn registers_are_as_the_table_says() {
    for chip in [Chip::Em82540, Chip::L82574] {
        let bed = Bed::new(chip);
        let plain = TABLE.iter().filter(|row| row.effect == nic::e1000::Effect::None);
        for row in plain {
            for i in 0..u64::from(row.count) {
                let at = u64::from(row.at) + 4 * i;
                let reset = row.reset[chip as usize];
                let there = row.members.has(chip);
                let before = bed.read(at);
                assert_eq!(before, if there { reset } else { 0 }, "{} at {at:#x}", row.name);
                bed.write(at, u32::MAX);
                let want = match row.access {
                    Access::ReadWrite if there => row.mask,
                    Access::ReadOnly if there => reset,
                    _ => 0,
                };
                assert_eq!(bed.read(at), want, "{} at {at:#x}", row.name);
            }
        }
        bed.write(reg::CTRL, 1 << 26);
        for row in TABLE.iter().filter(|row| row.effect == nic::e1000::Effect::None) {
            let want = match row.access {
                Access::WriteOnly | Access::ReadClear => 0,
                Access::ReadWrite if row.survives != 0 => row.mask,
                _ => row.reset[chip as usize],
            };
            let want = if row.members.has(chip) { want } else { 0 };
            assert_eq!(bed.read(row.at.into()), want, "{} after a reset", row.name);
        }
        bed.model.device.reset(bed.now);
        assert_eq!(bed.read(reg::MTA), 0);
    }
}

#[test]
fn shared_pages_have_what_the_chip_has() {
    for (chip, count) in [(Chip::Em82540, 17), (Chip::L82574, 28)] {
        let pages = nic::e1000::shared_pages(chip);
        let parts = [pages.registers, pages.heads, pages.tails];
        for at in parts.concat() {
            let row = TABLE.iter().find(|row| row.at == at).unwrap();
            assert!(row.members.has(chip), "{} of {chip:?}", row.name);
            assert!(pages.pages.contains(&u64::from(at & !0xfff)), "{}", row.name);
        }
        assert_eq!(pages.registers.len(), count, "{chip:?}");
        assert_eq!(pages.registers.last(), Some(&0x2830), "what maps the block comes last");
        assert_eq!(pages.heads.len(), pages.tails.len());
    }
}

#[test]
fn rows_are_in_order_and_apart() {
    for pair in TABLE.windows(2) {
        assert!(pair[0].at + 4 * u32::from(pair[0].count) <= pair[1].at, "{}", pair[1].name);
    }
}

#[test]
fn patterns_come_back_as_the_drivers_own_tests_want_them() {
    // Rows of Linux's `ethtool -t`: a register's offset, and the mask of its bits.
    let rows = [
        (0x28, u32::MAX),
        (0x2c, 0xffff),
        (0x30, 0xffff),
        (0x38, 0xffff),
        (reg::RDTR, 0xffff),
        (reg::RDBAH, u32::MAX),
        (reg::RDLEN, 0xf_ff80),
        (reg::RDH, 0xffff),
        (reg::RDT, 0xffff),
        (0x170, 0xffff),
        (reg::TDBAH, u32::MAX),
        (reg::TDLEN, 0xf_ff80),
        (reg::RDBAL, 0xffff_fff0),
        (reg::TDBAL, 0xffff_fff0),
        (reg::TIDV, 0xffff),
        (reg::RAL + 4, 0x8003_ffff),
        (reg::RAL + 124, 0x8003_ffff),
        (reg::MTA + 508, u32::MAX),
    ];
    for chip in [Chip::Em82540, Chip::L82574] {
        let bed = Bed::new(chip);
        for (at, mask) in rows {
            for pattern in [0x5a5a_5a5a, 0xa5a5_a5a5, 0, u32::MAX] {
                bed.write(at, pattern);
                assert_eq!(bed.read(at), pattern & mask, "{at:#x}");
            }
        }
        bed.write(reg::RCTL, 0);
        assert_eq!((bed.read(reg::RCTL), bed.read(reg::TCTL)), (0, 0));
        bed.write(reg::RCTL, 0x06df_b3fe);
        assert_eq!(bed.read(reg::RCTL), 0x06df_b3fe);
        let before = bed.read(reg::STATUS);
        bed.write(reg::STATUS, !before);
        assert_eq!(bed.read(reg::STATUS), before);
    }
}
