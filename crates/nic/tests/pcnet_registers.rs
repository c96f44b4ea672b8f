//! Objective: registers of both chips behave as in their table and data sheets.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

mod pcnet_support;

use driver::Regs;
use nic::pcnet::{Chip, Class, describe};
use pcnet_support::*;
use port::Nanos;

fn chip(chip: Chip) -> Raw {
    let mut raw = Raw::over(Bench::new(chip), &Setup::default());
    raw.reset();
    raw
}

#[test]
fn after_a_reset_registers_have_their_values() {
    for (which, low) in [(Chip::Am79C970A, 0x1003), (Chip::Am79C973, 0x5003)] {
        let mut raw = chip(which);
        let mac = raw.bench.mac.octets();
        let half = |n: usize| u16::from_le_bytes([mac[n], mac[n + 1]]);
        for (number, want) in [
            (0, 0x0004),
            (3, 0),
            (4, 0x0115),
            (5, 0),
            (8, 0),
            (12, half(0)),
            (13, half(2)),
            (14, half(4)),
            (80, 0x1410),
            (88, low),
            (89, 0x0262),
            (100, 0x0200),
            (112, 0),
        ] {
            assert_eq!(raw.csr(number), want, "{which:?} CSR{number}");
        }
        raw.bench.model.device.reset(Nanos(0));
        let bcrs = [(2, 0x0002), (4, 0x80c0), (5, 0x0084), (9, 0), (18, 0x9001), (20, 0x0200)];
        for (number, want) in bcrs {
            assert_eq!(raw.bcr(number), want, "{which:?} BCR{number}");
        }
    }
}

#[test]
fn latches_keep_what_is_written_and_cost_nothing() {
    for which in [Chip::Am79C970A, Chip::Am79C973] {
        let mut raw = chip(which);
        let rows: Vec<_> = describe(which).collect();
        for row in rows.iter().filter(|row| (row.read, row.write) == (Class::Latch, Class::Latch)) {
            let number = u16::from(row.number);
            let before = raw.bench.registers.accesses();
            let mut pass = |value| {
                if row.bcr {
                    raw.set_bcr(number, value);
                    raw.bcr(number)
                } else {
                    raw.set_csr(number, value);
                    raw.csr(number)
                }
            };
            let (ones, zeros) = (pass(0xffff), pass(0));
            // Bits that can be set can be cleared; the others are fixed.
            assert_eq!(pass(0xffff), ones, "{row:?}");
            assert_eq!(ones & zeros, zeros, "{row:?}");
            let mut after = raw.bench.registers.accesses();
            after.by_class[0] -= 12;
            assert_eq!(after, before, "{row:?}");
        }
        assert_eq!(raw.csr(0), 4);
    }
}

#[test]
fn what_is_to_be_written_halted_is_not_written_while_it_runs() {
    let mut raw = Raw::new(&Setup::default());
    for number in [1, 8, 12, 15, 24, 30, 47, 76, 78, 112] {
        let before = raw.csr(number);
        raw.set_csr(number, !before);
        assert_eq!(raw.csr(number), before, "CSR{number}");
    }
    raw.set_bcr(20, 3);
    assert_eq!(raw.bcr(20), 0x0302);
    raw.set_csr(0, 4);
    for number in [1, 8, 12, 15, 24, 30, 47, 76, 78, 112] {
        raw.set_csr(number, 0x5555);
        assert_eq!(raw.csr(number), 0x5555, "CSR{number}");
    }
    for (style, want) in [(3, 0x0303), (1, 0x0101), (0, 0x0200), (4, 0x0200), (2, 0x0302)] {
        raw.set_bcr(20, style);
        assert_eq!((raw.bcr(20), raw.csr(58)), (want, want));
    }
    // Aliases.
    raw.set_csr(16, 0x1234);
    assert_eq!(raw.csr(1), 0x1234);
    assert_eq!(raw.csr(17), raw.csr(2));
}

