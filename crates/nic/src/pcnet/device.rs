//! The controller as its bus sees it: windows, and the registers behind them (Am79C970A, "I/O
//! Resources").
//!
//! ```text
//!   offset   16 bits wide (WIO)   32 bits wide (DWIO)
//!   00-0f    address PROM, at any width
//!   10       RDP                  RDP
//!   12       RAP
//!   14       RESET                RAP
//!   16       BDP
//!   18                            RESET
//!   1c                            BDP
//! ```
//!
//! A 32-bit write to RDP makes the windows 32 bits wide, until H_RESET. Both base address registers
//! show the same windows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use port::Nanos;

use super::core::Core;
use super::registers::{APROMWE, DWIO, bcr, board, csr, status};
use super::table::{self, Chip, Class, Effect, Register, View};
use super::{Registers, mii};
use crate::csb;
use crate::device::{Bar, Device, Identity, Interrupt, InterruptMode};
use crate::model::regs::Access;
use crate::remote::Remote;

/// Bytes of either window.
const WINDOW: u32 = 32;
/// Where the address PROM ends.
const PROM: u64 = 16;
/// Subsystem id of a controller without a shared status block.
const SUBSYSTEM: u16 = 0x2000;

/// The register behind an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Data,
    Address,
    Reset,
    Bus,
}

/// The result of a read with an invalid width or offset.
const NOTHING: u32 = u32::MAX;
/// LEDs that show the link, and full duplex.
const LED_LINK: u16 = 1 << 6;
const LED_DUPLEX: u16 = 1 << 8;
const LED_EVENTS: u16 = 0x017f;
const LED_OUT: u16 = 1 << 15;
/// BCR9: full duplex.
const FDEN: u16 = 1;
/// BCR19: read from the EEPROM, or check against it; done at once.
const PREAD: u16 = 1 << 14;

/// A controller's registers.
#[derive(Debug)]
pub(super) struct PcnetDevice(pub Arc<Core>);

impl PcnetDevice {
    fn registers(&self) -> &Registers {
        &self.0.registers
    }

    /// The port for a 16-bit or 32-bit access at this offset, beyond the PROM.
    fn port(&self, at: u64, width: usize) -> Option<Port> {
        let wide = self.registers().bcr(bcr::BUS) & DWIO != 0;
        let ports = match (wide, width) {
            (false, 2) => {
                [(0x10, Port::Data), (0x12, Port::Address), (0x14, Port::Reset), (0x16, Port::Bus)]
            }
            (true, 4) => {
                [(0x10, Port::Data), (0x14, Port::Address), (0x18, Port::Reset), (0x1c, Port::Bus)]
            }
            _ => return None,
        };
        ports.into_iter().find(|(offset, _)| *offset == at).map(|(_, port)| port)
    }

    fn read_port(&self, port: Port) -> u32 {
        let registers = self.registers();
        let rap = registers.rap.load(Ordering::Relaxed);
        let value = match port {
            Port::Address => {
                registers.count(Class::Latch);
                rap as u16
            }
            Port::Reset => {
                registers.count(Class::Local);
                self.0.reset(false);
                0
            }
            Port::Data => {
                let row = self.csr(rap as usize);
                let value = self.read_register(row, false);
                if row.is_some_and(|row| row.effect.view == View::ChipId) {
                    return registers.csr_pair(rap as usize);
                }
                value
            }
            Port::Bus => self.read_register(table::bcr(rap as usize, self.0.chip), true),
        };
        value.into()
    }

    /// Reads the CSR or BCR in a row of the table.
    fn read_register(&self, row: Option<&Register>, is_bcr: bool) -> u16 {
        let registers = self.registers();
        let Some(row) = row else {
            registers.count(Class::Latch);
            return 0;
        };
        registers.count(row.effect.read);
        let number = row.at as usize;
        let stored = if is_bcr { registers.bcr(number) } else { registers.csr(number) };
        let ring = |base, len| (registers.csr_pair(base), registers.ring_len(len));
        let size = if registers.bcr(bcr::STYLE) & 0x100 == 0 { 8 } else { 16 };
        let half = |word: u32, half: u8| (word >> (16 * u32::from(half))) as u16;
        let (receiving, sending) = (registers.receive.at(), registers.position().at);
        match row.effect.view {
            View::Latch | View::ChipId => stored,
            View::Status => self.read_status(),
            View::Csr(other) => registers.csr(other.into()),
            View::Bcr(other) => registers.bcr(other.into()),
            View::ReceiveAt(which) => {
                let (base, _) = ring(csr::RECEIVE_BASE, csr::RECEIVE_LENGTH);
                half(base.wrapping_add(receiving * size), which)
            }
            View::TransmitAt(which) => {
                let (base, _) = ring(csr::TRANSMIT_BASE, csr::TRANSMIT_LENGTH);
                half(base.wrapping_add(sending * size), which)
            }
            View::ReceiveCount => {
                let (_, len) = ring(csr::RECEIVE_BASE, csr::RECEIVE_LENGTH);
                (receiving.wrapping_sub(len)) as u16
            }
            View::TransmitCount => {
                let (_, len) = ring(csr::TRANSMIT_BASE, csr::TRANSMIT_LENGTH);
                (sending.wrapping_sub(len)) as u16
            }
            View::Led => self.read_led(stored),
            View::Phy => mii::read(registers),
        }
    }

