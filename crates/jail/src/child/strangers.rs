//! Children that nothing has asked for: what a confined program has started and left behind.

use std::collections::HashSet;

use rustix::process::Pid;

use super::{Supervised, is_owned};

/// The children that a process has beside those that it knows.
#[derive(Debug)]
pub struct Strangers {
    /// The children that were there before: a shell may have started them, and then run this
    /// program in its own process.
    known: HashSet<Pid>,
}

impl Strangers {
    /// All children that this process gets from now on are strangers until a [`Supervised`] owns
    /// them.
    #[must_use]
    pub fn from_now_on() -> Self {
        Self { known: children().into_iter().collect() }
    }

    /// Kills all strangers: processes that a program has made beside what it was told, and orphans
    /// of ended children, if this process inherits them. The [reaper](super::reap_orphans) reaps
    /// them. Returns how many there were.
    ///
    /// Call it only while no child is about to get an owner.
    pub fn kill(&self) -> usize {
        let all = children().into_iter();
        let strangers = all.filter(|pid| !self.known.contains(pid) && !is_owned(*pid));
        // The number may be another process's by now, if the reaper was faster. It then is no
        // child, and cannot be supervised as one.
        let killed = strangers.filter_map(|pid| Supervised::child(pid).ok()).filter(|child| {
            child.kill();
            matches!(child.ended(), Ok(None))
        });
        killed.count()
    }
}

/// The children of all threads of this process; none if the kernel does not list them.
fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let list = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
    };
    let text = threads.map(list).collect::<Vec<_>>().join(" ");
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
