//! Touches of memory that a port's owner lent, and how long each delayed a thread.
//!
//! An owner can make a thread wait at a page: it frees a range (`FALLOC_FL_PUNCH_HOLE`) while the
//! thread touches it, or lets it be swapped out. A thread that waits in a page fault gives up its
//! processor voluntarily. The kernel counts that apart from preemption, so a busy machine is not
//! charged to a user.

use std::cell::Cell;

use port::Nanos;
use rustix::time::{ClockId, clock_gettime};

use crate::clock;

/// A touch that waited less is fine: mapping a page, or reading one from a fast disk, takes that
/// long.
const WAITED_NS: u64 = Nanos::MILLI / 2;
/// A touch that worked less is fine, too: copying the largest batch takes that long.
const WORKED_NS: u64 = 5 * Nanos::MILLI;

thread_local! {
    static EXCUSED: Cell<bool> = const { Cell::new(false) };
}

/// How far a thread has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Nanoseconds that the thread has worked.
    pub worked: u64,
    /// How often the thread gave up its processor voluntarily.
    pub waits: u64,
}

impl Progress {
    /// The progress of the calling thread.
    pub fn here() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        // SAFETY: zero is a valid value of each number in the structure.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes to the structure, which is large enough.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        let worked = time.tv_sec as u64 * Nanos::SECOND + time.tv_nsec as u64;
        Self { worked, waits: usage.ru_nvcsw as u64 }
    }
}

/// Runs a touch. Returns for how many nanoseconds it held the thread up, if that counts.
pub(super) fn timed<T>(touch: impl FnOnce() -> T) -> (T, Option<u64>) {
    let (before, began) = (Progress::here(), clock());
    let done = touch();
    let took = clock() - began;
    if took < WAITED_NS || EXCUSED.get() {
        return (done, None);
    }
    (done, held_up(before, Progress::here(), took))
}

/// How much of `took` nanoseconds was waiting or excessive work.
fn held_up(before: Progress, after: Progress, took: u64) -> Option<u64> {
    let worked = after.worked.saturating_sub(before.worked);
    let waited = took.saturating_sub(worked);
    if after.waits > before.waits && waited >= WAITED_NS {
        return Some(waited);
    }
    (worked >= WORKED_NS).then_some(worked)
}

/// Runs an action whose touches are not charged, because the memory's owner is unknown.
pub fn excused<T>(act: impl FnOnce() -> T) -> T {
    EXCUSED.set(true);
    let done = act();
    EXCUSED.set(false);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = Nanos::MILLI;

    #[test]
    fn waits_count_and_lost_processors_do_not() {
        let at = |worked, waits| Progress { worked, waits };
        assert_eq!(held_up(at(0, 5), at(MS / 10, 6), 20 * MS), Some(20 * MS - MS / 10));
        assert_eq!(held_up(at(0, 5), at(MS / 10, 5), 20 * MS), None, "it was preempted");
        assert_eq!(held_up(at(0, 5), at(MS, 6), MS + MS / 4), None, "it waited a little");
        assert_eq!(
            held_up(at(MS, 5), at(8 * MS, 5), 9 * MS),
            Some(7 * MS),
            "it cleared a huge page"
        );
    }

    #[test]
    fn a_wait_is_seen_unless_it_is_excused() {
        let wait = || std::thread::sleep(std::time::Duration::from_millis(3));
        assert!(timed(wait).1.is_some_and(|ns| ns >= 2 * MS));
        assert_eq!(excused(|| timed(wait)).1, None);
        assert_eq!(timed(|| ()).1, None);
    }
}
