//! What is measured: `toklat bench`, and test guests that measure what is between them.
//!
//! A measurement's own pieces stand here, out of the daemon's crate. It starts daemons as anybody
//! does: by this program's command line.

pub mod bench;
mod bridge;
mod pair;

pub use self::bridge::Bridge;
pub use self::pair::{Between, Pair, Tcp};
