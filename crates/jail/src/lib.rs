//! What confines a process, and how the descriptors that strangers send are closed.
//!
//! Every child of the supervisor passes through here: the data process, passt, and those to come.
#![allow(
    unsafe_code,
    reason = "socket options that rustix does not name, and a descriptor moved out of its owner"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod strangers;
