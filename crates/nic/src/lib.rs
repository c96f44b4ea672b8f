//! Device models: what a guest's driver talks to, as ingress and egress of a switch port.
//!
//! This crate opens no file descriptors, starts no threads and reads no clock. Guest memory comes
//! in as [`shmem::GuestMemory`], time as an argument, and kicks go out as effects.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod csb;
pub mod e1000;
pub mod model;
pub mod pcnet;
pub mod template;
pub mod virtio;

pub(crate) use model::{combine, walk};
pub use model::{device, kind, pci, remote};

#[cfg(debug_assertions)]
pub use model::walk::{descriptors_read, most_descriptors};
