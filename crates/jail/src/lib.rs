//! Confines processes, and closes the descriptors that strangers send.
//!
//! All children of the supervisor pass through here: the data process, passt, and others. A child
//! describes its confinement in a [`Jail`], which is data, and [enters](Jail::enter) it before it
//! starts a thread. It learns which [`Walls`] stand. A wall that the kernel or a container refuses
//! is left out, and the reason is kept. How children are started, and what they inherit, is in
//! [`child`]; programs that take part in their confinement live in a [`cell`].
#![allow(
    unsafe_code,
    reason = "socket options that rustix does not name, and a descriptor moved out of its owner"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(feature = "confine")]
pub mod calls;
#[cfg(feature = "confine")]
pub mod cell;
#[cfg(feature = "confine")]
pub mod cgroup;
#[cfg(feature = "confine")]
pub mod child;
#[cfg(feature = "confine")]
mod enter;
#[cfg(feature = "confine")]
mod fork;
#[cfg(feature = "confine")]
pub mod landlock;
#[cfg(feature = "confine")]
mod namespaces;
#[cfg(feature = "confine")]
pub mod parent_death;
#[cfg(feature = "confine")]
pub mod peer;
#[cfg(feature = "confine")]
mod privileges;
#[cfg(feature = "confine")]
mod root;
#[cfg(feature = "confine")]
pub mod strangers;
#[cfg(feature = "confine")]
pub mod user;
mod wall;

#[cfg(feature = "confine")]
pub use self::enter::{Inside, Jail, JailError};
#[cfg(feature = "confine")]
pub use self::privileges::holds;
pub use self::wall::{Refused, Wall, Walls};
