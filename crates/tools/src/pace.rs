//! When to send: an open-loop schedule, which does not depend on the receiver.

use client::units::Rate;

const SECOND: u128 = 1_000_000_000;

/// Bursts spread evenly over time. Times in nanoseconds of any clock.
///
/// A burst is due when everything before it should have been sent at the wanted rate. A delayed
/// sender finds several bursts due at once and catches up.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Rate,
    burst: u64,
    start: u64,
    /// Frames or bits sent.
    done: u64,
    /// Frames of the current burst that are still to be sent.
    left: u64,
}

impl Pacer {
    /// A schedule of bursts of `burst` frames that starts at `start`.
    #[must_use]
    pub fn new(rate: Rate, burst: u64, start: u64) -> Self {
        Self { rate, burst: burst.max(1), start, done: 0, left: 0 }
    }

    /// When the next frame may be sent.
    #[must_use]
    pub fn next_at(&self) -> u64 {
        if self.left > 0 {
            return 0;
        }
        let (Rate::Frames(per_second) | Rate::Bits(per_second)) = self.rate;
        let after = u128::from(self.done) * SECOND / u128::from(per_second.max(1));
        self.start.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }

    /// True if a frame may be sent at `now`; tell [`sent`](Self::sent) if it was.
    #[must_use]
    pub fn is_due(&self, now: u64) -> bool {
        self.next_at() <= now
    }

    /// Records that a frame of `len` bytes was sent.
    pub fn sent(&mut self, len: usize) {
        if self.left == 0 {
            self.left = self.burst;
        }
        self.left -= 1;
        self.done += match self.rate {
            Rate::Frames(_) => 1,
            Rate::Bits(_) => 8 * len as u64,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends all that is due at each of `times`; returns how many frames went at each.
    fn send(pacer: &mut Pacer, len: usize, times: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let at = |now| {
            let mut n = 0;
            while pacer.is_due(now) {
                pacer.sent(len);
                n += 1;
            }
            n
        };
        times.into_iter().map(at).collect()
    }

    #[test]
    fn frames_are_spread_evenly() {
        let mut pacer = Pacer::new(Rate::Frames(1_000_000), 1, 500);
        assert!(!pacer.is_due(499));
        assert_eq!(send(&mut pacer, 60, (0..10).map(|i| 500 + 1000 * i)), [1; 10]);
    }

    #[test]
    fn bursts_come_whole() {
        let mut pacer = Pacer::new(Rate::Frames(1_000_000), 4, 0);
        assert_eq!(send(&mut pacer, 60, (0..9).map(|i| 1000 * i)), [4, 0, 0, 0, 4, 0, 0, 0, 4]);
    }

    #[test]
    fn no_rounding_error_adds_up() {
        let mut pacer = Pacer::new(Rate::Frames(3), 1, 0);
        let hour = send(&mut pacer, 60, [3600 * 1_000_000_000 - 1]);
        assert_eq!(hour, [3 * 3600]);
    }

    #[test]
    fn bits_count_the_length() {
        // 1 Gb/s of 1250-byte frames: one every 10 us.
        let mut pacer = Pacer::new(Rate::Bits(1_000_000_000), 1, 0);
        assert_eq!(send(&mut pacer, 1250, [0, 9_999, 10_000, 50_000]), [1, 0, 1, 4]);
    }

    #[test]
    fn a_sender_that_was_held_up_catches_up() {
        let mut pacer = Pacer::new(Rate::Frames(1000), 1, 0);
        assert_eq!(send(&mut pacer, 60, [0, 10_000_000, 11_000_000]), [1, 10, 1]);
    }
}
