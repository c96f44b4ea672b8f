//! Register accesses: the table decodes and masks them, and names their side effects.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use port::Nanos;

use super::Chip;
use super::core::Core;
use super::phy::{self, Changed, mdic};
use super::ring::DESCRIPTOR;
use super::table::{self, Access, Effect, cause, ctrl, ctrl_ext, status};
use crate::csb;
use crate::device::{Bar, Device, Identity, Interrupt, InterruptMode, Msix, SharedPages};
use crate::model::ring::of_queue;
use crate::remote::Remote;

/// The registers and interrupts of a device.
#[derive(Debug)]
pub(super) struct E1000Device(pub Arc<Core>);

/// Bytes of BAR 0.
const MEMORY_BAR: u32 = 128 << 10;
/// Bits of RAH: the upper address bytes, the address select, and the valid bit.
pub(super) const RAH: u32 = 0x8003_ffff;
/// Bits of the offset that the I/O window shows.
pub(super) const IO_ADDRESS: u32 = 0x1_fffc;
/// SWSM: set when software reads the semaphore.
const SMBI: u32 = 1;
/// RDTR: raise the waiting causes now.
const FLUSH: u32 = 1 << 31;

impl Core {
    /// A 32-bit read at `at`, a multiple of four.
    fn read32(&self, at: u64) -> u32 {
        let Some((register, word)) = table::decode(at, self.chip) else { return 0 };
        let registers = &self.registers;
        match register.effect {
            Effect::Icr => return self.read_causes(),
            Effect::Ics => return registers.get(table::ICR),
            Effect::Status => return self.status(),
            Effect::Eecd => return self.eeprom.read_wires(&registers.shifter),
            Effect::OctetsLow(n) => return self.octets(n) as u32,
            Effect::OctetsHigh(n) => {
                let octets = registers.octets[usize::from(n)].swap(0, Relaxed);
                return (octets >> 32) as u32;
            }
            Effect::Swsm if self.chip == Chip::L82574 => return registers.set_bits(word, SMBI),
            _ => {}
        }
        match register.access {
            Access::ReadWrite | Access::Halted | Access::ReadOnly => registers.get(word),
            Access::ReadClear => registers.take(word),
            Access::WriteOnly => 0,
        }
    }

    fn octets(&self, counter: u8) -> u64 {
        self.registers.octets.get(usize::from(counter)).map_or(0, |octets| octets.load(Relaxed))
    }

    fn status(&self) -> u32 {
        let base = table::TABLE.iter().find(|row| row.effect == Effect::Status);
        let base = base.map_or(0, |row| row.reset[self.chip as usize]);
        let link = if self.registers.has_link() { status::LU } else { 0 };
        let control = self.registers.get(table::CTRL);
        let duplex = if control & ctrl::FD != 0 || link != 0 { status::FD } else { 0 };
        let disabled = control & ctrl::GIO_MASTER_DISABLE != 0;
        let bus = match self.chip {
            Chip::L82574 if !disabled => status::GIO_MASTER_ENABLE,
            _ => 0,
        };
        base | link | duplex | bus
    }

    /// Writes 32 bits at `at`. Ignores read-only registers and offsets without a register.
    fn write32(&self, at: u64, value: u32) {
        let Some((register, word)) = table::decode(at, self.chip) else { return };
        if matches!(register.access, Access::ReadOnly | Access::ReadClear) {
            return;
        }
        let registers = &self.registers;
        let kept = value & register.mask;
        match register.effect {
            Effect::None | Effect::Swsm => registers.set(word, kept),
            Effect::Ctrl => self.write_control(value, kept),
            Effect::CtrlExt => self.write_extended_control(value, word, kept),
            Effect::Eecd => self.eeprom.write_wires(&registers.shifter, value),
            Effect::Eerd => registers.set(word, self.eeprom.read_by_number(value)),
            Effect::Mdic => self.access_phy(value, word),
            Effect::Icr => self.clear_causes(value),
            Effect::Ics => _ = self.raise(value),
            Effect::Ims => _ = registers.set_bits(table::IMS, value & self.causes()),
            Effect::Imc => self.mask(value),
            Effect::Address => {
                let kept = if at & 4 != 0 { kept & RAH } else { kept };
                self.change_filters(|| registers.set(word, kept));
            }
            Effect::Rctl | Effect::Filter => self.change_filters(|| registers.set(word, kept)),
            Effect::RxRing(queue) => {
                self.move_receive_ring(queue.into(), || {
                    registers.set(word, kept);
                    of_queue(&registers.rx, queue.into()).moving.store(0, Relaxed);
                });
            }
            Effect::TxRing(queue) => {
                registers.set(word, kept);
                self.move_ring(queue.into());
            }
            Effect::RxTail(_) | Effect::TxTail(_) => registers.publish(word, kept),
            Effect::Rdtr => {
                registers.set(word, kept);
                if value & FLUSH != 0 {
                    self.flush_receive_delay();
                }
            }
            Effect::CsbHigh if self.csb => registers.set(word, kept),
            Effect::CsbLow if self.csb => {
                registers.set(word, kept);
                self.announce_block();
            }
            Effect::CsbLow | Effect::CsbHigh => {}
            Effect::Status | Effect::OctetsLow(_) | Effect::OctetsHigh(_) => {}
        }
    }

    fn write_control(&self, value: u32, kept: u32) {
        if value & ctrl::RST != 0 {
            self.reset_by_driver();
            return;
        }
        self.change_filters(|| self.registers.set(table::CTRL, kept));
        if value & ctrl::PHY_RST != 0 {
            phy::reset(&self.registers, self.chip);
            self.negotiated();
        }
    }