    fn read_status(&self) -> u16 {
        let registers = self.registers();
        let mut value = registers.status();
        if value & status::ERRORS != 0 {
            value |= status::ERR;
        }
        if registers.pending() {
            value |= status::INTR;
        }
        value
    }

    /// An LED is lit if any condition that it shows is true.
    fn read_led(&self, stored: u16) -> u16 {
        let registers = self.registers();
        let mut shown = 0;
        if registers.has(board::LINK) {
            shown |= LED_LINK;
            if registers.bcr(bcr::DUPLEX) & FDEN != 0 {
                shown |= LED_DUPLEX;
            }
        }
        let lit = stored & shown & LED_EVENTS != 0;
        stored & !LED_OUT | if lit { LED_OUT } else { 0 }
    }

    fn write_port(&self, port: Port, value: u16) {
        let registers = self.registers();
        let rap = registers.rap.load(Ordering::Relaxed) as usize;
        match port {
            Port::Address => {
                registers.rap.store(u32::from(value) & 0x7f, Ordering::Relaxed);
                registers.count(Class::Latch);
            }
            Port::Reset => registers.count(Class::Latch),
            Port::Data => self.write_csr(rap, value),
            Port::Bus => self.write_bcr(rap, value),
        }
    }

    /// The CSR of this number, if there is one.
    fn csr(&self, number: usize) -> Option<&'static Register> {
        let of_block =
            |row: &Register| matches!(row.effect.effect, Effect::Block | Effect::BlockAddress);
        table::csr(number, self.0.chip).filter(|row| self.0.csb || !of_block(row))
    }

    fn may_write(&self, row: &Register) -> bool {
        match row.access {
            Access::ReadWrite | Access::WriteOnly => true,
            Access::ReadOnly | Access::ReadClear => false,
            Access::Halted => {
                let registers = self.registers();
                registers.status() & status::STOP != 0 || registers.is_suspended()
            }
        }
    }

    fn write_csr(&self, number: usize, value: u16) {
        let registers = self.registers();
        let Some(row) = self.csr(number).filter(|row| self.may_write(row)) else {
            return registers.count(Class::Latch);
        };
        let ((mask, _), mut class) = (row.bits(), row.effect.write);
        match row.effect.effect {
            Effect::Control => class = self.0.write_status(value),
            Effect::Events(events) => self.0.store_events(number, value, mask, events),
            Effect::Features(events) => self.0.write_features(value, mask, events),
            Effect::Suspend(events) => self.0.write_extended(value, mask, events),
            Effect::Csr(other) => return self.write_csr(other.into(), value),
            Effect::Bcr(other) => return self.write_bcr(other.into(), value),
            effect => {
                registers.set_csr(number, registers.csr(number) & !mask | value & mask);
                match effect {
                    Effect::Config => registers.changed(),
                    Effect::Block => self.0.announce_block(),
                    _ => {}
                }
            }
        }
        registers.count(class);
    }

    fn write_bcr(&self, number: usize, value: u16) {
        let registers = self.registers();
        let Some(row) = table::bcr(number, self.0.chip).filter(|row| self.may_write(row)) else {
            return registers.count(Class::Latch);
        };
        registers.count(row.effect.write);
        let (mask, _) = row.bits();
        let value = registers.bcr(number) & !mask | value & mask;
        let value = match row.effect.effect {
            Effect::Style => style_bits(value),
            Effect::Eeprom => value & !PREAD,
            Effect::Phy => {
                if mii::write(registers, value) {
                    registers.changed();
                }
                value
            }
            _ => value,
        };
        registers.set_bcr(number, value);
        if matches!(row.effect.effect, Effect::Style | Effect::Config) {
            registers.changed();
        }
    }

    fn read_prom(&self, at: u64, data: &mut [u8]) {
        self.registers().count(Class::Latch);
        let prom = self.registers().read_prom();
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = prom.get(at as usize + i).copied().unwrap_or(u8::MAX);
        }
    }

    fn write_prom(&self, at: u64, data: &[u8]) {
        let registers = self.registers();
        registers.count(Class::Latch);
        if registers.bcr(bcr::MISCELLANEOUS) & APROMWE == 0 {
            return;
        }
        let mut prom = registers.read_prom();
        for (i, byte) in data.iter().enumerate() {
            if let Some(place) = prom.get_mut(at as usize + i) {
                *place = *byte;
            }
        }
        registers.write_prom(&prom);
    }
}

