//! A device that is stopped because its state is elsewhere or in migration. It has no registers and
//! does nothing.

use nic::device::{Device, Identity, Interrupt, InterruptMode};
use port::Nanos;

/// A device that was stopped.
pub struct Stopped(pub Identity);

impl Device for Stopped {
    fn identity(&self) -> Identity {
        self.0
    }

    fn read(&self, _bar: usize, _at: u64, data: &mut [u8], _now: Nanos) {
        data.fill(u8::MAX);
    }

    fn write(&self, _bar: usize, _at: u64, _data: &[u8], _now: Nanos) {}

    fn reset(&self, _now: Nanos) {}

    fn set_bus_master(&self, _on: bool) {}

    fn set_interrupt_mode(&self, _mode: InterruptMode) {}

    fn set_link(&self, _up: bool, _now: Nanos) {}

    fn interrupt(&self, _now: Nanos) -> Interrupt {
        Interrupt::default()
    }

    fn headroom(&self) -> u32 {
        0
    }

    fn fault(&self) -> Option<&'static str> {
        None
    }
}
