//! Device models: what a guest's driver talks to, as ingress and egress of a switch port.
//!
//! Pure: no descriptors, no threads, no clock. Guest memory comes in as [`shmem::GuestMemory`], time as
//! an argument, kicks go out as effects.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(not(loom))]
mod combine;
pub mod csb;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
pub mod driver;
#[cfg(not(loom))]
pub mod e1000;
#[cfg(not(loom))]
pub mod kind;
#[cfg(not(loom))]
pub mod pci;
#[cfg(not(loom))]
pub mod pcnet;
#[cfg(not(loom))]
pub mod remote;
#[cfg(not(loom))]
pub mod template;
#[cfg(not(loom))]
pub mod virtio;
#[cfg(not(loom))]
mod walk;

#[cfg(all(not(loom), debug_assertions))]
pub use walk::{descriptors_read, most_descriptors};
