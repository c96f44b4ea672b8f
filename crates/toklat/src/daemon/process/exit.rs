//! Detects that a data process has ended.
//!
//! The kernel reports the end only after the last thread has ended. A thread that closes an
//! untrusted user's descriptor may run as long as that user likes, even after SIGKILL, and it keeps
//! all descriptors of its process open ([`jail::strangers`]). Such threads touch nothing that a
//! successor uses, so the successor waits only for the other threads.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jail::child::Supervised;
use jail::strangers::CLOSER_NAME;
use rustix::process::Pid;

use super::super::children;

/// How often the threads of a living process are checked.
const LOOK: Duration = Duration::from_millis(250);

/// A process whose end is awaited. It is an orphan that this process has inherited, or another's
/// child, so the daemon's reaper reaps it, or another process.
#[derive(Debug)]
pub struct Exit(Supervised);

impl Exit {
    /// Watches a process that is known to live.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Supervised::found(pid).map(Self)
    }

    /// Kills the process at once.
    pub fn kill(&self) {
        self.0.kill();
    }

    /// Waits until only threads that close descriptors are left. After it was cancelled, it may be
    /// called again.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn wait(&self) -> io::Result<()> {
        let threads = PathBuf::from(format!("/proc/{}/task", self.0.pid()));
        loop {
            if let Ok(told) = tokio::time::timeout(LOOK, children::gone(&self.0)).await {
                return told;
            }
            if !are_at_work(&threads) {
                return Ok(());
            }
        }
    }
}

/// Whether one of a process's threads runs and does not just close descriptors. If /proc hides the
/// threads, the answer is true.
fn are_at_work(threads: &Path) -> bool {
    let Ok(threads) = std::fs::read_dir(threads) else { return true };
    let stat = |thread: io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()
    };
    threads.filter_map(stat).any(|stat| works(&stat))
}

/// What `/proc/PID/task/TID/stat` says: `7 (name) S ...`; proc(5).
fn works(stat: &str) -> bool {
    let Some((head, tail)) = stat.rsplit_once(')') else { return false };
    let has_ended = matches!(tail.trim_start().as_bytes().first(), None | Some(b'Z' | b'X'));
    let closes = head.split_once('(').is_some_and(|(_, name)| name == CLOSER_NAME);
    !has_ended && !closes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_ended_or_close_descriptors_are_not_at_work() {
        assert!(works("7 (worker) R 1 7"));
        assert!(works("7 (a) closer) D 1 7"));
        assert!(!works("7 (closer) D 1 7"));
        assert!(!works("7 (toklat) Z 1 7"));
        assert!(!works("7 (toklat) X 1 7"));
        assert!(!works(""));
    }

    #[tokio::test]
    async fn a_process_that_is_killed_has_ended() {
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let exit = Exit::of(Pid::from_child(&child)).unwrap();
        let wait = exit.wait();
        let early = tokio::time::timeout(Duration::from_millis(20), exit.wait()).await;
        assert!(early.is_err(), "it lives");
        exit.kill();
        wait.await.unwrap();
        child.wait_with_output().unwrap();
    }
}
