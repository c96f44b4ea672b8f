//! The distance between cores 0 and 1, on which the halves of most rows run.
//!
//! A virtual machine's host moves its processors: for seconds, a cache line's round trip between
//! the two takes 100 to 150 ns, then 500 and more. Rows that cross cores follow. So each sample
//! carries the distance just before and just after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// From this round trip in nanoseconds on, the cores are far from each other.
const FAR_NS: f64 = 300.0;
/// Round trips of a batch, and batches; the median batch counts.
const TRIPS: u64 = 200;
const BATCHES: u64 = 20;
/// A measurement that has no end by then has no result.
const LIMIT: Duration = Duration::from_millis(200);

/// How the cores were to each other during a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// A short round trip, before and after.
    Near,
    /// A long one, before and after.
    Far,
    /// The distance cannot be measured here: there is only one core.
    Unknown,
    /// Near before and far after, or the reverse.
    Changed,
}

impl State {
    /// The state between two measured round trips, in nanoseconds.
    pub fn between(before: Option<f64>, after: Option<f64>) -> Self {
        match (before.map(|ns| ns >= FAR_NS), after.map(|ns| ns >= FAR_NS)) {
            (Some(false), Some(false)) => Self::Near,
            (Some(true), Some(true)) => Self::Far,
            (None, None) => Self::Unknown,
            _ => Self::Changed,
        }
    }

    /// The state in which all of these samples were taken.
    pub fn of_all(states: impl IntoIterator<Item = Self>) -> Self {
        let same = |one: Self, other: Self| if one == other { one } else { Self::Changed };
        states.into_iter().reduce(same).unwrap_or(Self::Unknown)
    }

    /// Its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Unknown => "unknown",
            Self::Changed => "changed",
        }
    }
}

/// A word on cache lines of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// The words of asker and answerer.
struct Lines {
    asked: Line,
    answered: Line,
}

/// What the asker writes to end the answerer.
const END: u64 = u64::MAX;

/// Measures the round trip of a cache line between cores 0 and 1, in nanoseconds.
pub fn measure() -> Option<f64> {
    let lines = Lines { asked: Line(AtomicU64::new(0)), answered: Line(AtomicU64::new(0)) };
    let end = Instant::now() + LIMIT;
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&lines, end));
        scope.spawn(|| ask(&lines, end)).join().ok().flatten()
    })
}

fn answer(lines: &Lines, end: Instant) {
    if client::pin(1).is_err() {
        return;
    }
    let mut last = 0;
    loop {
        let Some(asked) = until_other(&lines.asked, last, end).filter(|asked| *asked != END) else {
            return;
        };
        lines.answered.0.store(asked, Ordering::Release);
        last = asked;
    }
}

/// The median batch's nanoseconds for a round trip.
fn ask(lines: &Lines, end: Instant) -> Option<f64> {
    let asked =
        client::pin(0).ok().and_then(|()| (0..BATCHES).map(|n| batch(lines, n, end)).collect());
    lines.asked.0.store(END, Ordering::Release);
    let mut all: Vec<f64> = asked?;
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

fn batch(lines: &Lines, number: u64, end: Instant) -> Option<f64> {
    let start = Instant::now();
    for trip in number * TRIPS..(number + 1) * TRIPS {
        lines.asked.0.store(trip + 1, Ordering::Release);
        until_other(&lines.answered, trip, end)?;
    }
    Some(start.elapsed().as_nanos() as f64 / TRIPS as f64)
}

/// Spins until the word is another than `last`.
fn until_other(line: &Line, last: u64, end: Instant) -> Option<u64> {
    loop {
        for _ in 0..1 << 12 {
            let word = line.0.load(Ordering::Acquire);
            if word != last {
                return Some(word);
            }
        }
        if Instant::now() > end {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_near_or_far_only_if_it_was_so_before_and_after() {
        let of = |before: f64, after: f64| State::between(Some(before), Some(after));
        assert_eq!((of(100.0, 150.0), of(515.0, 560.0)), (State::Near, State::Far));
        assert_eq!((of(299.0, 300.0), of(520.0, 120.0)), (State::Changed, State::Changed));
        assert_eq!(State::between(None, None), State::Unknown);
        assert_eq!(State::between(None, Some(100.0)), State::Changed);
    }

    #[test]
    fn samples_in_unlike_states_have_none_in_common() {
        use State::{Changed, Far, Near, Unknown};
        for (states, all) in [
            (vec![Near, Near, Near], Near),
            (vec![Far], Far),
            (vec![Near, Far], Changed),
            (vec![Far, Changed], Changed),
            (vec![], Unknown),
        ] {
            assert_eq!(State::of_all(states), all);
        }
    }

    #[test]
    fn the_round_trip_between_two_cores_is_measured_or_absent_in_bounded_time() {
        let start = Instant::now();
        let ns = measure();
        assert!(ns.is_none_or(|ns| ns > 1.0), "{ns:?}");
        // The limit, and time for two threads to be scheduled on a busy machine.
        assert!(start.elapsed() < LIMIT + Duration::from_secs(20));
    }
}
