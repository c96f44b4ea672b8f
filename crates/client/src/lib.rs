//! The control API between the daemon and its commands, and what all commands share.
//!
//! [`api`] is the control API: its types, routes and errors. [`Client`] sends requests to the
//! daemon. [`Global`] holds the options of every command. [`name`], [`units`] and [`table`] parse
//! and print names, numbers and tables. [`library`] finds the library of `toklat run`. [`part`]
//! names what the packaged service does not allow until it is switched on.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod api;
mod client;
mod global;
pub mod library;
pub mod name;
pub mod part;
pub mod table;
pub mod tap;
pub mod units;

pub use self::client::{Client, ClientError};
pub use self::global::{Global, print_json};
pub use topology::users;

use std::borrow::Cow;

use anyhow::Context as _;
use rustix::thread::CpuSet;

/// The profile that this program was built with: `dist`, `release`, or `debug` for tests.
pub const PROFILE: &str = env!("TOKLAT_PROFILE");
/// The version and the profile, as in `0.1.0 (release)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("TOKLAT_PROFILE"), ")");

/// What a command returns; the exit status depends on it.
pub type Result<T = (), E = anyhow::Error> = std::result::Result<T, E>;

/// A usage error that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub Cow<'static, str>);

impl UsageError {
    /// Makes a usage error with this text.
    pub fn new(words: impl Into<Cow<'static, str>>) -> Self {
        Self(words.into())
    }
}

/// Pins the thread to one CPU.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    anyhow::ensure!(cpu < CpuSet::MAX_CPU, "There is no CPU {cpu}");
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| {
        format!("Cannot run on CPU {cpu}; see /proc/self/status for those allowed")
    })
}
