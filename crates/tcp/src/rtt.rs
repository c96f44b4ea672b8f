//! Round-trip time, its minimum, and the retransmission time-out (RFC 6298).

use crate::config::Tuning;
use crate::time::Nanos;

/// Length of the window for the minimum round trip.
const MIN_WINDOW: u64 = 10 * Nanos::SECOND;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    /// Smoothed, in nanoseconds; 0 before the first sample.
    pub smoothed: u64,
    variation: u64,
    pub backoff: u8,
    min: u64,
    /// The minimum of this window; becomes `min` when the window ends.
    next_min: u64,
    window: Nanos,
}

impl Rtt {
    pub fn new() -> Self {
        Self {
            smoothed: 0,
            variation: 0,
            backoff: 0,
            min: u64::MAX,
            next_min: u64::MAX,
            window: Nanos(0),
        }
    }

    /// Adds a sample from a segment that was sent once.
    pub fn sample(&mut self, rtt: u64, now: Nanos) {
        let rtt = rtt.max(1);
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (rtt, rtt / 2);
        } else {
            self.variation = (3 * self.variation + self.smoothed.abs_diff(rtt)) / 4;
            self.smoothed = (7 * self.smoothed + rtt) / 8;
        }
        self.backoff = 0;
        if now - self.window > MIN_WINDOW {
            (self.min, self.next_min, self.window) = (self.next_min.min(rtt), rtt, now);
        }
        self.min = self.min.min(rtt);
        self.next_min = self.next_min.min(rtt);
    }

    /// Returns the minimum round trip of the last 10 to 20 seconds; 0 if there was none.
    #[inline]
    pub fn min(&self) -> u64 {
        if self.min == u64::MAX { 0 } else { self.min }
    }

    /// Returns the retransmission time-out with back-off, in nanoseconds (RFC 6298, 2).
    #[inline]
    pub fn rto(&self, tuning: &Tuning) -> u64 {
        let base = match self.smoothed {
            0 => tuning.rto_initial,
            smoothed => (smoothed + 4 * self.variation).max(tuning.rto_min),
        };
        base.saturating_mul(1 << self.backoff.min(16)).min(tuning.rto_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_out_follows_rfc_6298() {
        let tuning = Tuning { rto_min: 0, ..Tuning::default() };
        let mut rtt = Rtt::new();
        assert_eq!(rtt.rto(&tuning), Nanos::SECOND);
        rtt.sample(100 * Nanos::MILLI, Nanos(0));
        assert_eq!(rtt.rto(&tuning), 300 * Nanos::MILLI);
        rtt.sample(200 * Nanos::MILLI, Nanos(0));
        assert_eq!((rtt.smoothed, rtt.variation), (112_500_000, 62_500_000));
        rtt.backoff = 3;
        assert_eq!(rtt.rto(&tuning), 8 * (112_500_000 + 250_000_000));
        rtt.backoff = 40;
        assert_eq!(rtt.rto(&tuning), tuning.rto_max);
    }

    #[test]
    fn a_least_round_trip_ages() {
        let mut rtt = Rtt::new();
        rtt.sample(10, Nanos(0));
        for second in 1..40 {
            rtt.sample(1000, Nanos(second * Nanos::SECOND));
        }
        assert_eq!(rtt.min(), 1000);
    }
}
