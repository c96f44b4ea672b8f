//! Devices that a process drives itself.
//!
//! ```text
//!                      +--> vfio::Card: a card of this machine, by the kernel's VFIO
//!   driver --> Regs ---+--> vfio_user::Registers: a device of another process, by vfio-user
//!     ^                +--> Direct: a model in this process
//!     |
//!   Nic: the drivers by the card's identity        Bridge: a driver and a ring port trade buffers
//!                                                  Netmap: descriptors point at netmap's buffers
//!   virtio's queues ------> vhost_user::FrontEnd: a device of another process, by vhost-user
//! ```
//!
//! None of it runs in the confined process: `dataplane` does not depend on it.
#![allow(unsafe_code, reason = "VFIO is asked by ioctls, and the kernel's structures are its own")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod bridge;
mod direct;
mod netmap;
mod nic;
pub mod vfio;
pub mod vfio_user;
pub mod vhost_user;

pub use self::bridge::{Bridge, Buffers, Counts};
pub use self::direct::Direct;
pub use self::netmap::{BUFFER, Netmap, Turn};
pub use self::nic::{Given, Model, Nic, NicError};
