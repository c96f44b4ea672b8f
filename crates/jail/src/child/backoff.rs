//! Pauses before a process is started again.

use std::time::Duration;

/// Pauses that double with each failure, and are short again after a good run.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    healthy: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `first` to `longest`. A process that has run for `healthy` has not failed at its
    /// start.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration, healthy: Duration) -> Self {
        Self { first, longest, healthy, next: first }
    }

    /// The pause after a process that ran for this long.
    pub fn after(&mut self, ran: Duration) -> Duration {
        if ran >= self.healthy {
            self.next = self.first;
        }
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_short_again_after_a_good_run() {
        let second = Duration::from_secs;
        let mut backoff = Backoff::new(second(1), second(5), second(10));
        let pauses = [0, 0, 9, 0, 0].map(|ran| backoff.after(second(ran)).as_secs());
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.after(second(10)), second(1));
        assert_eq!(backoff.after(second(0)), second(2));
    }
}
