//! A device's PCI configuration space (PCI 3.0, 6.1), built from its [`Identity`].
//!
//! ```text
//!   00 header: ids, command, BARs, subsystem, interrupt pin
//!   a0 MSI-X (6.8.2)    d0 MSI (6.8.1)    e0 PCI Express, version 1 (PCIe 1.0a, 7.8)
//! ```
//!
//! 256 bytes, in memory that outlives a data process. A front end reads and writes them as a bus
//! would. Only the command register affects the device: the bus sets up interrupts itself, and
//! reports that separately.

use std::sync::atomic::Ordering;

use shmem::Shared;
use shmem::sync::AtomicU32;

use crate::device::{Bar, Identity, Impossible};

/// Bytes of configuration space.
pub const SIZE: usize = 256;
/// Bytes with room for PCI Express's extended capabilities. Those beyond [`SIZE`] are zeros.
pub const EXTENDED_SIZE: usize = 4096;

/// The words of a configuration space, as they lie in memory, least significant byte first.
pub type Words = [AtomicU32; SIZE / 4];

/// Offsets of the capabilities.
const MSIX: usize = 0xa0;
const MSI: usize = 0xd0;
const EXPRESS: usize = 0xe0;
/// Offset of the first base address register.
const BARS: usize = 0x10;
/// Command register: offset, and its bit that allows access to memory.
const COMMAND: usize = 0x04;
const BUS_MASTER: u32 = 1 << 2;
/// Memory and bus master, parity and SERR, interrupt disable; I/O where there are ports.
const COMMAND_BITS: u32 = 0x0546;
const INTERRUPT_DISABLE: u32 = 1 << 10;
/// Status register, in the upper half of its word: the pin's interrupt is pending, even if it is
/// disabled. The capability list exists.
const INTERRUPT_STATUS: u32 = 1 << 19;
const CAPABILITIES: u32 = 1 << 20;

/// Configuration space.
#[derive(Debug)]
pub struct Config {
    words: Shared<Words>,
    /// Each word's value after power-on, and its writable bits.
    layout: Box<[(u32, u32); SIZE / 4]>,
}

/// What a write changed for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the device is to be told"]
pub struct Changed {
    /// The device may now use memory (true), or may not (false).
    pub bus_master: Option<bool>,
}

impl Config {
    /// The configuration space of a device, with its contents in `words`.
    #[must_use]
    pub fn new(identity: &Identity, words: Shared<Words>) -> Self {
        Self { words, layout: layout(identity) }
    }

    /// Restores the power-on state.
    pub fn power_on(&self) {
        for (word, (reset, _)) in self.words.iter().zip(self.layout.iter()) {
            word.store(*reset, Ordering::Relaxed);
        }
    }

    /// Refuses contents that no bus can produce.
    ///
    /// # Errors
    /// [`Impossible`].
    pub fn check(&self) -> Result<(), Impossible> {
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        words.zip(self.layout.iter()).try_for_each(|(word, (reset, writable))| {
            Impossible::check("a word of configuration space", word, (*reset, *writable))
        })
    }

    /// True if the device may use memory.
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.words.get(COMMAND / 4).is_some_and(|c| c.load(Ordering::Relaxed) & BUS_MASTER != 0)
    }

    /// True if the device may not raise its pin.
    #[must_use]
    pub fn pin_disabled(&self) -> bool {
        let command = self.words.get(COMMAND / 4);
        command.is_some_and(|c| c.load(Ordering::Relaxed) & INTERRUPT_DISABLE != 0)
    }

    /// Reads from byte `at` on; bytes beyond the space are zeros. `pending` says that the device
    /// wants its pin raised.
    pub fn read(&self, at: usize, data: &mut [u8], pending: bool) {
        for (i, byte) in data.iter_mut().enumerate() {
            let at = at.saturating_add(i);
            let word = self.words.get(at / 4).map_or(0, |word| word.load(Ordering::Relaxed));
            let status = if pending && at / 4 == COMMAND / 4 { INTERRUPT_STATUS } else { 0 };
            let word = word | status;
            *byte = (word >> (8 * (at % 4))) as u8;
        }
    }

    /// Writes the writable bits from byte `at` on. Only one thread at a time may call it.
    pub fn write(&self, at: usize, data: &[u8]) -> Changed {
        let before = self.bus_master();
        for (i, byte) in data.iter().enumerate() {
            let at = at.saturating_add(i);
            let Some((word, (_, writable))) = self.words.get(at / 4).zip(self.layout.get(at / 4))
            else {
                break;
            };
            let shift = 8 * (at % 4);
            let mask = writable & (0xff << shift);
            let old = word.load(Ordering::Relaxed);
            word.store(old & !mask | u32::from(*byte) << shift & mask, Ordering::Relaxed);
        }
        let now = self.bus_master();
        Changed { bus_master: (before != now).then_some(now) }
    }
}

