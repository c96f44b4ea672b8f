//! What a device model is to whoever carries its registers: a vfio-user server, or a driver in the same
//! process.
//!
//! ```text
//!   bus (vfio-user, direct call)                     switch
//!     | Device: read, write, reset, interrupt          | Transmit: Ingress     Receive: Egress
//!     v                                                v                       v
//!   registers (memory that outlives a data process) <--+-----------------------+
//! ```
//!
//! A model is made over its registers and a guest's memory table, as often as that table changes, and by
//! every data process anew: what is not in the registers does not survive that. All-zero registers are
//! those of a device that was never powered on.
//!
//! Who calls what: register accesses and [`Transmit`] are the home worker's, one thread, never while a
//! batch of that port is gathered and not completed, but for one that is stalled. Egresses and
//! [`Device::interrupt`] are any worker's.

use std::sync::Arc;

use frame::Mac;
use port::{Egress, EgressCounters, Ingress, IngressCounters, Nanos};
use shmem::{GuestMemory, RegionError, Shared};

use crate::remote::Remote;

/// A base address register (PCI 3.0, 6.2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// Memory of so many bytes, 32-bit, not prefetchable.
    Memory(u32),
    /// So many I/O ports.
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
    /// MSI-X, if it has it.
    pub msix: Option<Msix>,
    /// It has MSI, one vector.
    pub msi: bool,
    /// It is a PCI Express endpoint.
    pub express: bool,
}

/// Where a device's MSI-X structures lie (PCI 3.0, 6.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Vectors: at most 32.
    pub vectors: u16,
    /// The BAR that holds them.
    pub bar: u8,
    /// Offset of the table in it.
    pub table: u32,
    /// Offset of the pending bits in it.
    pub pending: u32,
}

/// Whole pages of registers without side effects but for doorbells: they may lie in memory that the driver
/// writes without a trap, if somebody looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPages {
    /// The base address register they are in.
    pub bar: usize,
    /// Offsets of the pages, of 4,096 bytes.
    pub pages: &'static [u64],
    /// Offsets of registers that the driver sets up.
    pub registers: &'static [u32],
    /// Those that say where the device is.
    pub heads: &'static [u32],
    /// Doorbells.
    pub tails: &'static [u32],
}

/// How a device interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterruptMode {
    /// By its pin, a level.
    #[default]
    Pin,
    /// By one message.
    Msi,
    /// By a message for each vector.
    Msix,
}

/// What is to be raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "an interrupt that is not raised is lost"]
pub struct Interrupt {
    /// Vectors to signal, a bit each. By message: each is signalled once, and was taken off the device's
    /// hands. By pin: bit 0 is the level, moderated; it stays until the guest takes the cause away.
    pub vectors: u32,
    /// When to ask again: something is held back until then.
    pub due: Option<Nanos>,
}

/// Why registers that come from elsewhere are not taken over: no driver's accesses make them so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be {value:#x}")]
pub struct Impossible {
    /// The register, or what is kept beside them.
    pub what: &'static str,
    /// What it is.
    pub value: u64,
}

impl Impossible {
    /// Refuses a value that differs from `reset` in other bits than those in `settable`.
    pub(crate) fn check(
        what: &'static str,
        value: impl Into<u64>,
        (reset, settable): (impl Into<u64>, impl Into<u64>),
    ) -> Result<(), Self> {
        let value = value.into();
        let good = (value ^ reset.into()) & !settable.into() == 0;
        if good { Ok(()) } else { Err(Self { what, value }) }
    }

    /// Refuses one that is more than `most`.
    pub(crate) fn limit(what: &'static str, value: u32, most: u32) -> Result<(), Self> {
        if value <= most { Ok(()) } else { Err(Self { what, value: value.into() }) }
    }
}

/// A device's registers and interrupts.
pub trait Device: Send + Sync {
    /// How it looks on PCI.
    fn identity(&self) -> Identity;

    /// A read of `data.len()` bytes (1, 2, 4 or 8) at `at` in base address register `bar`. Whatever is
    /// asked, there is an answer.
    fn read(&self, bar: usize, at: u64, data: &mut [u8], now: Nanos);

    /// A write, likewise. [`interrupt`](Self::interrupt) is to be asked afterwards.
    fn write(&self, bar: usize, at: u64, data: &[u8], now: Nanos);

    /// Function-level reset: as after power-on.
    fn reset(&self, now: Nanos);

    /// Reads and writes of guest memory are allowed (bit 2 of the command register).
    fn set_bus_master(&self, on: bool);

    /// How it is to interrupt from now on.
    fn set_interrupt_mode(&self, mode: InterruptMode);

    /// Connects or disconnects the cable.
    fn set_link(&self, up: bool, now: Nanos);

    /// What is to be raised now.
    fn interrupt(&self, now: Nanos) -> Interrupt;

    /// Registers that a driver may write as plain memory, where that is offered.
    fn shared_pages(&self) -> Option<SharedPages> {
        None
    }

    /// What keeps the guest's memory in step, where [`DeviceConfig::memory`] is a copy of it.
    fn remote(&self) -> Option<&dyn Remote> {
        None
    }

    /// Frames that its driver can have moved before it must hear of some, lest it run out of descriptors:
    /// half of the shortest ring. 0 if the driver itself says when it wants to hear.
    fn headroom(&self) -> u32;

    /// Why the device has stopped, if its driver broke it. A reset by the driver heals it.
    fn fault(&self) -> Option<&'static str>;
}

/// A guest's transmit queue. Dropped, it gives nothing back: its position is in the registers.
///
/// Where nothing was gathered, some frames may be finished all the same (sent without a cable, or come
/// back in loopback): [`settle`](Ingress::settle) is to be asked then, too, whether to look at the
/// device's interrupt.
pub trait Transmit: Ingress {
    /// Asks the driver for doorbells, where it may leave them out. True if there are frames already.
    fn arm(&mut self) -> bool;

    /// Takes that back.
    fn disarm(&mut self);

    /// When frames that are held back, to be more, are to be sent.
    fn deadline(&self) -> Option<Nanos> {
        None
    }
}

/// Doorbells that are held back while traffic is heavy, for one to do the work of several (send combining
/// on the host's side).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combining {
    /// Frames that are enough.
    pub frames: u16,
    /// Most microseconds that a frame waits.
    pub delay_us: u16,
}

/// What every model is made of, beside its registers.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The guest's memory, as far as the device may use it; or a copy of it ([`Remote`]).
    pub memory: Arc<GuestMemory>,
    /// The station address in its EEPROM.
    pub mac: Mac,
    /// Its transmit queues count here.
    pub ingress: Shared<IngressCounters>,
    /// Each of its receive queues counts in its own.
    pub egress: Vec<Shared<EgressCounters>>,
    /// The cable is connected.
    pub link: bool,
    /// Doorbells that are held back.
    pub combining: Option<Combining>,
    /// It offers a shared status block ([`crate::csb`]).
    pub csb: bool,
}

impl DeviceConfig {
    /// Of a model on its own, as in tests and benchmarks: with so many receive queues, whose counters nobody else
    /// sees, connected, nothing held back, no status block.
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

/// A model, ready to be plugged in.
pub struct Model {
    /// Its registers.
    pub device: Arc<dyn Device>,
    /// Its transmit queues.
    pub transmit: Vec<Box<dyn Transmit>>,
    /// Its receive queues.
    pub receive: Vec<Arc<dyn Egress>>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Identity { vendor, device, .. } = self.device.identity();
        write!(f, "Model({vendor:04x}:{device:04x})")
    }
}
