//! toklat: the daemon, its command line and the tools, in one binary with the benchmarks.

pub mod cli;
pub mod daemon;
pub mod integration;
pub mod tools;

pub use control::api;
pub use topology::users;
