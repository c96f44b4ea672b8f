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
    /// Minimum time-out, and how long the peer may delay an ACK for one segment.
    floor: u64,
    pub ack_delay: u64,
    min: u64,
    /// The minimum of this window; becomes `min` when the window ends.
    next_min: u64,
    window: Nanos,
}

impl Rtt {
    /// For a peer that may delay its ACKs.
    pub fn new(tuning: &Tuning) -> Self {
        Self {
            smoothed: 0,
            variation: 0,
            backoff: 0,
            floor: tuning.rto_min_far,
            ack_delay: tuning.peer_ack_delay_far,
            min: u64::MAX,
            next_min: u64::MAX,
            window: Nanos(0),
        }
    }

    /// The peer has said that it acknowledges at once.
    pub fn set_prompt(&mut self, tuning: &Tuning) {
        (self.floor, self.ack_delay) = (tuning.rto_min, tuning.peer_ack_delay);
    }

    /// A retransmission by a timer was needless: the peer delays its ACKs for longer than was
    /// assumed.
    pub fn was_early(&mut self) {
        self.floor = (2 * self.floor).clamp(10 * Nanos::MILLI, Nanos::SECOND).max(self.floor);
        self.ack_delay = (2 * self.ack_delay).min(self.floor);
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
            smoothed => (smoothed + 4 * self.variation).max(self.floor),
        };
        base.saturating_mul(1 << self.backoff.min(16)).min(tuning.rto_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_out_follows_rfc_6298() {
        let tuning = Tuning { rto_min_far: 0, ..Tuning::default() };
        let mut rtt = Rtt::new(&tuning);
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
    fn needless_time_outs_raise_the_minimum_to_a_second() {
        let tuning = Tuning::default();
        for is_prompt in [true, false] {
            let mut rtt = Rtt::new(&tuning);
            if is_prompt {
                rtt.set_prompt(&tuning);
            }
            rtt.sample(Nanos::MICRO, Nanos(0));
            let first = rtt.rto(&tuning);
            assert_eq!(first, if is_prompt { tuning.rto_min } else { tuning.rto_min_far });
            (0..10).for_each(|_| rtt.was_early());
            assert_eq!(rtt.rto(&tuning), Nanos::SECOND);
            assert!((500 * Nanos::MILLI..=Nanos::SECOND).contains(&rtt.ack_delay));
        }
    }

    #[test]
    fn a_least_round_trip_ages() {
        let mut rtt = Rtt::new(&Tuning::default());
        rtt.sample(10, Nanos(0));
        for second in 1..40 {
            rtt.sample(1000, Nanos(second * Nanos::SECOND));
        }
        assert_eq!(rtt.min(), 1000);
    }
}
