//! Regions and rings in netmap's memory layout, and the client library that opens them.
//!
//! A region is one memory file that a client makes, seals and lays out, and lends to a switch:
//!
//! ```text
//!   0            [ interfaces | rings | buffers ]        netmap's layout, to the byte (region size R)
//!   R            [ control blocks, one per ring ]        the transport's cursors: see [`layout::Control`]
//! ```
//!
//! The client owns the layout; the switch computes every address from the [`layout::Geometry`] and the
//! [`layout::RingSpec`] it was told and checked, and believes nothing that stands in the memory.
#![allow(unsafe_code, reason = "structures in shared memory are marked Shareable here")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(target_endian = "big")]
compile_error!("a slot is read as one little-endian word");

pub mod attach;
mod doorbell;
mod hostile;
pub mod layout;
mod open;
mod pipe;
mod port;
mod queue;
mod receive;
mod region;
mod send;

#[doc(hidden)]
pub use hostile::drive_hostile_pipe;
pub use open::{Monitor, Open, OpenError};
pub use pipe::{PARTS_BYTES, PartsError, PipeConfig, pipe};
pub use port::{Interest, Port, PortError, Queue, Readiness, Rings};
pub use receive::{Incoming, Received, ReceivedSlot};
pub use region::{Buffer, Region, RegionConfig, RegionError};
pub use send::{Lent, OtherRegion, Outgoing, SendSlot};
pub use shmem::Pages;
