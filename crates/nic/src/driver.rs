//! What user-space drivers of the models share: how they reach registers and memory.

/// A device's registers, as its driver reaches them: by direct call, by vfio-user, by VFIO.
///
/// Every access may be a trap: drivers are written to need few.
pub trait Regs {
    /// A 32-bit read at `at` in base address register `bar`; by I/O where that is one of ports.
    fn read32(&mut self, bar: usize, at: u64) -> u32;
    /// A 32-bit write.
    fn write32(&mut self, bar: usize, at: u64, value: u32);
    /// A 16-bit read.
    fn read16(&mut self, bar: usize, at: u64) -> u16;
    /// A 16-bit write.
    fn write16(&mut self, bar: usize, at: u64, value: u16);
}
