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
pub mod layout;
