//! What an Ethernet frame is made of: addresses, VLAN tags, headers, checksums and offload requests.
//!
//! Safe and pure: no I/O, no shared memory, no clock. Callers parse the private copy of a frame's head.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod address;
mod offload;

pub use address::{Mac, ParseAddressError, VlanId};
pub use offload::Offload;

/// Bytes of an Ethernet header: destination, source, EtherType (IEEE 802.3, 3.1.1).
pub const ETHERNET_HEADER: usize = 14;
/// Bytes of an 802.1Q tag (IEEE 802.1Q, 9.5).
pub const VLAN_TAG: usize = 4;
