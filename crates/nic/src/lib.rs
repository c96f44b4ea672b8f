//! Device models: what a guest's driver talks to, as ingress and egress of a switch port.
//!
//! Pure: no descriptors, no threads, no clock. Guest memory comes in as [`shmem::GuestMemory`], time as
//! an argument, kicks go out as effects.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod combine;
pub mod csb;
pub mod device;
pub mod e1000;
pub mod kind;
pub mod pci;
pub mod pcnet;
pub mod remote;
pub mod template;
pub mod virtio;
mod walk;

#[cfg(debug_assertions)]
pub use walk::{descriptors_read, most_descriptors};
