//! Emulated NICs: the model alone, and the effect of traps on it.
//!
//! ```text
//!   core 0: driver, which generates or receives --Trapping--> bus --> core 1: model and its worker
//!        <-------------------------- interrupts -------------------------
//! ```
//!
//! The guest's side ([`guest`]) works with any registers: of a model in this process, or of one
//! behind a socket. [`linux`] runs whole Linux guests in QEMU instead.

mod bus;
mod cards;
pub mod chart;
pub mod guest;
pub mod linux;
pub mod linux_rows;
mod machine;
mod model;
pub mod netmap;
mod one_access;
mod pcnet;
pub mod rows;
mod wire;
