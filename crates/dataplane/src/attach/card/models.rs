//! All card models, made over registers in state memory.

use std::ops::Range;
use std::sync::Arc;

use nic::device::{DeviceConfig, Identity, Impossible, Model};
use nic::kind::{Kind, StateRoom};
use nic::pci;
use shmem::{Bytes, Mapping, Shareable, Shared};
use turn::attach::AttachError;
use turn::state::PortState;

use super::Plug;
use super::line::Progress;
use crate::config::NicModel;

/// The layout of a device in its port's part of the state memory.
const PROGRESS: usize = pci::SIZE;
const HEADER: usize = 512;
const REGISTERS: usize = 4096;
/// Bytes of the header of a state that moves.
pub const HEADER_LEN: usize = 32;

/// The first bytes of a state.
const MAGIC: u64 = u64::from_be_bytes(*b"toklatVM");
/// Must change whenever the content of [`nic::e1000::Registers`] or [`nic::pcnet::Registers`] does.
const VERSION: u32 = 1;

const _: () = assert!(PROGRESS + size_of::<Progress>() <= HEADER);
const _: () = assert!(HEADER + HEADER_LEN <= REGISTERS);

/// A port's part of the state memory.
#[derive(Clone, Debug)]
pub struct Room {
    mapping: Arc<Mapping>,
    bytes: Range<usize>,
}

impl Room {
    /// The room in a port's state.
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

    /// Where a device's registers are.
    fn registers(&self) -> StateRoom<'_> {
        let len = self.bytes.len().saturating_sub(REGISTERS);
        StateRoom { mapping: &self.mapping, at: self.bytes.start + REGISTERS, len }
    }

    /// Clears the room for a device that was never powered on.
    pub fn clear(&self, kind: &Kind) {
        self.window(0..REGISTERS + kind.state_size).fill(0);
    }

    fn window(&self, part: Range<usize>) -> Bytes<'_> {
        let end = part.end.min(self.bytes.len());
        let window = end
            .checked_sub(part.start)
            .and_then(|len| self.mapping.bytes(self.bytes.start + part.start, len));
        window.unwrap_or(Bytes::empty())
    }
}

/// The reason why bytes are not the state of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The bytes are the state of something else.
    #[error("{0}")]
    Other(&'static str),
    /// The state is too short or too long.
    #[error("it has not the length of one")]
    Length,
    /// The state holds impossible values.
    #[error(transparent)]
    Impossible(#[from] Impossible),
}

/// A device in state memory, while no worker uses it.
#[derive(Clone, Copy, Debug)]
pub struct Card<'a> {
    /// How the card looks on PCI.
    pub identity: &'a Identity,
    /// The kind of the card's model.
    pub kind: &'static Kind,
    /// The model of the card and its options.
    pub plug: &'a Plug,
    /// Where the card lies in the state memory.
    pub room: &'a Room,
    /// The card's PCI configuration space.
    pub config: &'a pci::Config,
}

impl<'a> Card<'a> {
    fn registers(&self) -> Range<usize> {
        REGISTERS..REGISTERS + self.kind.state_size
    }

    /// Resets the card to its power-on state.
    pub fn power_on(&self) {
        self.room.window(HEADER..HEADER + HEADER_LEN).fill(0);
        self.room.window(self.registers()).fill(0);
        self.config.power_on();
    }

    /// Bytes of the card's state.
    pub fn state_len(&self) -> usize {
        HEADER_LEN + pci::SIZE + self.registers().len()
    }

    /// The `len` bytes of the card's state from `at` on, in pieces.
    pub fn state(&self, at: usize, len: usize) -> impl Iterator<Item = Bytes<'a>> {
        let (room, mut begin) = (self.room, 0);
        let parts = [HEADER..HEADER + HEADER_LEN, 0..pci::SIZE, self.registers()];
        parts.into_iter().map(move |part| {
            let within = |at: usize| at.clamp(begin, begin + part.len()) - begin + part.start;
            let window = within(at)..within(at + len);
            begin += part.len();
            room.window(window)
        })
    }

    /// The words of the header that precedes the card's state, and what each identifies.
    fn header(&self) -> [(u64, &'static str); HEADER_LEN / 8] {
        let id = self.identity;
        let ids = [id.vendor, id.device, id.subsystem, id.revision.into()];
        let ids = ids.iter().fold(0, |all, id| all << 16 | u64::from(*id));
        [
            (MAGIC, "it is of no card"),
            (u64::from(VERSION) << 32 | self.state_len() as u64, "it is of another version"),
            (ids, "it is of another model, or one with another CSB setting"),
            (self.plug.mac.word(), "it is of a card with another address; the port needs that"),
        ]
    }

    /// Writes the header that identifies the card's state.
    pub fn write_header(&self) {
        let header = self.room.window(HEADER..HEADER + HEADER_LEN);
        for (i, (word, _)) in self.header().into_iter().enumerate() {
            header.write(8 * i, word);
        }
    }

    /// Continues from a state that a predecessor wrote here.
    ///
    /// # Errors
    /// [`StateError`]: it is not a state of this card.
    pub fn take_over(&self) -> Result<(), StateError> {
        let header = self.room.window(HEADER..HEADER + HEADER_LEN);
        for (i, (word, otherwise)) in self.header().into_iter().enumerate() {
            if header.read(8 * i) != Some(word) {
                return Err(StateError::Other(otherwise));
            }
        }
        self.config.check()?;
        // Zeroed registers are those of a device that was never powered on: nothing to take over.
        let unused = self.room.window(self.registers()).to_vec().iter().all(|byte| *byte == 0);
        if !unused {
            (self.kind.take_over)(self.room.registers(), self.plug.nic.csb)?;
        }
        Ok(())
    }
}

/// The kind of a model.
///
/// # Errors
/// [`AttachError::Model`] when this build has none of that name.
pub fn kind(model: NicModel) -> Result<&'static Kind, AttachError> {
    let names = model.names();
    #[cfg(test)]
    if std::ptr::eq(names, super::LOOPBACK.names) {
        return Ok(&super::LOOPBACK);
    }
    nic::kind::named(names).ok_or(AttachError::Model(names.title))
}

/// Makes a model over its registers.
///
/// # Errors
/// [`AttachError::Registers`] when they do not fit.
pub fn make(kind: &Kind, room: &Room, config: DeviceConfig) -> Result<Model, AttachError> {
    (kind.make)(room.registers(), config).ok_or(AttachError::Registers(kind.names.title))
}
