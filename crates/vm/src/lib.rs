//! Virtual machines: finds QEMU and drives it.
//!
//! [`Machine`] describes a virtual machine and becomes QEMU's command line. [`Qemu`] is the program
//! that is installed, or that `cargo xtask setup` built, and [`Qmp`] is its monitor.
//! [`Accelerator`] chooses between KVM and emulation. [`Running`] is a machine that a program runs.
//! [`guest`] finds the test guest that `cargo xtask setup` makes.

mod accelerator;
pub mod guest;
pub mod inside;
mod machine;
mod qemu;
mod qmp;
mod running;

pub use self::accelerator::Accelerator;
pub use self::machine::{Backend, Boot, Console, Machine, Model, Nic, Plug};
pub use self::qemu::{Qemu, QemuError, Version, quoted};
pub use self::qmp::Qmp;
pub use self::running::{Running, time_of_process};

/// Paths where `cargo xtask setup` may have put `name`: in this program's build directory, or in
/// `target` here.
fn made_by_setup(name: &str) -> impl Iterator<Item = std::path::PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside: Vec<_> = program.ancestors().skip(1).take(3).map(|dir| dir.join(name)).collect();
    beside.into_iter().chain([std::path::Path::new("target").join(name)])
}
