//! What a queue's driver asks for about interrupts, in either format.

use super::ring::Parts;
use super::{Features, QueueError, packed, split};

/// What a queue's driver asks for about interrupts, read without the queue's lock.
#[derive(Debug)]
pub(super) enum Interrupts {
    Split(split::Interrupts),
    Packed(packed::Interrupts),
}

impl Interrupts {
    pub fn new(parts: &Parts) -> Result<Self, QueueError> {
        Ok(match parts.has(Features::RING_PACKED) {
            false => Self::Split(split::Interrupts::new(parts)?),
            true => Self::Packed(packed::Interrupts::new(parts)?),
        })
    }

    /// True if the driver wants an interrupt for what was published since `old`, up to `new`. The
    /// caller has fenced since.
    #[inline]
    pub fn wanted(&self, old: u16, new: u16) -> bool {
        match self {
            Self::Split(interrupts) => interrupts.wanted(old, new),
            Self::Packed(interrupts) => interrupts.wanted(old, new),
        }
    }

    /// True if the driver wants an interrupt for anything published before `now`, by its current
    /// setting: then it has not looked at all of it.
    pub fn awaited(&self, now: u16) -> bool {
        match self {
            Self::Split(interrupts) => interrupts.awaited(now),
            Self::Packed(interrupts) => interrupts.awaited(now),
        }
    }
}
