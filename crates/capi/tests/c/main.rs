//! The library as C programs use it: installed by `cargo xtask capi`, found by pkg-config, against
//! a real daemon.
//!
//! Objective: header, map and library agree; every rule of toklat.h holds; the examples work as
//! described, even if the data process or the daemon dies.

mod interface;
mod kit;
mod programs;
