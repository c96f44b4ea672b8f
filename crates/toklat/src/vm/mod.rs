//! Virtual machines on a switch: QEMU, found and told what to do.
//!
//! [`Machine`] says what a virtual machine is, and becomes QEMU's command line; [`Qemu`] is the program that is installed;
//! [`Accelerator`] chooses between KVM and emulation; [`guest`] finds the test guest that `cargo xtask setup` makes.
//! [`Running`] is one that a program runs, [`Pair`] two that measure what is between them, and [`run`] is `toklat vm run`.

mod accelerator;
mod bridge;
pub mod guest;
mod machine;
mod pair;
mod qemu;
pub mod run;
mod running;

pub use self::accelerator::Accelerator;
pub use self::bridge::Bridge;
pub use self::machine::{Backend, Boot, Console, Machine, Model, Nic};
pub use self::pair::{Between, Pair, Tcp};
pub use self::qemu::{Qemu, QemuError, Version, quoted};
pub use self::running::{Running, time_of_process};
