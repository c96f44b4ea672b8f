//! What touches memory that a port's owner lent, and how long that held a thread up.
//!
//! An owner can have a thread wait at a page: it frees a range (`FALLOC_FL_PUNCH_HOLE`) while the thread touches it, or
//! lets it be swapped out. A thread that waits in a page fault gives its processor up by itself, which the kernel counts
//! apart from being preempted. So a machine that is busy is not held against anybody.

use std::cell::Cell;

use port::Nanos;
use rustix::time::{ClockId, clock_gettime};

use crate::worker::clock;

/// A touch that waited less is no concern: so long takes it to map a page at first, or to fetch one from a fast disk.
const WAITED_NS: u64 = Nanos::MILLI / 2;
/// Nor is one that worked less: so long takes it to copy the largest batch.
const WORKED_NS: u64 = 5 * Nanos::MILLI;

thread_local! {
    static EXCUSED: Cell<bool> = const { Cell::new(false) };
}

/// How far a thread has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Nanoseconds that it has worked.
    pub worked: u64,
    /// Times that it gave its processor up by itself.
    pub waits: u64,
}

impl Progress {
    /// The calling thread's.
    pub fn here() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        // SAFETY: zero is a value of each of its numbers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: it is written to, and large enough.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        let worked = time.tv_sec as u64 * Nanos::SECOND + time.tv_nsec as u64;
        Self { worked, waits: usage.ru_nvcsw as u64 }
    }
}

/// Makes a touch; returns for how many nanoseconds it held the thread up, if they count.
pub(super) fn timed<T>(touch: impl FnOnce() -> T) -> (T, Option<u64>) {
    let (before, began) = (Progress::here(), clock());
    let done = touch();
    let took = clock() - began;
    if took < WAITED_NS || EXCUSED.get() {
        return (done, None);
    }
    (done, held_up(before, Progress::here(), took))
}

/// What of `took` nanoseconds was spent waiting, or on too much work.
fn held_up(before: Progress, after: Progress, took: u64) -> Option<u64> {
    let worked = after.worked.saturating_sub(before.worked);
    let waited = took.saturating_sub(worked);
    if after.waits > before.waits && waited >= WAITED_NS {
        return Some(waited);
    }
    (worked >= WORKED_NS).then_some(worked)
}

/// Does something in which touches are held against nobody: whose memory it is cannot be told.
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
