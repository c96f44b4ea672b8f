//! A port's turn, and what it needs. The workers of a data process and inline switches share it.
//!
//! ```text
//!   serve      a turn: gather, forward, complete, settle        attach   what kinds of ports provide; rings
//!   state      counters and cursors, in memory that outlives    user     who pays for calls and touches
//!   port_link  what lies between a port and its switch          addresses  those that a port was given
//!   board      which process is a trusted switch, and its ports
//! ```
#![allow(
    unsafe_code,
    reason = "state structures are marked Shareable, and switches vouch for mappings"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod addresses;
pub mod attach;
pub mod board;
pub mod port_link;
pub mod serve;
pub mod state;
pub mod user;

pub use self::addresses::set_addresses;

use std::os::fd::BorrowedFd;

use port::Nanos;

/// The monotonic clock.
#[must_use]
pub fn clock() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * Nanos::SECOND + time.tv_nsec as u64)
}

/// Signals an eventfd. A signal that is pending already has the same effect.
pub fn signal(eventfd: BorrowedFd<'_>) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Wakes the thread that waits at the other end of a token. A byte that is pending already has the
/// same effect.
fn kick(token: BorrowedFd<'_>) {
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    let _ = rustix::net::send(token, &[1], flags);
}
