//! The table of NICs: what a server must know of each NIC to offer it.

use std::sync::Arc;

use abi::nic::NicName;
use shmem::{Mapping, Shareable, Shared};

use crate::device::{DeviceConfig, Identity, Impossible, Model, SharedPages};
use crate::e1000;
use crate::model::regs::RegisterTable;
use crate::pcnet;
use crate::template;

/// Memory for a device's state, which outlives a data process.
#[derive(Clone, Copy, Debug)]
pub struct StateRoom<'a> {
    /// The mapping with the state.
    pub mapping: &'a Arc<Mapping>,
    /// The offset of the state's first byte.
    pub at: usize,
    /// The memory's size in bytes.
    pub len: usize,
}

impl StateRoom<'_> {
    fn state<T: Shareable>(self) -> Option<Shared<T>> {
        self.mapping.shared(self.at).filter(|_| size_of::<T>() <= self.len)
    }

    /// Makes a model over the state; `None` if the state does not fit the memory.
    pub fn model<T: Shareable>(self, make: impl FnOnce(Shared<T>) -> Model) -> Option<Model> {
        self.state().map(make)
    }

    fn check<T: Shareable>(
        self,
        check: impl FnOnce(&T) -> Result<(), Impossible>,
    ) -> Result<(), Impossible> {
        self.state().map_or(Ok(()), |state: Shared<T>| check(&state))
    }
}

/// A kind of NIC.
#[derive(Debug)]
pub struct Kind {
    /// The NIC's names, and what a port may ask of it.
    pub names: &'static NicName,
    /// The size of the device's state in bytes.
    pub state_size: usize,
    /// The NIC's PCI identity, with or without a shared status block.
    pub identity: fn(csb: bool) -> Identity,
    /// Registers that a driver may write as plain memory.
    pub shared_pages: Option<SharedPages>,
    /// Makes a model over its state; `None` if the state does not fit the memory.
    pub make: fn(StateRoom<'_>, DeviceConfig) -> Option<Model>,
    /// Refuses a state from elsewhere that no driver can produce.
    pub take_over: fn(StateRoom<'_>, csb: bool) -> Result<(), Impossible>,
}

/// Intel 82540EM.
pub static I82540EM: Kind = Kind {
    names: &abi::nic::I82540EM,
    state_size: size_of::<e1000::Registers>(),
    identity: |csb| e1000::identity(e1000::Chip::Em82540, csb),
    shared_pages: Some(e1000::shared_pages(e1000::Chip::Em82540)),
    make: |room, config| room.model(|state| e1000::model(e1000::Chip::Em82540, state, config)),
    take_over: |room, csb| {
        room.check(|r: &e1000::Registers| r.take_over(e1000::Chip::Em82540, csb))
    },
};

/// Intel 82574L.
pub static I82574L: Kind = Kind {
    names: &abi::nic::I82574L,
    state_size: size_of::<e1000::Registers>(),
    identity: |csb| e1000::identity(e1000::Chip::L82574, csb),
    shared_pages: Some(e1000::shared_pages(e1000::Chip::L82574)),
    make: |room, config| room.model(|state| e1000::model(e1000::Chip::L82574, state, config)),
    take_over: |room, csb| room.check(|r: &e1000::Registers| r.take_over(e1000::Chip::L82574, csb)),
};

/// AMD Am79C970A, PCnet-PCI II.
pub static AM79C970A: Kind = Kind {
    names: &abi::nic::AM79C970A,
    state_size: size_of::<pcnet::Registers>(),
    identity: |csb| pcnet::Chip::Am79C970A.identity(csb),
    shared_pages: None,
    make: |room, config| room.model(|state| pcnet::model(pcnet::Chip::Am79C970A, state, config)),
    take_over: |room, csb| {
        room.check(|r: &pcnet::Registers| r.take_over(pcnet::Chip::Am79C970A, csb))
    },
};

/// AMD Am79C973, PCnet-FAST III.
pub static AM79C973: Kind = Kind {
    names: &abi::nic::AM79C973,
    state_size: size_of::<pcnet::Registers>(),
    identity: |csb| pcnet::Chip::Am79C973.identity(csb),
    shared_pages: None,
    make: |room, config| room.model(|state| pcnet::model(pcnet::Chip::Am79C973, state, config)),
    take_over: |room, csb| {
        room.check(|r: &pcnet::Registers| r.take_over(pcnet::Chip::Am79C973, csb))
    },
};

/// Denali's one-access NIC, the template.
pub static ONE_ACCESS: Kind = Kind {
    names: &abi::nic::ONE_ACCESS,
    state_size: size_of::<template::Registers>(),
    identity: |_| template::identity(),
    shared_pages: None,
    make: |room, config| room.model(|state| template::model(state, config)),
    take_over: |room, _| room.check(template::Registers::take_over),
};

/// All kinds of NICs.
pub static KINDS: [&Kind; 5] = [&I82540EM, &I82574L, &AM79C970A, &AM79C973, &ONE_ACCESS];

/// The kind of this name; `None` for a name that is not of [`abi::nic::NAMES`].
#[must_use]
pub fn named(names: &NicName) -> Option<&'static Kind> {
    KINDS.into_iter().find(|kind| kind.names.name == names.name)
}

/// The register tables of all kinds, for documentation.
#[must_use]
pub fn tables() -> Vec<RegisterTable> {
    let e1000 = RegisterTable {
        title: "Intel 82540EM and 82574L: offsets in base address register 0",
        chips: &["82540EM", "82574L"],
        step: 4,
        rows: e1000::TABLE.iter().map(|row| row.described(e1000::Effect::text)).collect(),
    };
    let mut tables = vec![e1000];
    tables.extend(pcnet::tables());
    tables.push(template::table());
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_a_model_that_does_what_the_name_says() {
        assert_eq!(KINDS.len(), abi::nic::NAMES.len());
        for (names, kind) in abi::nic::NAMES.into_iter().zip(KINDS) {
            assert!(std::ptr::eq(named(names).unwrap(), kind), "{}", names.name);
            assert_eq!(names.shared_doorbells, kind.shared_pages.is_some(), "{}", names.name);
            // The block is offered by another identity.
            let differs = (kind.identity)(true) != (kind.identity)(false);
            assert_eq!(names.csb, differs, "{}", names.name);
        }
    }
}
