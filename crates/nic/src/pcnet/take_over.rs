//! Takes over registers of a chip of the same kind that ran on another machine.

use std::sync::atomic::Ordering::Relaxed;

use super::device::style_bits;
use super::phy;
use super::registers::{Fault, Registers, bcr, board, csr, status};
use super::table::{self, Chip, Effect, Register};
use crate::device::Impossible;
use crate::model::regs::Access;

/// The most descriptors of a ring.
const LONGEST_RING: u32 = 0x1_0000;
/// The bits of CSR0 that are stored. Other bits are computed, or carried out at once.
const STATUS: u16 = status::EVENTS | STOPPED | status::STOP | status::IENA;
/// The bits of CSR0 that STOP clears.
const STOPPED: u16 = status::INIT | status::STRT | status::TXON | status::RXON;

impl Register {
    /// Bits that may differ from the reset value. Aliases are stored elsewhere.
    fn settable(&self, csb: bool) -> u16 {
        let (mask, _) = self.bits();
        match self.effect.effect {
            Effect::Control => STATUS,
            Effect::Csr(_) | Effect::Bcr(_) => 0,
            Effect::Block | Effect::BlockAddress if !csb => 0,
            Effect::Events(events) | Effect::Features(events) | Effect::Suspend(events) => {
                mask | events
            }
            _ if self.access == Access::ReadOnly => 0,
            _ => mask,
        }
    }
}

impl Registers {
    /// Takes the registers over. Refuses a state that no driver of `chip` can produce.
    ///
    /// # Errors
    /// [`Impossible`]: no device may be made over these registers.
    pub fn take_over(&self, chip: Chip, csb: bool) -> Result<(), Impossible> {
        let id = chip.id();
        for number in 0..self.csr.len() {
            let row = table::csr(number, chip);
            let bits = match number {
                csr::LENGTHS => (0, u16::MAX),
                88 => (id.0, 0),
                89 => (id.1, 0),
                _ => row.map_or((0, 0), |row| (row.bits().1, row.settable(csb))),
            };
            Impossible::check(row.map_or("a CSR", |row| row.name), self.csr(number), bits)?;
        }
        for number in 0..self.bcr.len() {
            let (row, value) = (table::bcr(number, chip), self.bcr(number));
            let bits = match number {
                bcr::STYLE => (style_bits(value), 0),
                bcr::BUS => (0, u16::MAX),
                _ => row.map_or((0, 0), |row| (row.bits().1, row.settable(csb))),
            };
            Impossible::check(row.map_or("a BCR", |row| row.name), value, bits)?;
        }
        self.check_others()
    }

    /// Checks the state beside the registers. Counts, the address PROM, and change counters may be
    /// anything.
    fn check_others(&self) -> Result<(), Impossible> {
        let status = self.status();
        let halted = status & status::STOP == 0 || status & STOPPED == 0;
        let started = status & (status::TXON | status::RXON) == 0 || status & status::STRT != 0;
        if !halted || !started {
            return Err(Impossible { what: "status", value: status.into() });
        }
        for (number, register) in self.phy.iter().enumerate() {
            Impossible::check("a PHY register", register.load(Relaxed), phy::row(number))?;
        }
        let all = board::POWERED | board::MASTER | board::LINK;
        let bits = (board::POWERED, all & !board::POWERED);
        Impossible::check("the board", self.board.load(Relaxed), bits)?;
        let position = self.position();
        for (what, value, most) in [
            ("RAP", self.rap.load(Relaxed), table::CSRS as u32 - 1),
            ("the fault", self.fault.load(Relaxed), Fault::LAST),
            ("the demands", self.demands(), i32::MAX as u32),
            ("the transmitter's place", position.at, LONGEST_RING - 1),
            ("what is lent", position.lent, LONGEST_RING),
        ] {
            Impossible::limit(what, value, most)?;
        }
        Ok(())
    }
}