    fn write_extended_control(&self, value: u32, word: usize, kept: u32) {
        self.registers.set(word, kept);
        if value & ctrl_ext::EE_RST != 0 {
            self.change_filters(|| self.load_address());
        }
    }

    fn access_phy(&self, request: u32, word: usize) {
        let (answer, changed) = phy::access(&self.registers, self.chip, request);
        self.registers.set(word, answer);
        if changed == Changed::Negotiated {
            self.negotiated();
        }
        if request & mdic::INTERRUPT != 0 {
            let _ = self.raise(cause::MDAC);
        }
    }

    /// Handles a link that went down and came back.
    fn negotiated(&self) {
        if self.registers.has_link() {
            let _ = self.raise(cause::LSC);
        }
    }

    /// The window of I/O ports: the first word selects the register that the second one accesses.
    fn read_io(&self, at: u64) -> u32 {
        match at {
            0 => self.registers.io_address.load(Relaxed),
            4 => self.read32(u64::from(self.registers.io_address.load(Relaxed))),
            _ => 0,
        }
    }

    fn write_io(&self, at: u64, value: u32) {
        match at {
            0 => self.registers.io_address.store(value & IO_ADDRESS, Relaxed),
            4 => self.write32(u64::from(self.registers.io_address.load(Relaxed)), value),
            _ => {}
        }
    }

    fn window(&self, bar: usize) -> Window {
        match (self.chip, bar) {
            (_, 0) => Window::Memory,
            (Chip::Em82540, 1) | (Chip::L82574, 2) => Window::Io,
            _ => Window::None,
        }
    }

    fn read_word(&self, bar: usize, at: u64) -> u32 {
        match self.window(bar) {
            Window::Memory => self.read32(at),
            Window::Io => self.read_io(at),
            Window::None => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Window {
    Memory,
    Io,
    /// Pending bits of messages, which this model never keeps pending, and registers that do not
    /// exist.
    None,
}

/// The device's PCI identity. With `csb`, it offers a shared status block.
#[must_use]
pub fn identity(chip: Chip, csb: bool) -> Identity {
    let (device, revision, subsystem) = match chip {
        Chip::Em82540 => (0x100e, 3, 0x001e),
        Chip::L82574 => (0x10d3, 0, 0xa01f),
    };
    let is_l = chip == Chip::L82574;
    let bars = match chip {
        Chip::Em82540 => [Some(Bar::Memory(MEMORY_BAR)), Some(Bar::Io(64)), None, None, None, None],
        Chip::L82574 => {
            let messages = Some(Bar::Memory(16 << 10));
            [Some(Bar::Memory(MEMORY_BAR)), None, Some(Bar::Io(32)), messages, None, None]
        }
    };
    Identity {
        vendor: 0x8086,
        device,
        revision,
        class: 0x02_0000,
        subsystem_vendor: 0x8086,
        subsystem: if csb { csb::SUBSYSTEM } else { subsystem },
        bars,
        msix: is_l.then_some(Msix { vectors: 5, bar: 3, table: 0, pending: 0x2000 }),
        msi: is_l,
        express: is_l,
    }
}
impl Device for E1000Device {
    fn identity(&self) -> Identity {
        identity(self.0.chip, self.0.csb)
    }

    fn read(&self, bar: usize, at: u64, data: &mut [u8], _now: Nanos) {
        match (data.len(), at % 4) {
            (4 | 8, 0) => {
                for (i, word) in data.chunks_exact_mut(4).enumerate() {
                    let at = at.saturating_add(4 * i as u64);
                    word.copy_from_slice(&self.0.read_word(bar, at).to_le_bytes());
                }
            }
            // A partial read of a register.
            (1 | 2, within) => {
                let word = self.0.read_word(bar, at & !3).to_le_bytes();
                let part = word.get(within as usize..).unwrap_or_default();
                data.fill(0);
                data.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            }
            _ => data.fill(0),
        }
    }

    fn write(&self, bar: usize, at: u64, data: &[u8], _now: Nanos) {
        // Registers accept only whole words (82540EM manual, 13.2).
        if !matches!(data.len(), 4 | 8) || !at.is_multiple_of(4) {
            return;
        }
        for (i, word) in data.as_chunks::<4>().0.iter().enumerate() {
            let (at, value) = (at.saturating_add(4 * i as u64), u32::from_le_bytes(*word));
            match self.0.window(bar) {
                Window::Memory => self.0.write32(at, value),
                Window::Io => self.0.write_io(at, value),
                Window::None => {}
            }
        }
    }

    fn reset(&self, _now: Nanos) {
        self.0.reset_function();
    }

    fn set_bus_master(&self, on: bool) {
        self.0.change_filters(|| self.0.registers.bus_master.store(u32::from(on), Relaxed));
    }

    fn set_interrupt_mode(&self, mode: InterruptMode) {
        self.0.set_mode(mode);
    }

    fn set_link(&self, up: bool, _now: Nanos) {
        let _ = self.0.set_link(up);
    }

    fn interrupt(&self, now: Nanos) -> Interrupt {
        self.0.interrupt(now)
    }

    fn headroom(&self) -> u32 {
        let (registers, descriptors) = (&self.0.registers, 2 * DESCRIPTOR);
        let half = |len: usize| registers.get(len) / descriptors;
        let told = self.0.block.is_used();
        if told { 0 } else { half(table::TX[0].len).min(half(table::RX[0].len)) }
    }

    fn shared_pages(&self) -> Option<SharedPages> {
        Some(table::shared_pages(self.0.chip))
    }

    fn remote(&self) -> Option<&dyn Remote> {
        self.0.copied.as_ref().map(|_| &*self.0 as &dyn Remote)
    }

    fn fault(&self) -> Option<&'static str> {
        self.0.registers.fault().map(super::Fault::sentence)
    }
}
