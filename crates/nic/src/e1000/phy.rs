//! The PHY behind MDIC: an M88E1011 (82540EM) or an 82574L's own (IEEE 802.3, 22.2.4; manual,
//! 13.4.8).

use std::sync::atomic::Ordering::Relaxed;

use super::Chip;
use super::registers::Registers;

/// Bits of MDIC.
pub(super) mod mdic {
    pub const WRITE: u32 = 1 << 26;
    pub const READ: u32 = 1 << 27;
    pub const READY: u32 = 1 << 28;
    pub const INTERRUPT: u32 = 1 << 29;
    pub const ERROR: u32 = 1 << 30;
}

/// The PHY's address.
const ADDRESS: u32 = 1;

const CONTROL: usize = 0;
const STATUS: usize = 1;
const PARTNER: usize = 5;
const GIGABIT_STATUS: usize = 10;
const SPECIFIC_STATUS: usize = 17;

/// Bits of the control register (BMCR).
mod bmcr {
    pub const RESET: u16 = 1 << 15;
    pub const LOOPBACK: u16 = 1 << 14;
    pub const RESTART: u16 = 1 << 9;
    /// Bits that keep what was written.
    pub const KEPT: u16 = 0x7dc0;
}

/// Each register's value after a reset, and its writable bits; `None` where there is no register.
pub(super) type Row = Option<(u16, u16)>;

const fn rows(chip: Chip) -> [Row; 32] {
    let mut rows: [Row; 32] = [None; 32];
    rows[CONTROL] = Some((0x1140, bmcr::KEPT));
    // The stored value. A read adds the bits for the link and for finished negotiation.
    rows[STATUS] = Some((0x7949, 0));
    rows[2] = Some((0x0141, 0));
    rows[3] = Some((
        match chip {
            Chip::Em82540 => 0x0c20,
            Chip::L82574 => 0x0cb1,
        },
        0,
    ));
    rows[4] = Some((0x0de1, 0xffff));
    rows[PARTNER] = Some((0x41e0, 0));
    rows[6] = Some((0x0001, 0));
    rows[7] = Some((0x2001, 0xffff));
    rows[8] = Some((0, 0));
    rows[9] = Some((0x0e00, 0xffff));
    rows[GIGABIT_STATUS] = Some((0x3c00, 0));
    rows[15] = Some((0x3000, 0));
    rows[16] = Some((0x0360, 0xffff));
    rows[SPECIFIC_STATUS] = Some((0xac00, 0));
    rows[18] = Some((0, 0xffff));
    rows[19] = Some((0, 0));
    rows[20] = Some((0x0d60, 0xffff));
    rows[21] = Some((0, 0));
    if let Chip::L82574 = chip {
        // The page register, and registers that the driver's workarounds write.
        rows[22] = Some((0, 0xffff));
        rows[25] = Some((0, 0xffff));
        rows[26] = Some((0, 0xffff));
        rows[29] = Some((0, 0xffff));
        rows[30] = Some((0, 0xffff));
        rows[31] = Some((0, 0xffff));
    }
    rows
}

const ROWS: [[Row; 32]; 2] = [rows(Chip::Em82540), rows(Chip::L82574)];

pub(super) fn row(chip: Chip, register: usize) -> Row {
    *ROWS.get(chip as usize)?.get(register)?
}

/// What a PHY access changed, so that the MAC can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Nothing,
    /// Negotiation restarted and completed.
    Negotiated,
}

/// Resets all registers.
pub(super) fn reset(registers: &Registers, chip: Chip) {
    for (number, register) in registers.phy.iter().enumerate() {
        register.store(u32::from(row(chip, number).map_or(0, |row| row.0)), Relaxed);
    }
}

/// Carries out a write to MDIC. Returns the new value of MDIC.
pub(super) fn access(registers: &Registers, chip: Chip, request: u32) -> (u32, Changed) {
    let number = (request >> 16 & 0x1f) as usize;
    let known = row(chip, number).filter(|_| request >> 21 & 0x1f == ADDRESS);
    let kept = request & !(mdic::READY | mdic::ERROR);
    let Some((_, mask)) = known else {
        return (kept | mdic::READY | mdic::ERROR, Changed::Nothing);
    };
    if request & mdic::READ != 0 {
        let value = u32::from(read(registers, number));
        return (kept & !0xffff | value | mdic::READY, Changed::Nothing);
    }
    let changed = match request & mdic::WRITE {
        0 => Changed::Nothing,
        _ => write(registers, chip, number, request as u16, mask),
    };
    (kept | mdic::READY, changed)
}

fn read(registers: &Registers, number: usize) -> u16 {
    let value = registers.phy.get(number).map_or(0, |register| register.load(Relaxed) as u16);
    let link = registers.has_link();
    match (number, link) {
        // Link up, negotiation complete.
        (STATUS, true) => value | 1 << 2 | 1 << 5,
        (PARTNER | GIGABIT_STATUS, false) => 0,
        // Without a link, the bits for speed, resolution and link are clear.
        (SPECIFIC_STATUS, false) => value & !0x8c00,
        _ => value,
    }
}

fn write(registers: &Registers, chip: Chip, number: usize, value: u16, mask: u16) -> Changed {
    if number == CONTROL && value & bmcr::RESET != 0 {
        reset(registers, chip);
        return Changed::Negotiated;
    }
    if let Some(register) = registers.phy.get(number) {
        let old = register.load(Relaxed) as u16;
        let writable = if number == CONTROL { mask & !bmcr::RESTART } else { mask };
        register.store(u32::from(old & !mask | value & writable), Relaxed);
    }
    match number == CONTROL && value & bmcr::RESTART != 0 {
        true => Changed::Negotiated,
        false => Changed::Nothing,
    }
}

/// True if the PHY loops back what the MAC sends.
pub(super) fn is_loopback(registers: &Registers) -> bool {
    registers.phy[CONTROL].load(Relaxed) as u16 & bmcr::LOOPBACK != 0
}
