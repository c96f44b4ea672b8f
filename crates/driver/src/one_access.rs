//! A driver of Denali's one-access NIC.

use frame::Mac;
use shmem::Bytes;

use crate::{Batched, Chunk, Dma, Regs};

/// Buffers in each direction.
const FRAMES: u32 = 256;
/// Bytes of a buffer.
const BUFFER: u32 = 2048;
/// Bytes of the area: the buffers to send from, then those to receive into.
const AREA: u64 = 2 * FRAMES as u64 * BUFFER as u64;
/// What ID reads as: "ONE1".
const ID: u32 = u32::from_le_bytes(*b"ONE1");
/// CONTROL.
const ENABLE: u32 = 1 << 0;
const INTERRUPT: u32 = 1 << 1;
const PROMISCUOUS: u32 = 1 << 2;
const RESET: u32 = 1 << 31;

/// Offsets in base address register 0 (docs/registers.md).
mod reg {
    pub const ID: u64 = 0x00;
    pub const CONTROL: u64 = 0x08;
    pub const AREA_LOW: u64 = 0x0c;
    pub const AREA_HIGH: u64 = 0x10;
    pub const MAC_LOW: u64 = 0x14;
    pub const MAC_HIGH: u64 = 0x18;
    pub const SEND: u64 = 0x1c;
    pub const RECEIVE: u64 = 0x20;
    pub const SENT: u64 = 0x24;
}

/// The reason why a device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The device is not a one-access NIC.
    #[error("the device says it is {0:#x}, not the one-access NIC")]
    Other(u32),
    /// There is no memory for the driver's area.
    #[error("there is no memory for {AREA} bytes of buffers")]
    Memory,
}

/// Drives one device: one access for each frame, either way.
#[derive(Debug)]
pub struct Driver<R> {
    regs: R,
    area: Chunk,
    /// How many frames were sent, and how many of them are known to be done, modulo 2^32.
    sent: u32,
    done: u32,
}

impl<R: Regs> Driver<R> {
    /// Resets the device and starts it, with or without interrupts. With `promiscuous`, it receives
    /// frames for any station.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn new(
        mut regs: R,
        dma: &mut Dma,
        interrupts: bool,
        promiscuous: bool,
    ) -> Result<Self, DriverError> {
        let id = regs.read32(0, reg::ID);
        if id != ID {
            return Err(DriverError::Other(id));
        }
        let area = dma.take(AREA as usize, 4096).ok_or(DriverError::Memory)?;
        regs.write32(0, reg::CONTROL, RESET);
        regs.write32(0, reg::AREA_LOW, area.device() as u32);
        regs.write32(0, reg::AREA_HIGH, (area.device() >> 32) as u32);
        let wishes = [(interrupts, INTERRUPT), (promiscuous, PROMISCUOUS)];
        let control =
            wishes.into_iter().filter(|(wish, _)| *wish).fold(ENABLE, |all, (_, bit)| all | bit);
        regs.write32(0, reg::CONTROL, control);
        Ok(Self { regs, area, sent: 0, done: 0 })
    }

    /// The registers.
    pub fn regs(&mut self) -> &mut R {
        &mut self.regs
    }

    fn buffer(&self, number: u32, len: usize) -> Bytes<'_> {
        let at = number as usize * BUFFER as usize;
        self.area.bytes().get(at, len.min(BUFFER as usize)).unwrap_or(Bytes::empty())
    }

    /// The station address.
    pub fn mac(&mut self) -> Mac {
        let [low, high] = [reg::MAC_LOW, reg::MAC_HIGH].map(|at| self.regs.read32(0, at));
        let [a, b, c, d] = low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        Mac::new([a, b, c, d, e, f])
    }

    /// How many frames can be sent without asking the device.
    #[must_use]
    pub fn room(&self) -> u32 {
        FRAMES - self.sent.wrapping_sub(self.done)
    }

    /// Returns true if there is room for a frame. Asks the device only if there was none before.
    pub fn has_room(&mut self) -> bool {
        if self.room() == 0 {
            self.done = self.regs.read32(0, reg::SENT);
        }
        self.room() > 0
    }

    /// The buffer of the next frame to send.
    #[must_use]
    pub fn place(&self) -> Bytes<'_> {
        self.buffer(self.sent % FRAMES, BUFFER as usize)
    }

    /// Sends a frame of 14 to 2,048 bytes; false if there is no room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        if !self.has_room() {
            return false;
        }
        let len = self.place().copy_in(frame) as u32;
        self.send_placed(len)
    }

    /// Like [`send`](Self::send), for a frame of `len` bytes that was written to
    /// [`place`](Self::place).
    pub fn send_placed(&mut self, len: u32) -> bool {
        if !self.has_room() {
            return false;
        }
        let word = len.min(BUFFER) << 16 | (self.sent % FRAMES);
        self.regs.ring32(0, reg::SEND, word);
        self.sent = self.sent.wrapping_add(1);
        true
    }

    /// Shows received frames to `visit`, at most `max`. Returns how many.
    pub fn receive(&mut self, max: usize, mut visit: impl FnMut(Bytes<'_>)) -> usize {
        for count in 0..max {
            match self.regs.read32(0, reg::RECEIVE) {
                // A bus reads as all ones where no device answers.
                0 | u32::MAX => return count,
                word => {
                    visit(self.buffer(FRAMES + (word & 0xffff) % FRAMES, (word >> 16) as usize))
                }
            }
        }
        max
    }
}

impl<R: Regs> Batched for Driver<R> {
    fn send_batch(&mut self, frame: &[u8], count: usize) -> bool {
        (0..count).all(|_| self.send(frame))
    }

    fn reclaim_batch(&mut self) -> usize {
        let before = core::mem::replace(&mut self.done, self.regs.read32(0, reg::SENT));
        self.done.wrapping_sub(before) as usize
    }

    fn receive_batch(&mut self) -> usize {
        self.receive(usize::MAX, |_| ())
    }
}
