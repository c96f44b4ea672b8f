//! Workers, poll sets and every kind of port; the data process of a switch.
#![allow(
    unsafe_code,
    reason = "state structures are marked Shareable, and workers vouch for mappings"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod config;
pub mod control;
pub mod state;
