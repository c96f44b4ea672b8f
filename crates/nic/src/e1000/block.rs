//! The shared status block in the family's registers ([`crate::csb`]). CSBAL announces it, and a
//! reset by CTRL.RST keeps it.

use super::core::Core;
use super::registers::Fault;
use super::table;
use crate::csb;

impl Core {
    /// Handles a write to the low half of the address: takes the old block away and maps the new
    /// one.
    pub fn announce_block(&self) {
        if self.csb && !self.map_block() {
            self.registers.fail(Fault::BadCsb);
        }
    }

    /// Maps the block again; false if there is none at the address.
    pub fn map_block(&self) -> bool {
        let at = self.registers.address([table::CSBAL, table::CSBAH]);
        !self.csb || self.block.map(&self.memory, at, super::queues(self.chip)).is_ok()
    }

    /// Stops the device, and reports the fault in the block.
    pub fn fail_by_block(&self, fault: csb::Fault) -> Fault {
        self.block.report(fault);
        Fault::BadCsb
    }
}
