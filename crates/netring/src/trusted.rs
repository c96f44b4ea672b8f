//! Ports of trusted switches: what their owners send is forwarded in the owners' threads.
//!
//! This crate does not know how. A program [installs](install) what does (`toklat-inline`), before
//! it opens such a port.

use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use shmem::Mapping;

/// Forwards what a port's owner has flushed.
pub trait Forward: Debug + Send + Sync {
    /// Forwards all of it, in the calling thread.
    ///
    /// # Errors
    /// `ENXIO` when the port was removed.
    fn forward(&self) -> Result<(), Errno>;
}

/// A port of a trusted switch that this process has opened.
#[derive(Clone, Debug)]
pub struct Joining<'a> {
    /// The daemon's directory.
    pub directory: &'a Path,
    /// The port's name, with the switch's.
    pub name: &'a str,
    /// The port's number in its switch.
    pub port: u16,
    /// The inode of its memory file.
    pub file: u64,
    /// A mapping of the whole file.
    pub mapping: &'a Arc<Mapping>,
}

/// Makes this process a part of a port's switch. The error is in words, with a remedy.
pub type Join = fn(&Joining<'_>) -> Result<Arc<dyn Forward>, String>;

static JOIN: OnceLock<Join> = OnceLock::new();

/// Lets this process open ports of trusted switches. Later calls change nothing.
pub fn install(join: Join) {
    let _ = JOIN.set(join);
}

/// Makes this process a part of a port's switch.
///
/// # Errors
/// It cannot be one; in words, with a remedy.
pub fn join(joining: &Joining<'_>) -> Result<Arc<dyn Forward>, String> {
    let remedy = "this program cannot forward; open a port of a switch that is not trusted";
    let join = JOIN.get().ok_or_else(|| remedy.to_owned());
    join.and_then(|join| join(joining))
}
