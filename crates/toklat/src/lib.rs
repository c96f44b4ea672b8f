//! toklat: the daemon, its command line, the tools and the benchmarks in one binary.

pub mod cli;
pub mod daemon;
mod expression;
mod guests;
pub mod integration;
pub mod tools;

pub use api;
pub use topology::users;
