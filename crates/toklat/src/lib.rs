//! toklat: the daemon, its command line, the tools and the benchmarks, in one binary.

pub mod api;
pub mod bench;
pub mod cli;
pub mod daemon;
pub mod integration;
mod parent_death;
pub mod tools;
pub mod users;
pub mod vm;
