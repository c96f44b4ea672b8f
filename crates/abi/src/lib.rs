//! What a NIC and its driver agree on: the layout of memory that both use, and their messages.
//!
//! ```text
//!   nic (models)  --+                 +--  driver, card
//!                   +-->   abi   <----+
//!   dataplane     --+
//! ```
//!
//! - [`csb`]: the shared status block, for any NIC with rings.
//! - [`virtio`]: descriptors, positions and events of virtio's queues, and its features.
//! - [`vfio_user`]: the messages of a bus between processes.
//! - [`vhost_user`]: the numbers of the protocol by which a front end sets up virtio's queues.
//! - [`e1000`]: the members of the family.
//! - [`nic`]: the names of all models that a port can emulate.
//!
//! `no_std`. This crate only describes the interface. Each side's behaviour is in its own crate.
#![cfg_attr(not(any(test, loom)), no_std)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

extern crate alloc;

pub mod csb;
#[cfg(not(loom))]
pub mod e1000;
#[cfg(not(loom))]
pub mod nic;
#[cfg(not(loom))]
pub mod vfio_user;
#[cfg(not(loom))]
pub mod vhost_user;
#[cfg(not(loom))]
pub mod virtio;
