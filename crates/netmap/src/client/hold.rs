//! Words in shared memory that say which process holds something; 0 if none does.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::process;

/// A word that this process holds, until it is dropped.
pub(super) struct Held<'a>(&'a AtomicU32);

impl<'a> Held<'a> {
    /// Takes a word, as [`take`] does.
    ///
    /// # Errors
    /// The number of the process that holds it.
    pub(super) fn of(word: &'a AtomicU32) -> Result<Self, u32> {
        take(word)?;
        Ok(Self(word))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// Takes a word that no process holds, or a dead one.
///
/// # Errors
/// The number of the process that holds it: of this one if another thread does.
pub(super) fn take(word: &AtomicU32) -> Result<(), u32> {
    let us = process();
    match word.compare_exchange(0, us, Acquire, Relaxed) {
        Err(other) if other != us && is_dead(other) => {
            word.compare_exchange(other, us, Acquire, Relaxed).map(drop)
        }
        taken => taken.map(drop),
    }
}

/// True if a process has ended. One that its parent has not waited for has ended, too.
fn is_dead(process: u32) -> bool {
    // Whoever shares the memory may have written a number that no process has.
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else { return true };
    if test_kill_process(pid) == Err(Errno::SRCH) {
        return true;
    }
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the program's name, which may contain anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}
