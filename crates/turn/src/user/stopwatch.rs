//! Measures how long a system call took, and for how much of that this thread worked.
//!
//! A wall clock is read before and after each call, in the vDSO. It cannot tell a slow call from a
//! thread that waited for a processor, and only the thread's own work may be charged. Reading the
//! thread's clock is a system call. So it is read now and then, as a mark, and again after a call
//! that took long. The work since the mark, less all of the time between mark and call, belongs to
//! the call.

use std::cell::Cell;

use port::Nanos;
use rustix::time::{ClockId, clock_gettime};

use crate::clock;

/// A shorter call is fine: on busy machines ordinary wake-ups take tens of microseconds.
pub const QUICK_NS: u64 = 100_000;
/// The greatest age of a mark. A call that works longer than this and [`QUICK_NS`] is proven to be
/// slow at once.
const MARK_NS: u64 = Nanos::MILLI;

#[derive(Clone, Copy)]
struct Mark {
    at: Nanos,
    /// How long the thread had worked at the mark.
    worked: Nanos,
}

thread_local! {
    static MARK: Cell<Mark> = const { Cell::new(Mark { at: Nanos(0), worked: Nanos(0) }) };
}

/// Returns how long this thread has worked.
fn worked() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * Nanos::SECOND + time.tv_nsec as u64)
}

/// A call that may have been slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Nanoseconds that the call took.
    pub took: u64,
    /// The minimum of those nanoseconds during which the thread worked.
    pub worked: u64,
    /// When the call was over.
    pub at: Nanos,
}

/// A call that is being timed.
#[derive(Debug)]
pub struct Stopwatch {
    started: Nanos,
}

impl Stopwatch {
    /// Starts the watch. Until `closely`, each call gets a mark of its own, so that all of it
    /// counts.
    #[inline]
    pub fn start(closely: Nanos) -> Self {
        let started = clock();
        let most = if started < closely { 0 } else { MARK_NS };
        if started - MARK.get().at > most {
            mark(started);
        }
        Self { started }
    }

    /// Stops the watch; `None` if the call was quick.
    #[inline]
    pub fn stop(self) -> Option<Slow> {
        let now = clock();
        (now - self.started >= QUICK_NS).then(|| self.judge(now))
    }

    #[cold]
    fn judge(&self, at: Nanos) -> Slow {
        let before = MARK.get();
        mark(at);
        let since = MARK.get().worked - before.worked;
        Slow { took: at - self.started, worked: since.saturating_sub(self.started - before.at), at }
    }
}

#[cold]
fn mark(at: Nanos) {
    MARK.set(Mark { at, worked: worked() });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Works for this time, by the thread's own clock.
    fn work(time: u64) {
        let until = worked() + time;
        while worked() < until {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn work_counts_and_waiting_does_not() {
        let time = 5 * Nanos::MILLI;
        let watch = Stopwatch::start(Nanos(0));
        std::thread::sleep(Duration::from_nanos(time));
        let slow = watch.stop().expect("it took long");
        assert!(slow.took >= time && slow.worked < time / 2, "{slow:?}");
        let watch = Stopwatch::start(Nanos(0));
        work(time);
        let slow = watch.stop().expect("it took long");
        assert!(slow.worked + MARK_NS >= time && slow.worked <= slow.took, "{slow:?}");
    }

    /// Objective: a thread's work before a call is not charged to the call.
    ///
    /// Steps: work for half of a mark's age, then time a call that waits.
    #[test]
    fn work_before_the_call_is_not_the_calls() {
        let _ = Stopwatch::start(Nanos(u64::MAX));
        work(MARK_NS / 2);
        let watch = Stopwatch::start(Nanos(0));
        std::thread::sleep(Duration::from_millis(2));
        let slow = watch.stop().expect("it took long");
        assert!(slow.worked < QUICK_NS, "{slow:?}");
    }

    #[test]
    fn watched_closely_all_of_a_call_counts() {
        let watch = Stopwatch::start(Nanos(u64::MAX));
        work(2 * QUICK_NS);
        let slow = watch.stop().expect("it took long");
        assert!(slow.worked >= 2 * QUICK_NS, "{slow:?}");
    }
}
