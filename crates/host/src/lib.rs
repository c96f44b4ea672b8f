//! This host, as the daemon and the tools use it.
//!
//! - [`tap`]: tap interfaces and network namespaces.
//! - [`part`]: what the packaged service does not allow until it is switched on.
//! - [`library`]: where the library of `toklat run` is.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod library;
pub mod part;
pub mod tap;
