//! The PCnet family: Am79C970A and Am79C973 (1022:2000). Linux's pcnet32 drives it, and so do other
//! LANCE drivers.
//!
//! ```text
//!   bus --> bus: windows, RAP --> table: CSRs, BCRs --> core: INIT, STRT, STOP, resets
//!                                                        |
//!             transmit: Ingress <-- ring: descriptors ---+--- ring --> receive: Egress <-- filter
//! ```
//!
//! Every register access has a [`Class`], as in VMware's paper on a virtual Lance (USENIX '01).
//! Half of the accesses are memory, most of the rest change nothing outside of the chip, and only a
//! transmit demand reaches the network; see [`Registers::accesses`].
//!
//! The subsystem id announces the shared status block ([`crate::csb`]). The driver writes the
//! block's address to CSR96 (bits 15 to 0) to CSR99, CSR96 last; S_RESET keeps it. OWN bits still
//! say which side owns a descriptor, and a transmit demand is the doorbell. The block says when
//! doorbells and interrupts are unnecessary. A driver leaves one descriptor of each ring unused, so
//! that positions are not ambiguous.
//!
//! The model differs from the chip in two ways. If only a frame's first descriptors are there, it
//! waits 2 ms for the rest before it reports an underflow. It polls the transmit ring more often
//! than the poll timer says while its worker is busy, and less often (down to twice a second) while
//! it finds nothing.
//!
//! The model lacks look-ahead packet processing (LAPPEN is a latch), collisions, retries, the
//! EEPROM and boundary-scan interfaces, Magic Packet, and interrupts by the PHY (CSR7 is a latch).

mod copy;
mod core;
mod device;
mod filter;
mod mii;
mod phy;
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

/// The model of a chip over its registers. All-zero registers are powered on first.
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
