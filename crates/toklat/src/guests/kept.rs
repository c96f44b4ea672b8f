//! Guests of the topology: the daemon starts a manager for each entry, and the manager outlives it.
//!
//! The entry comes on the manager's standard input. The first line on its standard output is
//! [`ADDED`], or why the entry cannot be. From then on the manager is asked over its socket.

use std::io::{Read, Write};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use topology::GuestSpec;

/// The manager's first line if it has taken the entry.
pub const ADDED: &str = "added";
/// Bytes of the longest entry.
const MAX_ENTRY: u64 = 1 << 20;

/// An entry of the topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// What the entry runs.
    pub spec: GuestSpec,
}

impl Kept {
    /// Reads the entry from standard input.
    ///
    /// # Errors
    /// There is no valid entry.
    pub fn read() -> anyhow::Result<Self> {
        let mut text = Vec::new();
        std::io::stdin().take(MAX_ENTRY).read_to_end(&mut text)?;
        serde_json::from_slice(&text).context("The daemon's entry for a guest")
    }
}

/// Says a line to the daemon.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A daemon that has ended meanwhile finds this manager by its socket.
    let _ = writeln!(out, "{}", line.replace('\n', " ")).and_then(|()| out.flush());
}
