//! The client of the control API, and what all commands print.
//!
//! [`Client`] sends the requests of the crate `api` to a daemon. [`Global`] says where the daemon
//! is and how to print. [`name`], [`units`] and [`table`] parse and print names, numbers and
//! tables.
//!
//! ```no_run
//! use toklat_client::{Client, Global};
//!
//! let mut client = Client::connect(&Global::default())?;
//! let switches: Vec<api::SwitchInfo> = client.get("/v1/switches")?;
//! # Ok::<_, toklat_client::ClientError>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod client;
mod global;
pub mod name;
mod stream;
pub mod table;

pub use api::units;

pub use self::client::{Client, ClientError};
pub use self::global::{Global, print_json};

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
