//! Workers, poll sets and every kind of port; the data process of a switch.
#![allow(
    unsafe_code,
    reason = "state structures are marked Shareable, and workers vouch for mappings"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod attach;
pub mod config;
pub mod control;
mod inline;
pub mod log;
mod port_link;
pub mod process;
pub mod sandbox;
mod serve;
pub mod state;
mod suspicion;
pub mod user;
mod worker;

pub use attach::AttachError;
pub use config::{Policy, PortConfig, PortId, RingAttach, SwitchConfig};
pub use inline::Inline;

use std::os::fd::BorrowedFd;

/// Signals an eventfd. A signal that is pending already has the same effect.
pub(crate) fn signal(eventfd: BorrowedFd<'_>) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Wakes the thread that waits at the other end of a token. A byte that is pending already has the
/// same effect.
pub(crate) fn kick(token: BorrowedFd<'_>) {
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    let _ = rustix::net::send(token, &[1], flags);
}