/// Words under construction: value after power-on, and writable bits.
struct Layout(Box<[(u32, u32); SIZE / 4]>);

impl Layout {
    fn put(&mut self, at: usize, reset: u32, writable: u32) {
        if let Some(word) = self.0.get_mut(at / 4) {
            *word = (reset, writable);
        }
    }
}

fn layout(identity: &Identity) -> Box<[(u32, u32); SIZE / 4]> {
    let pair = |low: u16, high: u16| u32::from(high) << 16 | u32::from(low);
    let mut to = Layout(Box::new([(0, 0); SIZE / 4]));
    let io = identity.bars.iter().flatten().any(|bar| matches!(bar, Bar::Io(_)));
    to.put(0x00, pair(identity.vendor, identity.device), 0);
    to.put(0x08, identity.class << 8 | u32::from(identity.revision), 0);
    // Cache line size and latency timer.
    to.put(0x0c, 0, 0xffff);
    for (at, bar) in (BARS..).step_by(4).zip(&identity.bars) {
        match *bar {
            Some(Bar::Memory(size)) => to.put(at, 0, !(size.max(16).next_power_of_two() - 1)),
            Some(Bar::Io(size)) => to.put(at, 1, !(size.max(4).next_power_of_two() - 1)),
            None => {}
        }
    }
    to.put(0x2c, pair(identity.subsystem_vendor, identity.subsystem), 0);
    // Interrupt line, which firmware notes for the driver, and pin A.
    to.put(0x3c, 1 << 8, 0xff);
    let mut next = 0;
    if let Some(msix) = identity.msix {
        // Enable and mask all.
        let size = u32::from(msix.vectors.clamp(1, 32)) - 1;
        to.put(MSIX, 0x11 | next << 8 | size << 16, 0xc000_0000);
        to.put(MSIX + 4, msix.table & !7 | u32::from(msix.bar & 7), 0);
        to.put(MSIX + 8, msix.pending & !7 | u32::from(msix.bar & 7), 0);
        next = MSIX as u32;
    }
    if identity.msi {
        // Enable; one vector; 64-bit addresses.
        to.put(MSI, 0x05 | next << 8 | 1 << 23, 1 << 16);
        to.put(MSI + 4, 0, !3);
        to.put(MSI + 8, 0, !0);
        to.put(MSI + 12, 0, 0xffff);
        next = MSI as u32;
    }
    if identity.express {
        put_express(&mut to, next);
        next = EXPRESS as u32;
    }
    let capabilities = if next == 0 { 0 } else { CAPABILITIES };
    to.put(COMMAND, capabilities, COMMAND_BITS | u32::from(io));
    to.put(0x34, next, 0);
    to.0
}

