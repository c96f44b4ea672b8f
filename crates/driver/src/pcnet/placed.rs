//! Frames that are written where they are sent from.

use shmem::Bytes;

use super::{BUFFER, Driver, ENP, OWN, STP};
use crate::Regs;

impl<R: Regs> Driver<R> {
    /// The buffer of the next frame to send; an empty one if there is no room.
    #[must_use]
    pub fn place(&self) -> Bytes<'_> {
        if self.room() == 0 { Bytes::empty() } else { self.transmit.buffer(self.transmit.ours) }
    }

    /// Like [`send`](Self::send), for a frame of `len` bytes in one piece that was written to
    /// [`place`](Self::place).
    pub fn send_placed(&mut self, len: u32) -> bool {
        if self.room() == 0 || len == 0 || len > BUFFER {
            return false;
        }
        let ring = &mut self.transmit;
        ring.give(ring.ours, len, OWN | STP | ENP);
        ring.ours = ring.ours.wrapping_add(1);
        true
    }

    /// True if frames were queued since the last [demand](Self::demand).
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.demanded != self.transmit.ours
    }
}
