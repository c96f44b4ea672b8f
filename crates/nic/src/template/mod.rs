//! The smallest NIC that works, and the folder to copy for a new one. It is Denali's network card:
//! one register write sends a frame, and one register read receives one (Whitaker, Shaw, Gribble,
//! OSDI 2002, 3.2).
//!
//! ```text
//!   BAR 0, 32-bit registers                      area in guest memory, at AREA
//!     SEND    <- place | length << 16              256 buffers to send from     2,048 bytes each
//!     RECEIVE -> place | length << 16, or 0        256 buffers to receive into
//! ```
//!
//! There are no descriptors: a register names a buffer, and buffers are used in order. A read of
//! RECEIVE gives back the buffer of the previous read. The pin is raised while frames wait, so one
//! interrupt serves all frames that came before the driver looked.
//!
//! | file | what it is |
//! |---|---|
//! | `registers` | one row for each register; the state that outlives a data process |
//! | `device` | register accesses, reset, interrupt |
//! | `transmit`, `receive` | the guest's queues as ingress and egress |
//!
//! docs/adding-a-nic.md goes through these files in order.

mod device;
mod receive;
mod registers;
mod transmit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shmem::{GuestMemory, Shared};

pub use self::device::identity;
use self::receive::Receive;
pub(crate) use self::registers::table;
pub use self::registers::{AREA, BUFFER, FRAMES, Fault, REGISTERS, Register, Registers, reg};
use self::transmit::Transmit;
use crate::device::{DeviceConfig, Model};

/// State that the parts of a model share.
#[derive(Debug)]
struct Core {
    registers: Shared<Registers>,
    memory: Arc<GuestMemory>,
    mac: [u8; 6],
    /// Frames were received since a worker last decided whether to interrupt.
    ///
    /// # Protocol: template: `Core.news`
    /// - Writer: holder of the receive lock (set); the worker that settles (swap)
    /// - Reader: the worker that settles
    /// - Ordering: acquire-release
    /// - Partner: `Registers.received`
    /// - Without it: a driver sleeps beside a full queue
    /// - Shown by: `nic` tests `template`
    news: AtomicBool,
    /// Locked while frames are delivered, and while the driver resets the device or moves its area.
    receiving: Mutex<()>,
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the device until its driver resets it.
    #[cold]
    fn fail(&self, fault: Fault) {
        self.registers.fault.store(fault as u32, Ordering::Relaxed);
    }
}

/// Makes the model over its registers.
#[must_use]
pub fn model(registers: Shared<Registers>, config: DeviceConfig) -> Model {
    let DeviceConfig { memory, mac, ingress, egress, link, .. } = config;
    let copied = memory.is_copy();
    let (news, receiving) = (AtomicBool::new(true), Mutex::new(()));
    let core = Core { registers, memory, mac: mac.octets(), news, receiving };
    core.registers.take_over_lent(link);
    if copied {
        core.fail(Fault::Copy);
    }
    let core = Arc::new(core);
    let receive = egress.into_iter().take(1).map(|counters| {
        Arc::new(Receive::new(Arc::clone(&core), counters)) as Arc<dyn port::Egress>
    });
    Model {
        transmit: vec![Box::new(Transmit::new(Arc::clone(&core), ingress))],
        receive: receive.collect(),
        device: core,
    }
}
