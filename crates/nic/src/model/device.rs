//! A device model as seen by the code that carries its registers: a vfio-user server, or a driver
//! in the same process.
//!
//! ```text
//!   bus (vfio-user, direct call)                     switch
//!     | Device: read, write, reset, interrupt          | Transmit: Ingress     Receive: Egress
//!     v                                                v                       v
//!   registers (memory that outlives a data process) <--+-----------------------+
//! ```
//!
//! A model is made over its registers and a guest's memory table. It is remade whenever that table
//! changes, and in every new data process: only the registers survive. All-zero registers are those
//! of a device that was never powered on.
//!
//! Threads: the home worker does register accesses and [`Transmit`]. It never does so while a batch
//! of that port is gathered and not completed, unless the batch is stalled. Any worker may call
//! egresses and [`Device::interrupt`].

use std::sync::Arc;

use frame::Mac;
use port::{Egress, EgressCounters, Ingress, IngressCounters, Nanos};
use shmem::{GuestMemory, RegionError, Shared};

use crate::remote::Remote;

/// A base address register (PCI 3.0, 6.2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// Memory of this many bytes, 32-bit, not prefetchable.
    Memory(u32),
    /// This many I/O ports.
    Io(u32),
}

/// How a device looks in PCI configuration space (PCI 3.0, 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Revision id.
    pub revision: u8,
    /// Class code, 24 bits.
    pub class: u32,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
    /// Base address registers.
    pub bars: [Option<Bar>; 6],
    /// MSI-X, if the device has it.
    pub msix: Option<Msix>,
    /// True if the device has MSI, with one vector.
    pub msi: bool,
    /// True if the device is a PCI Express endpoint.
    pub express: bool,
}

/// Where a device's MSI-X structures lie (PCI 3.0, 6.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Vectors: at most 32.
    pub vectors: u16,
    /// The BAR that holds the structures.
    pub bar: u8,
    /// Offset of the table in its base address register.
    pub table: u32,
    /// Offset of the pending bits in its base address register.
    pub pending: u32,
}

/// Whole pages of registers without side effects, doorbells apart. They may lie in memory that the
/// driver writes without a trap, if a thread polls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPages {
    /// The base address register that holds the pages.
    pub bar: usize,
    /// Offsets of the pages, of 4,096 bytes.
    pub pages: &'static [u64],
    /// Offsets of registers that the driver uses for setup.
    pub registers: &'static [u32],
    /// Offsets of registers in which the device reports its position.
    pub heads: &'static [u32],
    /// Doorbells.
    pub tails: &'static [u32],
}

/// How a device interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterruptMode {
    /// By the device's pin, a level.
    #[default]
    Pin,
    /// By one message.
    Msi,
    /// By a message for each vector.
    Msix,
}

/// The interrupts that a device wants raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "an interrupt that is not raised is lost"]
pub struct Interrupt {
    /// Vectors to signal, one bit each. With messages, signal each once; the device has already
    /// cleared it. With the pin, bit 0 is the moderated level, which stays until the guest clears
    /// the cause.
    pub vectors: u32,
    /// When to ask again: something is deferred until then.
    pub due: Option<Nanos>,
}

/// The reason why registers from elsewhere are refused: no driver's accesses can produce them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be {value:#x}")]
pub struct Impossible {
    /// The name of the register, or of the other state.
    pub what: &'static str,
    /// The impossible value.
    pub value: u64,
}

impl Impossible {
    /// Refuses a value that differs from `reset` in bits outside `settable`.
    pub(crate) fn check(
        what: &'static str,
        value: impl Into<u64>,
        (reset, settable): (impl Into<u64>, impl Into<u64>),
    ) -> Result<(), Self> {
        let value = value.into();
        let good = (value ^ reset.into()) & !settable.into() == 0;
        if good { Ok(()) } else { Err(Self { what, value }) }
    }

    /// Refuses a value above `most`.
    pub(crate) fn limit(what: &'static str, value: u32, most: u32) -> Result<(), Self> {
        if value <= most { Ok(()) } else { Err(Self { what, value: value.into() }) }
    }
}

/// A device's registers and interrupts.
pub trait Device: Send + Sync {
    /// The device's PCI identity.
    fn identity(&self) -> Identity;

