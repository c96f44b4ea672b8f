//! The Am79C973's PHY behind its MII (BCR32 to BCR34; IEEE 802.3, 22.2.4).

use std::sync::atomic::Ordering;

use super::registers::{Registers, bcr, board};

/// The address of the PHY inside the chip (Am79C973, "BCR33").
pub(super) const ADDRESS: u16 = 30;

/// Basic control.
const BMCR: usize = 0;
/// Basic status.
const BMSR: usize = 1;
/// The registers for what the PHY and its partner advertise.
const ADVERTISED: usize = 4;
const PARTNER: usize = 5;

const RESET: u16 = 1 << 15;
const LOOPBACK: u16 = 1 << 14;
const AUTONEGOTIATE: u16 = 1 << 12;
const RESTART: u16 = 1 << 9;
const LINK: u16 = 1 << 2;
const NEGOTIATED: u16 = 1 << 5;
const ACKNOWLEDGED: u16 = 1 << 14;

/// A register of the PHY.
struct Row {
    number: usize,
    reset: u16,
    /// Bits that software writes.
    mask: u16,
}

/// The PHY's registers; those beyond read as zero. The identifier is that of AMD's Am79C874.
const PHY: [Row; 7] = [
    Row { number: BMCR, reset: 0x3100, mask: 0x7d80 },
    Row { number: BMSR, reset: 0x7849, mask: 0 },
    Row { number: 2, reset: 0x0022, mask: 0 },
    Row { number: 3, reset: 0x561b, mask: 0 },
    Row { number: ADVERTISED, reset: 0x01e1, mask: 0x3fff },
    Row { number: PARTNER, reset: 0x01e1, mask: 0 },
    Row { number: 6, reset: 0, mask: 0 },
];

/// A register's value after a reset, and its writable bits.
pub(super) fn row(number: usize) -> (u16, u16) {
    PHY.iter().find(|row| row.number == number).map_or((0, 0), |row| (row.reset, row.mask))
}

pub(super) fn reset(registers: &Registers) {
    for row in &PHY {
        registers.phy[row.number].store(row.reset, Ordering::Relaxed);
    }
}

/// The number of the PHY's register that BCR33 names; `None` if it names another PHY.
fn named(registers: &Registers) -> Option<usize> {
    let address = registers.bcr(bcr::MII_ADDRESS);
    (address >> 5 & 0x1f == ADDRESS).then_some(usize::from(address & 0x1f))
}

/// Reads BCR34. For an absent PHY, the pulled-up line reads as ones.
pub(super) fn read(registers: &Registers) -> u16 {
    let Some(number) = named(registers) else { return 0xffff };
    let stored = registers.phy[number].load(Ordering::Relaxed);
    let negotiates = registers.phy[BMCR].load(Ordering::Relaxed) & AUTONEGOTIATE != 0;
    let up = registers.has(board::LINK);
    match number {
        BMSR if up && negotiates => stored | LINK | NEGOTIATED,
        BMSR if up => stored | LINK,
        PARTNER if up && negotiates => stored | ACKNOWLEDGED,
        PARTNER => 0,
        _ => stored,
    }
}

/// Writes BCR34. True if that changed what happens to frames.
pub(super) fn write(registers: &Registers, value: u16) -> bool {
    let Some(number) = named(registers) else { return false };
    let Some(row) = PHY.iter().find(|row| row.number == number) else { return false };
    let looped = is_looped(registers);
    if number == BMCR && value & RESET != 0 {
        reset(registers);
    } else {
        let value = if number == BMCR { value & !RESTART } else { value };
        let kept = registers.phy[number].load(Ordering::Relaxed) & !row.mask;
        registers.phy[number].store(kept | value & row.mask, Ordering::Relaxed);
    }
    is_looped(registers) != looped
}

/// True if the PHY loops back what is sent.
pub(super) fn is_looped(registers: &Registers) -> bool {
    registers.phy[BMCR].load(Ordering::Relaxed) & LOOPBACK != 0
}
