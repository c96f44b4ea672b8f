//! A library OS
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod counters;
mod input;
mod link;
mod neighbours;
mod nic;
mod stack;
mod udp;

pub use counters::{Counters, Drop};
pub use nic::{BATCH, Nic, RingNic};
pub use stack::{Config, Stack, Usage};
pub use tcp::{self, Bytes, CloseReason, Nanos};
pub use udp::{UdpError, UdpId};
