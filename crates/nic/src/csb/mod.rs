//! The device's end of the shared status block, which [`abi::csb`] specifies.

mod device;
mod host;

pub use abi::csb::*;

pub use device::{Block, MapError, QueueHost, Spin};
pub use host::{Announced, Host};
