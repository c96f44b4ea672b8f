//! Measurements: `toklat bench`, and test guests that measure the path between them.
//!
//! This crate keeps them out of the daemon's crate. It starts daemons by the command line, as users
//! do.

pub mod bench;
mod bridge;
pub mod hosts;
mod pair;

pub use self::bridge::Bridge;
pub use self::pair::{Between, Pair, Tcp};
