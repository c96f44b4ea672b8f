//! The memory of a port's owner that is mapped for the port, in state memory. The control thread
//! writes it.

use port::Counter;
use port::stats::{LimitOf, MappedMemory};
use shmem::budget::{Account, Whose};

/// The numbers.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct LentMemory {
    bytes: Counter,
    mappings: Counter,
    refused: Counter,
    /// The number of the limit that was last exceeded, counted from 1; 0 for none.
    refused_by: Counter,
}

impl LentMemory {
    /// Stores an account's numbers.
    pub fn set(&self, account: &Account) {
        let used = account.used();
        self.bytes.set(used.bytes);
        self.mappings.set(used.mappings);
        self.refused.set(account.refused());
        let whose = account.refused_by().map(|whose| match whose {
            Whose::Port => 1,
            Whose::User => 2,
            Whose::All => 3,
        });
        self.refused_by.set(whose.unwrap_or(0));
    }

    pub fn clear(&self) {
        let Self { bytes, mappings, refused, refused_by } = self;
        [bytes, mappings, refused, refused_by].iter().for_each(|counter| counter.set(0));
    }

    pub fn read(&self) -> MappedMemory {
        let refused_by = match self.refused_by.get() {
            1 => Some(LimitOf::Port),
            2 => Some(LimitOf::User),
            3 => Some(LimitOf::Switch),
            _ => None,
        };
        let (bytes, mappings) = (self.bytes.get(), self.mappings.get());
        MappedMemory { bytes, mappings, refused: self.refused.get(), refused_by }
    }
}
