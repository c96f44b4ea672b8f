//! A limit in operation, in one direction of a port.

use port::Nanos;

use crate::bucket::Bucket;
use crate::{RateLimiter, TokenBucket};

/// The assumed length of a frame, in bytes, before one was seen.
const FIRST_GUESS: u64 = 1500;
/// The weight of a new length in the average: one in this many.
const SMOOTHING: u64 = 8;
/// Averages are kept in units of one part in this many.
const SCALE: u64 = 16;

/// The buckets of one direction of a port.
#[derive(Clone, Debug)]
pub struct Limiter {
    bandwidth: Option<Bucket>,
    ops: Option<Bucket>,
    refilled_at: Option<Nanos>,
    /// The average length of a gathered frame, in bytes on the wire, times [`SCALE`].
    usual_len: u64,
    /// How many frames on the wire a gathered frame usually is, times [`SCALE`].
    usual_frames: u64,
}

impl Limiter {
    /// Makes a limiter with full buckets; `None` if nothing is limited.
    #[must_use]
    pub fn new(config: &RateLimiter) -> Option<Self> {
        let bucket = |config: &Option<TokenBucket>| config.as_ref().map(Bucket::new);
        let (bandwidth, ops) = (bucket(&config.bandwidth), bucket(&config.ops));
        let (usual_len, usual_frames) = (FIRST_GUESS * SCALE, SCALE);
        let refilled_at = None;
        let new = Self { bandwidth, ops, refilled_at, usual_len, usual_frames };
        (!config.is_off()).then_some(new)
    }

    /// Adds the tokens for the time that has passed.
    #[inline]
    pub fn refill(&mut self, now: Nanos) {
        let ns = self.refilled_at.map_or(0, |then| now - then);
        self.refilled_at = Some(self.refilled_at.map_or(now, |then| then.max(now)));
        if ns > 0 {
            self.buckets().for_each(|bucket| bucket.refill(ns));
        }
    }

    /// Takes the tokens for a frame that is `frames` frames of `bytes` bytes in all on the wire.
    /// Returns false, and takes none, if it may not pass yet.
    #[inline]
    pub fn admit(&mut self, (frames, bytes): (usize, usize)) -> bool {
        let open = self.buckets().all(|bucket| bucket.is_open());
        if open {
            self.charge(frames, bytes as u64);
        }
        open
    }

    /// Takes the tokens for frames on the wire that have passed.
    #[inline]
    pub fn charge(&mut self, frames: usize, bytes: u64) {
        if let Some(bandwidth) = &mut self.bandwidth {
            bandwidth.take(bytes);
        }
        if let Some(ops) = &mut self.ops {
            ops.take(frames as u64);
        }
    }

    /// Returns the tokens of frames that did not pass after all.
    pub fn refund(&mut self, frames: usize, bytes: u64) {
        if let Some(bandwidth) = &mut self.bandwidth {
            bandwidth.put_back(bytes);
        }
        if let Some(ops) = &mut self.ops {
            ops.put_back(frames as u64);
        }
    }

    /// How many frames of unknown length may be taken now: as many as there are tokens for, if they
    /// have the average length. It is at least one while both buckets are open.
    #[must_use]
    pub fn allowance(&mut self) -> usize {
        if !self.buckets().all(|bucket| bucket.is_open()) {
            return 0;
        }
        let among = |bucket: Option<Bucket>, usual: u64| {
            bucket.map_or(u64::MAX, |b| b.tokens().saturating_mul(SCALE) / usual.max(1))
        };
        let by_bytes = among(self.bandwidth, self.usual_len);
        let by_frames = among(self.ops, self.usual_frames);
        usize::try_from(by_bytes.min(by_frames)).unwrap_or(usize::MAX).max(1)
    }

    /// Like [`charge`](Self::charge), for `gathered` frames that [`allowance`](Self::allowance) has
    /// let pass, which are `frames` frames of `bytes` bytes on the wire.
    pub fn charge_allowed(&mut self, gathered: usize, (frames, bytes): (usize, u64)) {
        if gathered > 0 {
            let smooth = |usual: u64, sum: u64| {
                let each = sum * SCALE / gathered as u64;
                (usual * (SMOOTHING - 1) + each).div_ceil(SMOOTHING)
            };
            self.usual_len = smooth(self.usual_len, bytes);
            self.usual_frames = smooth(self.usual_frames, frames as u64);
            self.charge(frames, bytes);
        }
    }

    /// When a frame may pass. A time up to `now` means at once.
    #[must_use]
    pub fn opens_at(&self, now: Nanos) -> Nanos {
        let buckets = self.bandwidth.iter().chain(&self.ops);
        now + buckets.map(Bucket::opens_in).max().unwrap_or(0)
    }

