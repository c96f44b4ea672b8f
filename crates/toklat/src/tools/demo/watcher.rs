//! The process that cleans up after a demo, even if the demo was killed.
//!
//! Its standard input is a pipe that only the demo holds. The pipe closes when the demo ends, even
//! by SIGKILL, and the kernel then signals the demo's processes. The watcher waits for the daemon,
//! then removes the directory and the namespaces.

use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::DIRECTORY;
use jail::parent_death;

/// Time limit for the daemon to end after its signal.
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
    /// Starts it.
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

    /// Tells the watcher which daemon to wait for.
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
    let mut stdin = std::io::stdin().lock();
    let mut line = String::new();
    stdin.read_line(&mut line)?;
    // The pidfd is opened while the parent lives, so it is the right process.
    let daemon = line.trim().parse().ok().and_then(Pid::from_raw);
    let daemon = daemon.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    stdin.read_to_end(&mut Vec::new())?;
    if let Some(daemon) = daemon {
        let mut ended = [PollFd::new(&daemon, PollFlags::IN)];
        if !poll(&mut ended, Some(&END)).is_ok_and(|ended| ended > 0) {
            let _ = pidfd_send_signal(&daemon, Signal::KILL);
        }
    }
    remove_namespaces(&args.namespaces);
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("Cannot remove {}", directory.display())),
    }
}

/// Removes network namespaces whose names have this prefix.
fn remove_namespaces(start: &str) {
    let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in all.map(|entry| entry.file_name()) {
        if name.to_string_lossy().starts_with(start) {
            let _ = Command::new("ip").args(["netns", "del"]).arg(name).output();
        }
    }
}