/// An endpoint of version 1 with a link of one lane at 2.5 GT/s (PCIe 1.0a, 7.8.2 to 7.8.8).
fn put_express(to: &mut Layout, next: u32) {
    to.put(EXPRESS, 0x10 | next << 8 | 1 << 16, 0);
    // Payloads of up to 256 bytes; error reporting by role.
    to.put(EXPRESS + 4, 1 | 1 << 15, 0);
    // Device control: error reporting, payload and request sizes.
    to.put(EXPRESS + 8, 0x2810, 0x7fff);
    to.put(EXPRESS + 12, 0x0000_0011, 0);
    // Link control, and a status of one lane at 2.5 GT/s.
    to.put(EXPRESS + 16, 0x0011_0000, 0x01cb);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Msix;

    const CARD: Identity = Identity {
        vendor: 0x8086,
        device: 0x10d3,
        revision: 3,
        class: 0x02_00_00,
        subsystem_vendor: 0x8086,
        subsystem: 0xa01f,
        bars: [Some(Bar::Memory(0x2_0000)), None, Some(Bar::Io(0x20)), None, None, None],
        msix: Some(Msix { vectors: 5, bar: 3, table: 0, pending: 0x2000 }),
        msi: true,
        express: true,
    };

    fn config(identity: &Identity) -> Config {
        let config = Config::new(identity, Shared::private().unwrap());
        config.power_on();
        config
    }

    fn word(config: &Config, at: usize) -> u32 {
        let mut bytes = [0; 4];
        config.read(at, &mut bytes, false);
        u32::from_le_bytes(bytes)
    }

    fn set(config: &Config, at: usize, value: u32) -> Changed {
        config.write(at, &value.to_le_bytes())
    }

    #[test]
    fn a_card_reports_its_identity() {
        let config = config(&CARD);
        for (at, want) in [
            (0x00, 0x10d3_8086),
            (0x04, 0x0010_0000),
            (0x08, 0x0200_0003),
            (0x18, 1),
            (0x2c, 0xa01f_8086),
            (0x3c, 0x100),
        ] {
            assert_eq!(word(&config, at), want, "{at:#x}");
        }
        let mut byte = [0];
        config.read(3, &mut byte, false);
        assert_eq!(byte, [0x10]);
    }

    #[test]
    fn capabilities_are_a_list_that_ends() {
        for (msix, msi, express, want) in [
            (CARD.msix, true, true, vec![0x10, 0x05, 0x11]),
            (None, true, false, vec![0x05]),
            (CARD.msix, false, true, vec![0x10, 0x11]),
            (None, false, false, vec![]),
        ] {
            let config = config(&Identity { msix, msi, express, ..CARD });
            let listed = word(&config, 0x04) & CAPABILITIES != 0;
            let (mut at, mut found) = (word(&config, 0x34) as usize, Vec::new());
            while at != 0 && found.len() < 8 {
                found.push(word(&config, at) as u8);
                at = (word(&config, at) >> 8 & 0xff) as usize;
            }
            assert_eq!((listed, &found), (!want.is_empty(), &want));
        }
    }

    #[test]
    fn sizes_of_bars_are_found_the_usual_way() {
        let config = config(&CARD);
        for (at, want) in [(0x10, 0xfffe_0000), (0x14, 0), (0x18, 0xffff_ffe1), (0x30, 0)] {
            let _ = set(&config, at, !0);
            assert_eq!(word(&config, at), want, "{at:#x}");
        }
    }

    #[test]
    fn the_command_register_decides_about_memory() {
        let config = config(&CARD);
        assert_eq!(set(&config, 0x04, 0x0000_0003), Changed { bus_master: None });
        assert_eq!(config.write(0x04, &[7]), Changed { bus_master: Some(true) });
        assert!(config.bus_master());
        assert_eq!(config.write(0x05, &[0xff]), Changed { bus_master: None });
        assert_eq!(word(&config, 0x04), 0x0010_0507);
        assert_eq!(set(&config, 0x04, 0), Changed { bus_master: Some(false) });
        let _ = set(&config, 0x00, 0);
        assert_eq!(word(&config, 0), 0x10d3_8086, "ids are written");
    }

    #[test]
    fn the_status_register_tells_of_the_pin_whether_it_may_be_raised_or_not() {
        let config = config(&CARD);
        for (command, disabled) in [(0x0007, false), (0x0407, true)] {
            let _ = set(&config, 0x04, command);
            assert_eq!(config.pin_disabled(), disabled);
            for (pending, status) in [(true, 0x0018), (false, 0x0010)] {
                let mut bytes = [0; 2];
                config.read(0x06, &mut bytes, pending);
                assert_eq!(u16::from_le_bytes(bytes), status, "{command:#x}");
            }
        }
    }

    #[test]
    fn nothing_lies_beyond_the_end() {
        let config = config(&CARD);
        let _ = config.write(SIZE - 1, &[1; 8]);
        let _ = config.write(usize::MAX, &[1; 8]);
        let mut bytes = [9; 8];
        config.read(SIZE - 2, &mut bytes, true);
        assert_eq!(bytes, [0; 8]);
    }
}
