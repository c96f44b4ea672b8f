//! The settings that every switch and every port has, whatever its kind.
//!
//! The topology file, the control API, and messages to a data process consist of the same types.
//! The crate `topology` adds the kinds of ports.

pub mod bytes;
mod policy;
mod switch;

pub use self::bytes::{NoBytes, parse_bytes};
pub use self::policy::{Interrupts, Policy};
pub use self::switch::{Idle, SwitchConfig, WorkerConfig};

/// A port's number in its switch: its place in every table of it.
pub type PortId = u16;
