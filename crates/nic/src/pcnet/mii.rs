//! The Am79C973's PHY behind its MII (BCR32 to BCR34; IEEE 802.3, 22.2.4).

use std::sync::atomic::Ordering;

use super::phy::{ADDRESS, BMCR, BMSR, PARTNER, PHY};
use super::registers::{Registers, bcr, board};

const RESET: u16 = 1 << 15;
const LOOPBACK: u16 = 1 << 14;
const AUTONEGOTIATE: u16 = 1 << 12;
const RESTART: u16 = 1 << 9;
const LINK: u16 = 1 << 2;
const NEGOTIATED: u16 = 1 << 5;
const ACKNOWLEDGED: u16 = 1 << 14;

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
        registers.reset_phy();
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
