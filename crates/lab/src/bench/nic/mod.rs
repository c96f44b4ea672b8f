//! Emulated NICs: a model alone, and what traps cost it and take away from it.
//!
//! ```text
//!   core 0: driver, which generates or receives --Trapping--> bus --> core 1: model and its worker
//!        <-------------------------- interrupts -------------------------
//! ```
//!
//! Guests' sides ([`guest`]) are written for any registers: those of a model in this process, and
//! those of one behind a socket. [`linux`] is another matter: whole Linux guests in QEMU.

mod bus;
mod cards;
pub mod chart;
pub mod guest;
pub mod linux;
pub mod linux_rows;
mod machine;
mod model;
mod one_access;
mod pcnet;
pub mod rows;
mod wire;
