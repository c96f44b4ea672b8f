//! Virtual machines on a switch: QEMU, found and told what to do.
//!
//! [`Machine`] says what a virtual machine is, and becomes QEMU's command line; [`Qemu`] is the program that
//! is installed, or that `cargo xtask setup` made;
//! [`Accelerator`] chooses between KVM and emulation; [`guest`] finds the test guest that `cargo xtask setup` makes.
//! [`Running`] is one that a program runs, [`Pair`] two that measure what is between them, and [`run`] is `toklat vm run`.

mod accelerator;
mod bridge;
mod given;
pub mod guest;
mod machine;
mod pair;
mod qemu;
mod qmp;
pub mod run;
mod running;

pub use self::accelerator::Accelerator;
pub use self::bridge::Bridge;
pub use self::given::Given;
pub use self::machine::{Backend, Boot, Console, Machine, Model, Nic, Plug};
pub use self::pair::{Between, Pair, Tcp};
pub use self::qemu::{Qemu, QemuError, Version, quoted};
pub use self::qmp::Qmp;
pub use self::running::{Running, time_of_process};

/// Where what `cargo xtask setup` makes may be: `name` in the build directory that this program is in, or in `target` here.
fn made_by_setup(name: &str) -> impl Iterator<Item = std::path::PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside: Vec<_> = program.ancestors().skip(1).take(3).map(|dir| dir.join(name)).collect();
    beside.into_iter().chain([std::path::Path::new("target").join(name)])
}
