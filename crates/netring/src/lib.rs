//! Regions and rings in netmap's memory layout, and the client library that opens them.
//!
//! A region is one memory file that a client makes, seals and lays out, and lends to a switch:
//!
//! ```text
//!   0            [ interfaces | rings | buffers ]        netmap's layout, to the byte (region size R)
//!   R            [ control blocks, one per ring ]        the transport's cursors: see [`layout::Control`]
//! ```
//!
//! The client owns the layout. The switch computes all addresses from the [`layout::Geometry`] and
//! the [`layout::RingSpec`] that it was told and has validated, and trusts nothing in the memory.
//!
//! ```no_run
//! use netring::{Interest, Port};
//!
//! let mut port = Port::open("vale0:p1")?;
//! let mut out = port.send(64); // up to 64 free slots, lent
//! out.push(b"a frame, copied in");
//! if let Some(mut slot) = out.slot() {
//!     slot.window().write(0, [0xff_u8; 6]); // or written in place
//!     slot.set_len(60);
//! }
//! port.flush()?; // published at once; a sleeping switch is kicked
//! port.wait(Interest::READ, None)?;
//! for frame in port.receive(64) {
//!     println!("{} bytes", frame.len()); // lent until the next flush
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | netmap's structures, and the control block of a ring |
//! | [`attach`] | messages between a client and the daemon |
//! | `region` | [`Region`]: which port has which interface, ring and buffer |
//! | `queue` | one ring: positions, publishing, checks of what the other side wrote |
//! | `send`, `receive` | [`Outgoing`] and [`Incoming`]: slots and frames, lent |
//! | `port`, `doorbell` | [`Port`]: flush, wait, reset; how each side is woken |
//! | `open`, `pipe` | how ports and pipes are opened, and passed to other processes |
//! | `ask` | requests to the daemon, and its replies |
//! | [`trusted`], `members` | ports whose owners forward themselves, and what they ask for |
#![allow(unsafe_code, reason = "structures in shared memory are marked Shareable here")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(target_endian = "big")]
compile_error!("a slot is read as one little-endian word");

mod ask;
pub mod attach;
mod clock;
mod doorbell;
#[doc(hidden)]
pub mod exchange;
mod fault;
mod format;
mod hostile;
pub mod layout;
mod members;
mod open;
mod pipe;
mod port;
mod queue;
mod receive;
mod region;
mod send;
pub mod trusted;

pub use ask::OpenError;
pub use clock::FrameClock;
#[doc(hidden)]
pub use hostile::drive_hostile_pipe;
pub use members::{Shape, ask_member, ask_state};
pub use open::{Monitor, Open, find_daemon, ports};
pub use pipe::{PARTS_BYTES, PartsError, PipeConfig, pipe};
pub use port::{Interest, Port, PortError, QueuePair, Readiness, Rings};
pub use receive::{Incoming, Received, ReceivedSlot};
pub use region::{Buffer, Region, RegionConfig, RegionError};
pub use send::{Lent, OtherRegion, Outgoing, SendSlot};
pub use shmem::Pages;
