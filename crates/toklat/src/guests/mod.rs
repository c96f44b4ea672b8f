//! Guests: programs linked with the library OS (`guest::Host`), each in a process and a cell of its
//! own.
//!
//! ```text
//!   manager (toklat guest run)             a guest's process
//!     opens the port at the daemon
//!     clone: user, namespaces, limits  -->   execs the program, which loads its files
//!     sends memory and token           -->   raises the other walls, then serves
//!     reads reports, log, pidfd        <--   a forbidden call: SIGSYS, a report, the end
//! ```
//!
//! A guest never talks to the daemon. The manager keeps none of a port's descriptors, so the port
//! ends with its guest. Guests of a kind are copies of one process that has loaded the program.
//!
//! The manager is one thread. A guest costs it bounded work: a turn reads a few reports and one
//! piece of the log, and a guest that reports too much is killed.

mod groups;
pub mod kept;
mod kind;
mod log;
pub mod manager;
mod process;

pub mod talk;
mod unit;

pub use ::guest::apps::programs;
pub use log::printable;
pub use unit::{GuestInfo, State};

/// The log of a guest of this user, if there is one.
#[must_use]
pub fn logs(directory: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    let homes = [Some(directory.join("guests")), kind::fallback()];
    let paths = homes.into_iter().flatten().map(|home| log::path(&home, name));
    paths.into_iter().find(|path| path.is_file())
}

/// What a guest of this user has printed, without characters that control a terminal.
///
/// # Errors
/// There is a log, but it cannot be read.
pub fn printed(directory: &std::path::Path, name: &str) -> std::io::Result<String> {
    logs(directory, name).map_or_else(|| Ok(String::new()), |path| log::read(&path))
}