    /// Reads `data.len()` bytes (1, 2, 4 or 8) at `at` in base address register `bar`. Every read
    /// gets an answer.
    fn read(&self, bar: usize, at: u64, data: &mut [u8], now: Nanos);

    /// Writes `data` at `at` in base address register `bar`. Call [`interrupt`](Self::interrupt)
    /// afterwards.
    fn write(&self, bar: usize, at: u64, data: &[u8], now: Nanos);

    /// Function-level reset: restores the power-on state.
    fn reset(&self, now: Nanos);

    /// Allows or forbids reads and writes of guest memory (bit 2 of the command register).
    fn set_bus_master(&self, on: bool);

    /// Sets how the device interrupts.
    fn set_interrupt_mode(&self, mode: InterruptMode);

    /// Connects or disconnects the cable.
    fn set_link(&self, up: bool, now: Nanos);

    /// Returns the interrupt to raise now.
    fn interrupt(&self, now: Nanos) -> Interrupt;

    /// Registers that a driver may write as plain memory, if the device offers that.
    fn shared_pages(&self) -> Option<SharedPages> {
        None
    }

    /// Keeps the guest's memory in step, if [`DeviceConfig::memory`] is a copy of it.
    fn remote(&self) -> Option<&dyn Remote> {
        None
    }

    /// How many frames may move before the driver must hear of them: half of the shortest ring.
    /// Otherwise the driver could run out of descriptors. 0 if the driver itself says when it wants
    /// to hear.
    fn headroom(&self) -> u32;

    /// The reason why the device has stopped, if its driver caused a fault. A reset by the driver
    /// clears it.
    fn fault(&self) -> Option<&'static str>;
}

/// A guest's transmit queue. Dropping it gives nothing back: its position is in the registers.
///
/// Even where nothing was gathered, frames may be finished: sent without a cable, or looped back.
/// Call [`settle`](Ingress::settle) then too, to learn whether to check the device's interrupt.
pub trait Transmit: Ingress {
    /// Asks the driver for doorbells, if it may leave them out. True if there are frames already.
    fn arm(&mut self) -> bool;

    /// Withdraws the request for doorbells.
    fn disarm(&mut self);

    /// When to send frames that are held back to be combined.
    fn deadline(&self) -> Option<Nanos> {
        None
    }
}

/// Limits for combining doorbells on the host's side: while traffic is heavy, one doorbell does the
/// work of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combining {
    /// This many waiting frames are sent at once.
    pub frames: u16,
    /// Longest wait of a frame, in microseconds.
    pub delay_us: u16,
}

/// The parts of which every model is made, in addition to its registers.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The guest's memory, as far as the device may use it, or a copy of it ([`Remote`]).
    pub memory: Arc<GuestMemory>,
    /// The station address in the device's EEPROM.
    pub mac: Mac,
    /// Counters of the device's transmit queues.
    pub ingress: Shared<IngressCounters>,
    /// Counters, one for each receive queue.
    pub egress: Vec<Shared<EgressCounters>>,
    /// True if the cable is connected.
    pub link: bool,
    /// Limits for combining doorbells, if the device combines them.
    pub combining: Option<Combining>,
    /// True to offer a shared status block ([`crate::csb`]).
    pub csb: bool,
}

impl DeviceConfig {
    /// The configuration of a single model, as in tests and benchmarks. It has this many receive
    /// queues with private counters, and the link is up. It combines nothing and offers no status
    /// block.
    ///
    /// # Errors
    /// [`RegionError::Map`] when the kernel refuses memory for counters.
    pub fn alone(memory: Arc<GuestMemory>, mac: Mac, queues: usize) -> Result<Self, RegionError> {
        Ok(Self {
            memory,
            mac,
            ingress: Shared::private()?,
            egress: (0..queues).map(|_| Shared::private()).collect::<Result<_, _>>()?,
            link: true,
            combining: None,
            csb: false,
        })
    }
}

/// A model, ready to be attached.
pub struct Model {
    /// Its registers.
    pub device: Arc<dyn Device>,
    /// The model's transmit queues.
    pub transmit: Vec<Box<dyn Transmit>>,
    /// The model's receive queues.
    pub receive: Vec<Arc<dyn Egress>>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Identity { vendor, device, .. } = self.device.identity();
        write!(f, "Model({vendor:04x}:{device:04x})")
    }
}