#[test]
fn what_the_older_chip_has_not_reads_zero() {
    let mut raw = chip(Chip::Am79C970A);
    for number in [25, 32, 33, 34] {
        raw.set_bcr(number, 0xffff);
        assert_eq!(raw.bcr(number), 0);
    }
    for number in [7, 116, 104, 127] {
        raw.set_csr(number, 0xffff);
        assert_eq!(raw.csr(number), 0);
    }
    raw.set_bcr(200, 1);
    assert_eq!(raw.bcr(200 & 0x7f), 0);
}

#[test]
fn csr0_starts_and_stops_as_its_bits_have_it() {
    let mut raw = chip(Chip::Am79C970A);
    // Without INIT, from the values in the registers.
    raw.set_csr(0, 2);
    assert_eq!(raw.csr(0) & !0x80, 2 | TXON | RXON);
    raw.set_csr(0, 7);
    assert_eq!(raw.csr(0), 4, "STOP wins");
    for (mode, on) in [(0, TXON | RXON), (1, TXON), (2, RXON), (3, 0)] {
        let mut raw = Raw::new(&Setup { mode, ..Setup::default() });
        assert_eq!(raw.csr(0) & (TXON | RXON), on);
        raw.set_csr(0, IENA | 8);
        assert_eq!(raw.csr(0) & 8, 0, "TDMD clears itself");
        let network = raw.bench.registers.accesses().of(Class::Network);
        assert_eq!(network, u64::from(on & TXON != 0), "a demand without TXON is none");
    }
}

#[test]
fn interrupts_are_masked_cleared_and_raised_as_their_registers_say() {
    let mut raw = Raw::new(&Setup::default());
    raw.give(0, 8, 1544);
    assert!(!raw.bench.level());
    let mac = raw.bench.mac;
    raw.bench.deliver(&[to(mac, 60, 1)]);
    assert!(raw.bench.level());
    assert_eq!(raw.csr(0) & 0x80, 0x80, "INTR");
    raw.set_csr(3, 0x5f00);
    assert!(!raw.bench.level());
    assert_eq!(raw.csr(0) & (RINT | 0x80), RINT);
    raw.set_csr(3, 0);
    assert!(raw.bench.level(), "unmasked, what is pending interrupts");
    raw.set_csr(0, 0);
    assert!(!raw.bench.level(), "without IENA");
    assert_eq!(raw.csr(0) & 0x80, 0x80, "INTR stays");
    raw.set_csr(0, IENA | RINT);
    assert!(!raw.bench.level());
    assert_eq!(raw.csr(0) & RINT, 0);
    // CSR4: a software interrupt, and a start event that is masked at first.
    raw.set_csr(4, 0x0915 | 0x80);
    assert_eq!((raw.bench.level(), raw.csr(4)), (true, 0x0955));
    raw.set_csr(4, 0x0915 | 0x40);
    assert_eq!((raw.bench.level(), raw.csr(4)), (false, 0x0915));
    raw.send(0, &frame(60, 1), STP | ENP);
    raw.demand();
    raw.bench.gather();
    raw.set_csr(0, IENA | TINT);
    assert!(!raw.bench.level());
    raw.set_csr(4, 0x0911);
    assert!(raw.bench.level(), "TXSTRT");
    raw.set_csr(4, 0x0919);
    assert!(!raw.bench.level());
}

#[test]
fn a_settle_kicks_once_until_the_level_is_read() {
    let mut raw = Raw::new(&Setup::default());
    raw.give(0, 8, 1544);
    let mac = raw.bench.mac;
    let kick = |raw: &mut Raw| {
        raw.bench.deliver(&[to(mac, 60, 1)]);
        raw.bench.model.receive[0].settle(Nanos(0)).kick
    };
    assert!(kick(&mut raw));
    assert!(raw.bench.level());
    assert!(!kick(&mut raw), "the bus knows");
    raw.set_csr(0, IENA | RINT);
    assert!(!raw.bench.level());
    assert!(kick(&mut raw));
}

