//! Registers of a model in this process.

use std::sync::Arc;

use driver::Regs;
use nic::device::Device;
use port::Nanos;

/// Calls a model's registers directly. `clock` gives the time. After a write, the caller calls
/// [`Device::interrupt`] to learn what to raise.
pub struct Direct<C> {
    device: Arc<dyn Device>,
    clock: C,
}

impl<C: FnMut() -> Nanos> Direct<C> {
    /// The registers of `device`.
    pub fn new(device: Arc<dyn Device>, clock: C) -> Self {
        Self { device, clock }
    }

    /// The device itself.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Replaces the model by one made over the same registers.
    pub fn replace(&mut self, device: Arc<dyn Device>) {
        self.device = device;
    }
}

impl<C> std::fmt::Debug for Direct<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let identity = self.device.identity();
        write!(f, "Direct({:04x}:{:04x})", identity.vendor, identity.device)
    }
}

impl<C: FnMut() -> Nanos> Regs for Direct<C> {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        let mut data = [0; 4];
        self.device.read(bar, at, &mut data, (self.clock)());
        u32::from_le_bytes(data)
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        self.device.write(bar, at, &value.to_le_bytes(), (self.clock)());
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        let mut data = [0; 2];
        self.device.read(bar, at, &mut data, (self.clock)());
        u16::from_le_bytes(data)
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        self.device.write(bar, at, &value.to_le_bytes(), (self.clock)());
    }
}
