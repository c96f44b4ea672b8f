//! The process that cleans up after a demo, even if the demo was killed.
//!
//! Its standard input is a pipe that only the demo holds. The pipe closes when the demo ends, even
//! by SIGKILL, and the kernel then signals the demo's processes. The watcher waits for the daemons,
//! then kills what is left in the namespaces, and removes them and the directory.

use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use lab::hosts::namespaces;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::DIRECTORY;
use jail::parent_death;

/// Time limit for the daemons to end after its signal.
const END: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Options of `toklat demo-watch`.
#[derive(Debug, clap::Args)]
pub struct WatchArgs {
    /// The demo's directory
    directory: PathBuf,
    /// How the names of the demo's network namespaces begin
    namespaces: String,
}

/// The demo's handle of the process. Dropping it waits for the clean-up.
#[derive(Debug)]
pub struct Watcher(Child);

impl Watcher {
    /// Starts the watcher of a demo.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(directory: &Path, namespaces: &str) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("Cannot tell where this program is")?;
        let mut command = Command::new(program);
        command.arg("demo-watch").arg(directory).arg(namespaces);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = parent_death::in_its_own_session(&mut command).spawn();
        child.map(Self).context("Cannot start the process that cleans up")
    }

    /// Tells the watcher the process id of a daemon for which it must wait.
    ///
    /// # Errors
    /// The watcher is gone.
    pub fn watch(&mut self, daemon: u32) -> anyhow::Result<()> {
        let stdin = self.0.stdin.as_mut().context("It has a pipe")?;
        writeln!(stdin, "{daemon}").context("The process that cleans up is gone")
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Waits until the demo is gone, then cleans up.
///
/// # Errors
/// The directory is not a demo's, or cannot be removed.
pub fn run(args: &WatchArgs) -> anyhow::Result<()> {
    let directory = &args.directory;
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    ensure!(name.starts_with(DIRECTORY), "{} is not a demo's directory", directory.display());
    let mut daemons: Vec<OwnedFd> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        // The pidfd is opened while the parent lives, so it is the right process.
        let pid = line?.trim().parse().ok().and_then(Pid::from_raw);
        daemons.extend(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()));
    }
    for daemon in &daemons {
        let mut ended = [PollFd::new(daemon, PollFlags::IN)];
        if !poll(&mut ended, Some(&END)).is_ok_and(|ended| ended > 0) {
            let _ = pidfd_send_signal(daemon, Signal::KILL);
        }
    }
    namespaces::remove_all(&args.namespaces);
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("Cannot remove {}", directory.display())),
    }
}