#[test]
fn windows_become_wide_by_a_wide_write_until_power_on() {
    let raw = chip(Chip::Am79C970A);
    let mut regs = raw.bench.regs();
    assert_eq!(regs.read32(0, 0x10), u32::MAX, "too wide");
    regs.write32(0, 0x10, 0);
    assert_eq!(regs.read16(0, 0x10), u16::MAX, "too narrow");
    assert_eq!((regs.read32(0, 0x14), regs.read32(0, 0x10)), (0, 4));
    regs.write32(1, 0x14, 18);
    assert_eq!(regs.read32(1, 0x1c), 0x9081, "DWIO, by the other window");
    regs.write32(0, 0x1c, 0x9001);
    assert_eq!(regs.read32(0, 0x1c), 0x9081, "it cannot be written");
    regs.write32(0, 0x14, 88);
    assert_eq!(regs.read32(0, 0x10), 0x0262_1003, "all of the chip id");
    assert_eq!(regs.read32(0, 0x18), 0, "S_RESET");
    assert_eq!((regs.read32(0, 0x14), regs.read32(0, 0x10)), (0, 4));
    raw.bench.model.device.reset(Nanos(0));
    assert_eq!(regs.read16(0, 0x10), 4);
}

#[test]
fn the_address_prom_is_read_at_any_width_and_written_when_allowed() {
    let mut raw = chip(Chip::Am79C970A);
    let device = std::sync::Arc::clone(&raw.bench.model.device);
    let read = |at, len: usize| {
        let mut bytes = vec![0; len];
        device.read(0, at, &mut bytes, Nanos(0));
        bytes
    };
    let mac = raw.bench.mac.octets();
    assert_eq!((0..6).flat_map(|at| read(at, 1)).collect::<Vec<_>>(), mac);
    assert_eq!([read(0, 4), read(4, 2)].concat(), mac);
    assert_eq!((read(9, 1), read(14, 2)), (vec![0x11], vec![0x57, 0x57]));
    assert_eq!(read(12, 8)[4..], [0xff; 4], "beyond it there is none");
    device.write(0, 0, &[1], Nanos(0));
    assert_eq!(read(0, 1), [mac[0]]);
    raw.set_bcr(2, 0x0102);
    device.write(0, 4, &[7, 8], Nanos(0));
    raw.reset();
    assert_eq!(read(4, 2), [7, 8]);
    assert_eq!(raw.csr(14), 0x0807, "taken over by a reset");
}

#[test]
fn the_newer_chip_has_one_phy() {
    let mut raw = chip(Chip::Am79C973);
    let mdio = |raw: &mut Raw, phy: u16, register: u16| {
        raw.set_bcr(33, phy << 5 | register);
        raw.bcr(34)
    };
    assert_eq!(raw.bcr(33) >> 5, 30);
    let there: Vec<_> = (0..32).filter(|phy| mdio(&mut raw, *phy, 2) != 0xffff).collect();
    assert_eq!(there, [30]);
    assert_eq!((mdio(&mut raw, 30, 2), mdio(&mut raw, 30, 3)), (0x0022, 0x561b));
    assert_eq!(mdio(&mut raw, 30, 1) & 0x24, 0x24, "link, negotiated");
    assert_eq!(mdio(&mut raw, 30, 5) & 0x4000, 0x4000, "acknowledged");
    raw.bench.model.device.set_link(false, Nanos(0));
    assert_eq!(mdio(&mut raw, 30, 1) & 0x24, 0);
    raw.set_bcr(33, 30 << 5);
    raw.set_bcr(34, 0x1200 | 0x2100);
    assert_eq!(raw.bcr(34), 0x3100, "restarting is over at once");
    raw.set_bcr(34, 0x8000);
    assert_eq!(raw.bcr(34), 0x3100, "reset");
    raw.set_bcr(33, 30 << 5 | 2);
    raw.set_bcr(34, 0);
    assert_eq!(raw.bcr(34), 0x0022, "fixed");
}

#[test]
fn the_phy_gives_frames_back_when_told_to() {
    let mut raw = Raw::over(Bench::new(Chip::Am79C973), &Setup::default());
    raw.give(0, 8, 1544);
    raw.set_bcr(33, 30 << 5);
    raw.set_bcr(34, 0x7100);
    let frame = to(raw.bench.mac, 80, 1);
    raw.send(0, &frame, STP | ENP);
    raw.demand();
    assert!(raw.bench.gather().is_empty());
    assert_eq!(raw.bench.read(Raw::rx_buffer(0), 80), frame);
}