    #[inline]
    fn buckets(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.bandwidth.iter_mut().chain(&mut self.ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limiter(bytes: Option<u64>, frames: Option<u64>) -> Limiter {
        let bucket = |rate: Option<u64>| rate.map(TokenBucket::per_second);
        let config = RateLimiter { bandwidth: bucket(bytes), ops: bucket(frames) };
        config.check().unwrap();
        Limiter::new(&config).unwrap()
    }

    /// Tries a frame of `len` bytes every `step` nanoseconds, for as long as frames pass. Returns
    /// the bytes that pass in `seconds` after the first.
    fn passed(limiter: &mut Limiter, len: usize, step: u64, seconds: u64) -> u64 {
        let mut bytes = 0;
        for now in (0..=(seconds + 1) * Nanos::SECOND).step_by(step as usize) {
            limiter.refill(Nanos(now));
            while limiter.admit((1, len)) {
                bytes += if now > Nanos::SECOND { len as u64 } else { 0 };
            }
        }
        bytes
    }

    #[test]
    fn rates_hold_to_half_a_percent_from_a_megabit_to_forty_gigabits() {
        for bits in [1_000_000, 9_999_999, 100_000_000, 1_000_000_000, 40_000_000_000] {
            for (len, step) in [(64, 50_000), (1514, 1_234_567), (65_000, 999_999)] {
                // At either end of the interval, the count may be off by one frame.
                let seconds = (len as u64 * 8 * 400 / bits).max(1);
                let is = passed(&mut limiter(Some(bits / 8), None), len, step, seconds);
                let wanted = bits / 8 * seconds;
                assert!(is.abs_diff(wanted) * 200 <= wanted, "{bits} b/s, {len}: {is}, {wanted}");
            }
        }
    }

    #[test]
    fn frames_are_limited_as_bytes_are_and_the_stricter_limit_holds() {
        let mut both = limiter(Some(1_000_000), Some(100));
        assert_eq!(passed(&mut both, 64, 100_000, 10) / 64, 1000);
        let mut both = limiter(Some(10_000), Some(1_000_000));
        assert_eq!(passed(&mut both, 1000, 100_000, 10) / 1000, 100);
    }

    #[test]
    fn a_full_bucket_passes_at_once_and_a_burst_once_more() {
        let bucket = TokenBucket { size: 1000, one_time_burst: 500, refill_time: 100 };
        let config = RateLimiter { ops: Some(bucket), bandwidth: None };
        let mut limiter = Limiter::new(&config).unwrap();
        let mut at_once = |now| {
            limiter.refill(Nanos(now));
            std::iter::repeat_with(|| limiter.admit((1, 60))).take_while(|passed| *passed).count()
        };
        assert_eq!(at_once(5), 1500);
        assert_eq!(at_once(5 + 10 * Nanos::MILLI), 100);
        assert_eq!(at_once(5 + Nanos::SECOND), 1000, "the burst came once");
    }

    #[test]
    fn a_frame_larger_than_the_bucket_passes_and_is_paid_off() {
        let bucket = TokenBucket { size: 100, one_time_burst: 0, refill_time: 100 };
        let mut limiter =
            Limiter::new(&RateLimiter { bandwidth: Some(bucket), ops: None }).unwrap();
        limiter.refill(Nanos(0));
        assert!(limiter.admit((1, 1100)) && !limiter.admit((1, 1)));
        let opens = limiter.opens_at(Nanos(0));
        assert_eq!(opens, Nanos(Nanos::SECOND + 1));
        limiter.refill(Nanos(opens.0 - 1));
        assert!(!limiter.admit((1, 1)));
        limiter.refill(opens);
        assert!(limiter.admit((1, 1)));
    }

    #[test]
    fn what_did_not_pass_costs_nothing() {
        let mut limiter = limiter(Some(1_000_000), Some(1000));
        limiter.refill(Nanos(0));
        let before = (limiter.allowance(), limiter.opens_at(Nanos(0)));
        assert!(limiter.admit((1, 200_000)) && !limiter.admit((1, 60)));
        limiter.refund(1, 200_000);
        assert_eq!((limiter.allowance(), limiter.opens_at(Nanos(0))), before);
    }

    #[test]
    fn an_allowance_goes_by_the_length_of_the_last_frames() {
        let mut limiter = limiter(Some(15_000_000), None);
        limiter.refill(Nanos(0));
        assert_eq!(limiter.allowance(), 1000, "1.5 MB of frames of 1500 bytes");
        for _ in 0..100 {
            limiter.charge_allowed(1, (1, 60));
        }
        let allowance = limiter.allowance();
        assert!((20_000..=25_000).contains(&allowance), "{allowance}");
    }

    #[test]
    fn a_clock_that_goes_back_brings_no_tokens() {
        let mut limiter = limiter(None, Some(10));
        limiter.refill(Nanos(10 * Nanos::SECOND));
        assert_eq!(std::iter::repeat_with(|| limiter.admit((1, 1))).take_while(|p| *p).count(), 10);
        limiter.refill(Nanos(0));
        limiter.refill(Nanos(10 * Nanos::SECOND));
        assert!(!limiter.admit((1, 1)));
    }

    proptest! {
        /// For any configuration and traffic: nothing overflows, and no more passes than the rate,
        /// the bucket and one frame.
        #[test]
        fn no_more_passes_than_may(
            size in 1..=TokenBucket::MAX_SIZE,
            refill_time in 1..=TokenBucket::MAX_REFILL_MS,
            one_time_burst: u32,
            tries in proptest::collection::vec((0..1u64 << 40, 1..=1_000_000usize), 1..200),
        ) {
            let one_time_burst = u64::from(one_time_burst);
            let bucket = TokenBucket { size, one_time_burst, refill_time };
            let config = RateLimiter { bandwidth: Some(bucket), ops: None };
            let mut limiter = Limiter::new(&config).unwrap();
            let (mut now, mut passed) = (Nanos(0), 0u128);
            for (wait, len) in tries {
                now = now + wait;
                limiter.refill(now);
                let open = limiter.opens_at(now) == now;
                prop_assert_eq!(limiter.admit((1, len)), open);
                passed += if open { len as u128 } else { 0 };
                let ns = u128::from(refill_time * Nanos::MILLI);
                let most = u128::from(size + one_time_burst) + u128::from(now.0) * u128::from(size) / ns;
                prop_assert!(passed <= most + 1_000_001);
            }
        }
    }
}
