//! Takes over registers of a device of the same chip that ran on another machine.

use std::sync::atomic::Ordering::Relaxed;

use super::device::{IO_ADDRESS, RAH};
use super::eeprom::{COMMAND_BITS, eecd};
use super::interrupts::{RX_HELD, TX_HELD};
use super::registers::{Fault, Registers, VECTORS};
use super::table::{self, Access, Effect, Register};
use super::{Chip, phy};
use crate::device::Impossible;

/// The maximum number of descriptors of a ring, by the width of its length register.
const LONGEST_RING: u32 = 0x000f_ff80 / 16;

impl Register {
    /// Bits of the row's `i`th register that may differ from the reset value, on `chip`.
    fn settable(&self, i: usize, chip: Chip, csb: bool) -> u32 {
        match (self.effect, self.access) {
            _ if !self.members.has(chip) => 0,
            (Effect::CsbLow | Effect::CsbHigh, _) if !csb => 0,
            (Effect::Icr | Effect::Ims, _) => super::causes(chip),
            // These keep the last value read.
            (Effect::Eerd | Effect::Mdic, _) | (_, Access::ReadClear) => u32::MAX,
            (Effect::Address, _) if i % 2 == 1 => RAH,
            // These registers are computed when they are read.
            (Effect::Eecd | Effect::Ics, _) | (_, Access::ReadOnly | Access::WriteOnly) => 0,
            _ => self.mask,
        }
    }
}

impl Registers {
    /// Takes the registers over. Refuses a state that no driver of `chip` can produce. Resets the
    /// times, because they come from another clock.
    ///
    /// # Errors
    /// [`Impossible`]: no device may be made over these registers.
    pub fn take_over(&self, chip: Chip, csb: bool) -> Result<(), Impossible> {
        for (row, first) in table::rows() {
            for i in 0..usize::from(row.count) {
                let bits = (row.reset[chip as usize], row.settable(i, chip, csb));
                Impossible::check(row.name, self.get(first + i), bits)?;
            }
        }
        self.check_others(chip)?;
        // Causes that wait for a timer are raised at once.
        self.interrupts.last.iter().for_each(|last| last.store(0, Relaxed));
        for timer in &self.interrupts.timers {
            timer.store(timer.load(Relaxed).min(1), Relaxed);
        }
        Ok(())
    }

    /// Checks the state beside the table's registers. Statistics may be anything, and so may
    /// contexts, which are the guest's own words.
    fn check_others(&self, chip: Chip) -> Result<(), Impossible> {
        let (interrupts, shifter) = (&self.interrupts, &self.shifter);
        let held = (RX_HELD | TX_HELD) & super::causes(chip);
        let bits = [
            ("bus mastering", &self.bus_master, 1),
            ("the link", &self.link, 1),
            ("the I/O window's offset", &self.io_address, IO_ADDRESS),
            ("the vectors that are up", &interrupts.raised, (1 << VECTORS) - 1),
            ("the causes that wait", &interrupts.held, held),
            ("the EEPROM's wires", &shifter.wires, eecd::KEPT),
            ("the EEPROM's command", &shifter.value, 0xffff),
            ("the EEPROM's bit", &shifter.bit_out, 0xffff),
        ];
        for (what, word, bits) in bits {
            Impossible::check(what, word.load(Relaxed), (0u32, bits))?;
        }
        Impossible::check("power", self.powered.load(Relaxed), (1u32, 0u32))?;
        Impossible::limit("the fault", self.fault.load(Relaxed), Fault::LAST)?;
        Impossible::limit("the interrupts' mode", interrupts.mode.load(Relaxed), 2)?;
        Impossible::limit("the EEPROM's bits", shifter.bits_in.load(Relaxed), COMMAND_BITS + 1)?;
        for queue in &self.tx {
            Impossible::limit("a place in a ring", queue.taken.load(Relaxed), 0xffff)?;
            Impossible::check("what is to be told", queue.told.load(Relaxed), (0u32, 15u32))?;
        }
        for queue in &self.rx {
            Impossible::limit("a place in a ring", queue.moving.load(Relaxed), LONGEST_RING)?;
            Impossible::check("what is to be told", queue.unsettled.load(Relaxed), (0u32, 3u32))?;
        }
        for (number, register) in self.phy.iter().enumerate() {
            let bits = phy::row(chip, number).unwrap_or_default();
            Impossible::check("a PHY register", register.load(Relaxed), bits)?;
        }
        Ok(())
    }
}
