//! A device's registers, mapped.

use alloc::sync::Arc;
#[cfg(feature = "std")]
use std::os::fd::BorrowedFd;

use crate::Mapping;
#[cfg(feature = "std")]
use crate::RegionError;

/// Memory-mapped registers. Each access has its own width, is little-endian, and stays in program
/// order with other register accesses. The device sees everything that was written to memory
/// before.
///
/// Registers of a device that is gone, or has its memory disabled, fault. The `guard` then keeps
/// this process alive.
#[derive(Debug)]
pub struct Mmio(Arc<Mapping>);

impl Mmio {
    /// Registers in `mapping`, from its first byte on.
    #[must_use]
    pub fn over(mapping: Arc<Mapping>) -> Self {
        Self(mapping)
    }

    /// Maps `len` bytes at `offset` of a device's file.
    ///
    /// # Errors
    /// [`RegionError::Map`] when the kernel refuses.
    #[cfg(feature = "std")]
    pub fn map(device: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, RegionError> {
        Mapping::file_at(device, offset, len).map(Self)
    }

    /// Reads 32 bits at `at`; `None` if they are not all mapped, or `at` is no multiple of four.
    #[must_use]
    pub fn read32(&self, at: u64) -> Option<u32> {
        self.read(at).map(u32::from_le)
    }

    /// Reads 16 bits at `at`, like [`read32`](Self::read32).
    #[must_use]
    pub fn read16(&self, at: u64) -> Option<u16> {
        self.read(at).map(u16::from_le)
    }

    /// Writes 32 bits at `at`; false where [`read32`](Self::read32) would fail, too.
    pub fn write32(&self, at: u64, value: u32) -> bool {
        self.write(at, value.to_le())
    }

    /// Writes 16 bits at `at`, like [`write32`](Self::write32).
    pub fn write16(&self, at: u64, value: u16) -> bool {
        self.write(at, value.to_le())
    }

    fn read<T: zerocopy::FromBytes>(&self, at: u64) -> Option<T> {
        let at = self.place::<T>(at)?;
        // SAFETY: aligned, and mapped as long as self lives (`place`); any bits are a T.
        let value = unsafe { at.read_volatile() };
        after_read();
        Some(value)
    }

    fn write<T>(&self, at: u64, value: T) -> bool {
        let Some(at) = self.place::<T>(at) else { return false };
        before_write();
        // SAFETY: aligned, and mapped while self lives (`place`); no code has a reference to it.
        unsafe { at.write_volatile(value) };
        true
    }

    fn place<T>(&self, at: u64) -> Option<*mut T> {
        let bytes = self.0.bytes(usize::try_from(at).ok()?, size_of::<T>())?;
        let at = bytes.as_ptr().cast::<T>();
        at.is_aligned().then_some(at)
    }
}

/// Later reads see what the device wrote to memory before it answered.
#[inline(always)]
fn after_read() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, which a device obeys as processors do not need to.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
}

/// The device sees all earlier writes to memory when it receives the next register write.
#[inline(always)]
fn before_write() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{Memfd, Pages};

    #[test]
    fn registers_are_where_they_are_mapped_and_nowhere_else() {
        let file = Memfd::create("registers", 0x3000, Pages::Small).unwrap();
        let all = file.map().unwrap();
        let registers = Mmio::map(file.as_fd(), 0x1000, 0x1000).unwrap();
        assert!(registers.write32(0xffc, 0x0403_0201) && registers.write16(0, 0x0605));
        assert_eq!(all.bytes(0x1ffc, 4).unwrap().to_vec(), [1, 2, 3, 4]);
        assert_eq!(all.bytes(0x1000, 3).unwrap().to_vec(), [5, 6, 0]);
        assert_eq!((registers.read16(0xffe), registers.read32(0)), (Some(0x0403), Some(0x0605)));
        for outside in [0x1000, 0xffe, u64::MAX, 2] {
            assert_eq!(registers.read32(outside), None, "{outside:#x}");
            assert!(!registers.write32(outside, 7), "{outside:#x}");
        }
    }
}
