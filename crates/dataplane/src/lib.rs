//! Workers, poll sets and every kind of port; the data process of a switch.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod config;
pub mod control;
