//! The parts of an Ethernet frame: addresses, VLAN tags, headers, checksums and offload requests.
//!
//! Safe and pure: no I/O, no shared memory, no clock. Callers parse a private copy of a frame's
//! head.
//!
//! A header is a struct with the layout of its standard. `parse` checks bytes and borrows the
//! header from them, `new` makes one, and `zerocopy::IntoBytes` writes it. [`Layers`] parses a
//! whole frame.
//!
//! `no_std`, with `alloc`: drivers and library operating systems use it without an operating
//! system.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

extern crate alloc;

mod address;
pub mod bpf;
pub mod checksum;
mod ecn;
mod encapsulation;
mod ethernet;
mod facts;
mod ip;
mod layers;
mod merge;
mod mss;
mod neighbour;
mod offload;
mod probe;
mod protocol;
mod reset;
mod segment;
mod spoof;
mod too_big;
mod transport;

#[cfg(feature = "schemars")]
mod schema;

pub use address::{Mac, ParseAddressError, VlanId};
pub use ecn::{Ecn, ecn_of, leave_tunnel, mark_congestion};
pub use encapsulation::{Encapsulation, NoFrame, NoVni, TUNNEL_HEADER, Vni};
pub use ethernet::{Arp, ArpOperation, EtherType, Ethernet, Tag, write_announcement};
pub use facts::{Facts, Fragment, Hidden, is_tag};
pub use ip::{Ipv4, Ipv6};
pub use layers::{Layers, Network, Transport, flow_hash};
pub use merge::Run;
pub use mss::clamp_mss;
pub use neighbour::{Discovery, discovery, neighbour_answer};
pub use offload::{MAX_HEADERS, MAX_SEGMENTS, OFFLOAD_HEADER, Offload, OffloadError, OffloadSet};
pub use probe::{IMIX, MIN_FRAME, Probe, ProbeError, UdpFrame};
pub use protocol::Protocol;
pub use reset::tcp_reset;
pub use segment::Segments;
pub use spoof::{Identity, Spoof};
pub use too_big::packet_too_big;
pub use transport::{Icmp, Tcp, Udp, tcp_flags};

/// Bytes of an Ethernet header: destination, source, EtherType (IEEE 802.3, 3.1.1).
pub const ETHERNET_HEADER: usize = 14;
/// Bytes of an 802.1Q tag (IEEE 802.1Q, 9.5).
pub const VLAN_TAG: usize = 4;
