//! The models there are, made over registers in state memory.

use std::ops::Range;
use std::sync::Arc;

use nic::device::{DeviceConfig, Identity, Model};
use nic::e1000::{self, E1000, Member};
use nic::pci;
use nic::pcnet::{self, Chip, Pcnet};
use shmem::{Mapping, Shareable, Shared};

use super::line::Progress;
use crate::attach::AttachError;
use crate::config::{NicConfig, NicModel};
use crate::state::PortState;

/// Where things of a device lie in a port's part of the state memory.
const PROGRESS: usize = pci::SIZE;
const REGISTERS: usize = 4096;

/// A port's part of the state memory.
#[derive(Clone, Debug)]
pub struct Room {
    mapping: Arc<Mapping>,
    bytes: Range<usize>,
}

impl Room {
    /// That of a port.
    #[must_use]
    pub fn of(state: &PortState) -> Self {
        let (mapping, bytes) = state.room();
        Self { mapping, bytes }
    }

    fn at<T: Shareable>(&self, at: usize) -> Option<Shared<T>> {
        let fits = at + size_of::<T>() <= self.bytes.len();
        self.mapping.shared(self.bytes.start + at).filter(|_| fits)
    }

    /// Configuration space.
    #[must_use]
    pub fn config(&self) -> Option<Shared<pci::Words>> {
        self.at(0)
    }

    /// How far messages are carried out.
    #[must_use]
    pub fn progress(&self) -> Option<Shared<Progress>> {
        self.at(PROGRESS)
    }

    /// What is made over registers, if they fit.
    fn over<T: Shareable>(&self, make: impl FnOnce(Shared<T>) -> Model) -> Option<Model> {
        self.at(REGISTERS).map(make)
    }

    /// Clears it, for a device that was never powered on.
    pub fn clear(&self, nic: NicModel) {
        let len = REGISTERS + registers_size(nic);
        if let Some(bytes) = self.mapping.bytes(self.bytes.start, len.min(self.bytes.len())) {
            bytes.fill(0);
        }
    }
}

fn registers_size(nic: NicModel) -> usize {
    match nic {
        NicModel::I82540em | NicModel::I82574l => size_of::<e1000::Registers>(),
        NicModel::Am79c970a | NicModel::Am79c973 => size_of::<pcnet::Registers>(),
        #[cfg(test)]
        NicModel::Loopback => size_of::<super::loopback::Registers>(),
    }
}

/// How a model looks on PCI.
#[must_use]
pub fn identity(nic: &NicConfig) -> Identity {
    match nic.model {
        NicModel::I82540em => Member::Em82540.identity(nic.csb),
        NicModel::I82574l => Member::L82574.identity(nic.csb),
        NicModel::Am79c970a => Chip::Am79C970A.identity(nic.csb),
        NicModel::Am79c973 => Chip::Am79C973.identity(nic.csb),
        #[cfg(test)]
        NicModel::Loopback => super::loopback::IDENTITY,
    }
}

/// Makes a model over its registers.
///
/// # Errors
/// [`AttachError::Registers`] when they do not fit.
pub fn make(nic: NicModel, room: &Room, config: DeviceConfig) -> Result<Model, AttachError> {
    let made = match nic {
        NicModel::I82540em => room.over(|registers| E1000::new(Member::Em82540, registers, config)),
        NicModel::I82574l => room.over(|registers| E1000::new(Member::L82574, registers, config)),
        NicModel::Am79c970a => {
            room.over(|registers| Pcnet::new(Chip::Am79C970A, registers, config))
        }
        NicModel::Am79c973 => room.over(|registers| Pcnet::new(Chip::Am79C973, registers, config)),
        #[cfg(test)]
        NicModel::Loopback => room.over(|registers| super::loopback::model(registers, config)),
    };
    made.ok_or_else(|| AttachError::Registers(nic.name()))
}
