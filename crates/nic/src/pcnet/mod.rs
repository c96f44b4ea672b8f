//! The PCnet family: Am79C970A and Am79C973 (1022:2000), driven by Linux's pcnet32 and whatever else
//! drove a LANCE.
//!
//! ```text
//!   bus --> bus: windows, RAP --> table: CSRs, BCRs --> core: INIT, STRT, STOP, resets
//!                                                        |
//!             transmit: Ingress <-- ring: descriptors ---+--- ring --> receive: Egress <-- filter
//! ```
//!
//! Every register access is of a [`Class`], as in VMware's paper on a virtual Lance (USENIX '01): half of
//! them are memory, most of the rest change nothing outside of the chip, and only a transmit demand
//! reaches for the network; see [`Registers::accesses`].
//!
//! With a shared status block ([`crate::csb`]), announced by its subsystem id, the block's address is
//! written to CSR96 (bits 15 to 0) to CSR99, CSR96 last; S_RESET leaves it alone. OWN bits go on to say
//! whose a descriptor is, and a transmit demand is the doorbell; the block says when neither it nor an
//! interrupt is needed. A driver leaves one descriptor of each ring unused, so that positions are not
//! ambiguous.
//!
//! What it does that the chip does not: it waits 2 ms for the end of a frame whose first descriptors are
//! there, before that is an underflow; it looks at the transmit ring more often than the poll timer says
//! while its worker is busy, and less often (down to twice a second) while nothing is found.
//!
//! What it does not do: look-ahead packet processing (LAPPEN is a latch), collisions, retries, the
//! EEPROM and boundary-scan interfaces, Magic Packet, interrupts by the PHY (CSR7 is a latch).

mod core;
mod device;
mod filter;
mod mii;
mod receive;
mod registers;
mod remote;
mod ring;
mod table;
mod take_over;
mod transmit;

use std::sync::Arc;

use shmem::Shared;

use crate::device::{DeviceConfig, Model};

pub use registers::{Accesses, Fault, Registers};
pub(crate) use table::tables;
pub use table::{Chip, Class, Described, describe};

/// The model of a chip over its registers. All-zero registers are powered on.
#[must_use]
pub fn model(chip: Chip, registers: Shared<Registers>, config: DeviceConfig) -> Model {
    let core = Arc::new(core::Core::new(chip, registers, &config));
    let DeviceConfig { ingress, egress, .. } = config;
    let counters = egress.into_iter().next();
    let transmit = transmit::Transmit::new(Arc::clone(&core), ingress);
    Model {
        device: Arc::new(device::PcnetDevice(Arc::clone(&core))),
        transmit: vec![Box::new(transmit)],
        receive: vec![Arc::new(receive::Receive { core, counters })],
    }
}
