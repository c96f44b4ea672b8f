//! The shared status block at the family's registers ([`crate::csb`]): announced by CSBAL, which a reset
//! by CTRL.RST leaves as it is.

use super::core::Core;
use super::registers::Fault;
use super::table;
use crate::csb;

impl Core {
    /// The low half of the address was written: takes the block away and maps the one that is there.
    pub fn announce_block(&self) {
        if self.csb && !self.map_block() {
            self.registers.fail(Fault::BadCsb);
        }
    }

    /// Maps the block anew; false if there is none at the address.
    pub fn map_block(&self) -> bool {
        let at = self.registers.address([table::CSBAL, table::CSBAH]);
        !self.csb || self.block.map(&self.memory, at, super::queues(self.chip)).is_ok()
    }

    /// Stops the device, and says so in the block.
    pub fn fail_by_block(&self, fault: csb::Fault) -> Fault {
        self.block.report(fault);
        Fault::BadCsb
    }
}
