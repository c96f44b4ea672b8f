//! The registers of the PHY inside the Am79C973 (IEEE 802.3, 22.2.4).

/// The address of the PHY inside the chip (Am79C973, "BCR33").
pub(super) const ADDRESS: u16 = 30;

/// Basic control.
pub(super) const BMCR: usize = 0;
/// Basic status.
pub(super) const BMSR: usize = 1;
/// The registers for what the PHY and its partner advertise.
const ADVERTISED: usize = 4;
pub(super) const PARTNER: usize = 5;

/// A register of the PHY.
pub(super) struct PhyRegister {
    pub number: usize,
    pub reset: u16,
    /// Bits that software writes.
    pub mask: u16,
}

/// The PHY's registers; those beyond read as zero. The identifier is that of AMD's Am79C874.
pub(super) const PHY: [PhyRegister; 7] = [
    PhyRegister { number: BMCR, reset: 0x3100, mask: 0x7d80 },
    PhyRegister { number: BMSR, reset: 0x7849, mask: 0 },
    PhyRegister { number: 2, reset: 0x0022, mask: 0 },
    PhyRegister { number: 3, reset: 0x561b, mask: 0 },
    PhyRegister { number: ADVERTISED, reset: 0x01e1, mask: 0x3fff },
    PhyRegister { number: PARTNER, reset: 0x01e1, mask: 0 },
    PhyRegister { number: 6, reset: 0, mask: 0 },
];

/// A register's value after a reset, and its writable bits.
pub(super) fn row(number: usize) -> (u16, u16) {
    PHY.iter().find(|row| row.number == number).map_or((0, 0), |row| (row.reset, row.mask))
}
