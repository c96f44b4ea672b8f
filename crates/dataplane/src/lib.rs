//! Workers, poll sets and every kind of port; the data process of a switch.
#![allow(
    unsafe_code,
    reason = "state structures are marked Shareable, and workers vouch for mappings"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod attach;
pub mod config;
pub mod control;
pub mod log;
pub mod process;
pub mod sandbox;
mod suspicion;
mod worker;

pub use config::{Policy, PortConfig, PortId, RingAttach, SwitchConfig};
pub use turn::attach::AttachError;
pub use turn::{board, state, user};
