//! The learning switch: table, policies, two-pass batched forwarding, statistics.
//!
//! Pure: no thread, no file descriptor, no clock. Time comes in as [`port::Nanos`].
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod policy;

pub use policy::{Policy, VlanMode};
