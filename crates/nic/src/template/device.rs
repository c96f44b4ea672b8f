//! The effects of register accesses.

use std::sync::atomic::Ordering;

use port::Nanos;

use super::Core;
use super::registers::{
    self, BUFFER, FRAMES, Fault, INTERRUPT, RESET, STATUS_FAULT, STATUS_LINK, STATUS_WAITING,
};
use crate::device::{Bar, Device, Identity, Interrupt, InterruptMode};

/// Bytes of the shortest frame: an Ethernet header.
const SHORTEST: u32 = 14;
const BITS: u32 = registers::ENABLE | INTERRUPT | registers::PROMISCUOUS;

/// The device's PCI identity: an Ethernet controller of no vendor.
#[must_use]
pub const fn identity() -> Identity {
    Identity {
        vendor: 0x1234,
        device: 0x0a11,
        revision: 1,
        class: 0x02_00_00,
        subsystem_vendor: 0x1234,
        subsystem: 0x0a11,
        bars: [Some(Bar::Memory(4096)), None, None, None, None, None],
        msix: None,
        msi: false,
        express: false,
    }
}

impl Core {
    /// How many frames wait for the driver.
    fn waiting(&self) -> u32 {
        let read = self.registers.received_taken.load(Ordering::Relaxed);
        self.registers.received.load(Ordering::Acquire).wrapping_sub(read)
    }

    pub(super) fn status(&self) -> u32 {
        let link = self.registers.link.load(Ordering::Relaxed) != 0;
        let fault = self.registers.fault.load(Ordering::Relaxed) != 0;
        [(link, STATUS_LINK), (self.waiting() > 0, STATUS_WAITING), (fault, STATUS_FAULT)]
            .into_iter()
            .filter(|(is, _)| *is)
            .fold(0, |status, (_, bit)| status | bit)
    }

    pub(super) fn set_control(&self, value: u32) {
        let _stopped = self.lock();
        if value & RESET != 0 {
            self.registers.reset();
        } else {
            self.registers.control.store(value & BITS, Ordering::Release);
        }
    }

    pub(super) fn set_area(&self, half: usize, value: u32) {
        let _stopped = self.lock();
        self.registers.epoch.fetch_add(1, Ordering::AcqRel);
        self.registers.area[half].store(value, Ordering::Release);
    }

    pub(super) fn mac_word(&self, at: usize) -> u32 {
        let octet = |i: usize| self.mac.get(at + i).map_or(0, |octet| u32::from(*octet) << (8 * i));
        (0..4).map(octet).fold(0, |word, octet| word | octet)
    }

    /// Sends a frame. Buffers are used in order, so a write that names the last one again means the
    /// same frame. After a death, a write may be carried out twice.
    pub(super) fn send(&self, value: u32) {
        let registers = &*self.registers;
        let (place, len) = (value & 0xffff, value >> 16);
        let sent = registers.sent.load(Ordering::Relaxed);
        let is_repeated = sent > 0 && place == sent.wrapping_sub(1) % FRAMES;
        if !registers.is_ready() || is_repeated {
            return;
        }
        if place != sent % FRAMES || !(SHORTEST..=BUFFER).contains(&len) {
            return self.fail(Fault::Send);
        }
        if sent.wrapping_sub(registers.sent_done.load(Ordering::Relaxed)) >= FRAMES {
            return self.fail(Fault::Overrun);
        }
        registers.sends[(sent % FRAMES) as usize].store(value, Ordering::Relaxed);
        registers.sent.store(sent.wrapping_add(1), Ordering::Relaxed);
    }

    /// The place and length of the next received frame, or 0. Gives the previous buffer back.
    pub(super) fn receive(&self) -> u32 {
        let registers = &*self.registers;
        let taken = registers.received_taken.load(Ordering::Relaxed);
        registers.received_freed.store(taken, Ordering::Release);
        if self.waiting() == 0 {
            return 0;
        }
        registers.received_taken.store(taken.wrapping_add(1), Ordering::Relaxed);
        let place = taken % FRAMES;
        let len = registers.received_len[place as usize].load(Ordering::Relaxed);
        len << 16 | place
    }
}

impl Device for Core {
    fn identity(&self) -> Identity {
        identity()
    }

    fn read(&self, bar: usize, at: u64, data: &mut [u8], _now: Nanos) {
        data.fill(0);
        // Registers are read and written whole.
        if let (0, 0, Ok(data)) = (bar, at % 4, <&mut [u8; 4]>::try_from(data)) {
            *data = registers::read(self, at).to_le_bytes();
        }
    }

    fn write(&self, bar: usize, at: u64, data: &[u8], _now: Nanos) {
        if let (0, 0, Ok(data)) = (bar, at % 4, <[u8; 4]>::try_from(data)) {
            registers::write(self, at, u32::from_le_bytes(data));
        }
    }

    fn reset(&self, _now: Nanos) {
        let _stopped = self.lock();
        self.registers.reset();
    }

    fn set_bus_master(&self, on: bool) {
        self.registers.bus_master.store(u32::from(on), Ordering::Release);
    }

    /// The device has only a pin.
    fn set_interrupt_mode(&self, _mode: InterruptMode) {}

    fn set_link(&self, up: bool, _now: Nanos) {
        self.registers.link.store(u32::from(up), Ordering::Release);
    }

    fn interrupt(&self, _now: Nanos) -> Interrupt {
        let wanted = self.registers.control.load(Ordering::Relaxed) & INTERRUPT != 0;
        Interrupt { vectors: u32::from(wanted && self.waiting() > 0), due: None }
    }

    fn headroom(&self) -> u32 {
        FRAMES / 2
    }

    fn fault(&self) -> Option<&'static str> {
        Fault::of(self.registers.fault.load(Ordering::Relaxed)).map(Fault::sentence)
    }
}