/// BCR20, with SSIZE32 and CSRPCNET as the software style implies (Am79C970A, "BCR20").
pub(super) fn style_bits(value: u16) -> u16 {
    match value & 0xff {
        0 => value & !0x0300 | 0x0200,
        1 => value & !0x0300 | 0x0100,
        2 | 3 => value | 0x0300,
        // Not defined: as after power-on.
        _ => 0x0200,
    }
}

impl Chip {
    /// The device's PCI identity. With `csb`, it offers a shared status block.
    #[must_use]
    pub fn identity(self, csb: bool) -> Identity {
        let subsystem = if csb { csb::SUBSYSTEM } else { SUBSYSTEM };
        Identity {
            vendor: 0x1022,
            device: 0x2000,
            revision: self.revision(),
            class: 0x02_0000,
            subsystem_vendor: 0x1022,
            subsystem,
            bars: [Some(Bar::Io(WINDOW)), Some(Bar::Memory(WINDOW)), None, None, None, None],
            msix: None,
            msi: false,
            express: false,
        }
    }
}

impl Device for PcnetDevice {
    fn identity(&self) -> Identity {
        self.0.chip.identity(self.0.csb)
    }

    fn read(&self, bar: usize, at: u64, data: &mut [u8], _now: Nanos) {
        if bar > 1 {
            return data.fill(u8::MAX);
        }
        if at < PROM {
            return self.read_prom(at, data);
        }
        let value = self.port(at, data.len()).map_or(NOTHING, |port| self.read_port(port));
        let mut bytes = value.to_le_bytes().into_iter().chain([u8::MAX; 4]);
        data.iter_mut().for_each(|byte| *byte = bytes.next().unwrap_or(u8::MAX));
    }

    fn write(&self, bar: usize, at: u64, data: &[u8], _now: Nanos) {
        if bar > 1 {
            return;
        }
        if at < PROM {
            return self.write_prom(at, data);
        }
        if let Some(port) = self.port(at, data.len()) {
            let (low, high) = (data.first(), data.get(1));
            let value = [low, high].map(|byte| byte.copied().unwrap_or_default());
            self.write_port(port, u16::from_le_bytes(value));
        } else if at == PROM && data.len() == 4 {
            // The value is not stored: the write only makes the windows wide.
            let registers = self.registers();
            registers.count(Class::Local);
            registers.set_bcr(bcr::BUS, registers.bcr(bcr::BUS) | DWIO);
        }
    }

    fn reset(&self, _now: Nanos) {
        self.0.reset(true);
    }

    fn set_bus_master(&self, on: bool) {
        self.registers().set_board(board::MASTER, on);
    }

    fn set_interrupt_mode(&self, _mode: InterruptMode) {}

    fn set_link(&self, up: bool, _now: Nanos) {
        self.registers().set_board(board::LINK, up);
    }

    fn interrupt(&self, now: Nanos) -> Interrupt {
        let vectors = u32::from(self.0.read_level());
        // Looking at the ring finishes frames that do not leave, and gathers nothing.
        let finishes = self.0.absorbs() && self.registers().demands() > 0;
        Interrupt { vectors, due: finishes.then_some(now) }
    }

    fn headroom(&self) -> u32 {
        let half = |len: usize| self.registers().ring_len(len) / 2;
        let told = self.0.block.is_used();
        if told { 0 } else { half(csr::TRANSMIT_LENGTH).min(half(csr::RECEIVE_LENGTH)) }
    }

    fn remote(&self) -> Option<&dyn Remote> {
        self.0.copied.as_ref().map(|_| &*self.0 as &dyn Remote)
    }

    fn fault(&self) -> Option<&'static str> {
        self.registers().fault().map(super::Fault::sentence)
    }
}
