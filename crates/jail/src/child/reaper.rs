//! Reaps children that nothing waits for.
//!
//! A supervisor inherits the orphans of its children: processes in namespaces of their own, what a
//! killed child has left, what a program has started. Each of them stays a zombie until it is
//! reaped. So one thread waits for all children, for as long as the process lives. It leaves those
//! alone that a [`Supervised`](super::Supervised) owns, which alone may end the life of its number.
#![allow(unsafe_code, reason = "rustix does not say which child has ended")]

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, WaitOptions};

/// How long an owner may take to reap its child before the reaper looks again.
const LOOK: Duration = Duration::from_millis(50);

static OWNED: Mutex<Owned> = Mutex::new(Owned { pids: BTreeSet::new(), changes: 0 });
/// Wakes the reaper when a child is added, or is reaped by its owner.
static CHANGED: Condvar = Condvar::new();
/// Whether the reaper's thread runs.
///
/// # Protocol
/// Set once, by the thread that starts the reaper, before it starts children that it drops. Nothing
/// else is read by it, so no order is needed.
static RUNS: AtomicBool = AtomicBool::new(false);

/// The children that have an owner.
pub(super) struct Owned {
    pids: BTreeSet<i32>,
    /// Counts the changes.
    changes: u64,
}

impl Owned {
    /// Adds a child; false if it has an owner.
    pub(super) fn add(&mut self, pid: Pid) -> bool {
        self.changed();
        self.pids.insert(pid.as_raw_pid())
    }

    pub(super) fn remove(&mut self, pid: Pid) {
        self.changed();
        self.pids.remove(&pid.as_raw_pid());
    }

    fn changed(&mut self) {
        self.changes += 1;
        CHANGED.notify_all();
    }
}

pub(super) fn lock() -> MutexGuard<'static, Owned> {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn runs() -> bool {
    RUNS.load(Relaxed)
}

/// True if a [`Supervised`](super::Supervised) of this process owns the child.
#[must_use]
pub fn is_owned(pid: Pid) -> bool {
    lock().pids.contains(&pid.as_raw_pid())
}

/// Starts the thread that reaps children without an owner. From then on start children with
/// [`Supervised::start`](super::Supervised::start) only: how others end is lost.
///
/// # Errors
/// The kernel refuses a thread.
pub fn reap_orphans() -> io::Result<()> {
    RUNS.store(true, Relaxed);
    let reap = || loop {
        turn();
    };
    std::thread::Builder::new().name("reaper".into()).spawn(reap).map(drop)
}

/// Waits for the end of a child, and reaps it unless it has an owner.
fn turn() {
    let seen = lock().changes;
    let Some(pid) = next_zombie() else {
        // There is no child. The next one is announced by its owner; orphans come from children.
        let owned = lock();
        let none = CHANGED.wait_while(owned, |owned| owned.changes == seen);
        return drop(none);
    };
    let owned = lock();
    if !owned.pids.contains(&pid.as_raw_pid()) {
        // It is a zombie, and only this thread reaps it.
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        return;
    }
    let seen = owned.changes;
    drop(CHANGED.wait_timeout_while(owned, LOOK, |owned| owned.changes == seen));
}

/// Waits until a child is a zombie, and leaves it one; `None` if there is no child.
fn next_zombie() -> Option<Pid> {
    loop {
        // SAFETY: zero is a valid value for each field.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: the structure lives during the call.
        if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut found, options) } == 0 {
            // SAFETY: the call has filled the structure in.
            return Pid::from_raw(unsafe { found.si_pid() });
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}
