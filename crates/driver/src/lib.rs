//! User-space drivers of NICs: e1000, PCnet, virtio's queues, one-access. They drive models and
//! cards.
//!
//! ```text
//!   driver --> Regs (`card`: VFIO, vfio-user, a model in this process);  Trapping<R> makes each access cost
//!     |
//!     +-----> Dma: memory, with the device's addresses
//! ```
//!
//! A driver has no clock and no thread of its own. It allocates nothing after it was made, and
//! needs only `core` and `alloc`.

#![no_std]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

extern crate alloc;

mod batched;
pub mod csb;
mod dma;
pub mod e1000;
mod lent;
pub mod one_access;
pub mod pcnet;
mod trapping;
pub mod virtio;

pub use batched::Batched;
pub use dma::{Buffers, Chunk, Dma, Slots};
pub use lent::{Lent, MOST_PIECES, Piece};
pub use trapping::{Trapping, Traps};

/// A device's registers, as its driver reaches them: by direct call, by vfio-user, by VFIO.
///
/// Every access may be a trap, so drivers are written to need few.
pub trait Regs {
    /// Reads 32 bits at `at` in base address register `bar`; by port I/O where the register has
    /// ports.
    fn read32(&mut self, bar: usize, at: u64) -> u32;
    /// A 32-bit write.
    fn write32(&mut self, bar: usize, at: u64, value: u32);
    /// A 16-bit read.
    fn read16(&mut self, bar: usize, at: u64) -> u16;
    /// A 16-bit write.
    fn write16(&mut self, bar: usize, at: u64, value: u16);
    /// Writes a doorbell: as [`write32`](Self::write32), unless there is a faster way.
    fn ring32(&mut self, bar: usize, at: u64, value: u32) {
        self.write32(bar, at, value);
    }
    /// The first base address register after 0 with I/O ports. The models, like QEMU's, have it at
    /// 1; real 82540EM cards, at 2.
    fn ports(&self) -> usize {
        1
    }
    /// Waits `micros` microseconds, for an operation that takes time by its datasheet. Models need
    /// none.
    fn pause(&mut self, micros: u32) {
        let _ = micros;
    }
}

impl<R: Regs + ?Sized> Regs for &mut R {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        (**self).read32(bar, at)
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        (**self).write32(bar, at, value);
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        (**self).read16(bar, at)
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        (**self).write16(bar, at, value);
    }

    fn ring32(&mut self, bar: usize, at: u64, value: u32) {
        (**self).ring32(bar, at, value);
    }

    fn ports(&self) -> usize {
        (**self).ports()
    }

    fn pause(&mut self, micros: u32) {
        (**self).pause(micros);
    }
}
