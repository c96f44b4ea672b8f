//! Token buckets: their configuration and arithmetic.

use port::Nanos;
use serde::{Deserialize, Serialize};

/// A rate limit: on average `size` tokens per `refill_time`, and `size` at once. The names are
/// those of Firecracker's API, where a token is also a byte or a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenBucket {
    /// The bucket's size in tokens, from 1 to [`MAX_SIZE`](Self::MAX_SIZE).
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = TokenBucket::MAX_SIZE)))]
    pub size: u64,
    /// Additional tokens, available once.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub one_time_burst: u64,
    /// Milliseconds in which an empty bucket fills, from 1 to
    /// [`MAX_REFILL_MS`](Self::MAX_REFILL_MS).
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = TokenBucket::MAX_REFILL_MS)))]
    pub refill_time: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_none_left(tokens: &u64) -> bool {
    *tokens == 0
}

/// The limits of one direction of a port; the default is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RateLimiter {
    /// Bytes of frames, from the Ethernet header to the payload's end. A frame that its sender
    /// leaves to be cut into segments counts as these, each with its headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<TokenBucket>,
    /// Frames on the wire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<TokenBucket>,
}

/// The reason why a limit is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The size is 0 or too large.
    #[error("The size of a token bucket is from 1 to {max}, not {0}", max = TokenBucket::MAX_SIZE)]
    Size(u64),
    /// The time is 0 or too long.
    #[error("The refill time of a token bucket is from 1 to {max} ms, not {0}", max = TokenBucket::MAX_REFILL_MS)]
    RefillTime(u64),
}

impl TokenBucket {
    /// The largest size, in tokens.
    pub const MAX_SIZE: u64 = 1 << 40;
    /// The longest time to fill, in milliseconds: an hour.
    pub const MAX_REFILL_MS: u64 = 3_600_000;
    /// The refill time, in milliseconds, of buckets for a plain rate.
    const USUAL_REFILL_MS: u64 = 100;

    /// The bucket for `rate` tokens a second. Its size is a tenth of them, and at least one.
    #[must_use]
    pub fn per_second(rate: u64) -> Self {
        let refill_time = Self::USUAL_REFILL_MS;
        match rate / (1000 / refill_time) {
            // For small rates, rounding would matter.
            0..1000 => Self { size: rate.max(1), one_time_burst: 0, refill_time: 1000 },
            size => Self { size, one_time_burst: 0, refill_time },
        }
    }

    /// Tokens a second, rounded.
    #[must_use]
    pub fn rate(&self) -> u64 {
        let rate = u128::from(self.size) * 1000 / u128::from(self.refill_time.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    fn check(&self) -> Result<(), RateError> {
        if !(1..=Self::MAX_SIZE).contains(&self.size) {
            return Err(RateError::Size(self.size));
        }
        if !(1..=Self::MAX_REFILL_MS).contains(&self.refill_time) {
            return Err(RateError::RefillTime(self.refill_time));
        }
        Ok(())
    }
}

impl RateLimiter {
    /// True if the limiter limits nothing.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the values are in range.
    ///
    /// # Errors
    /// A size or a time is out of range.
    pub fn check(&self) -> Result<(), RateError> {
        self.bandwidth.iter().chain(&self.ops).try_for_each(TokenBucket::check)
    }
}

/// A bucket in use. The last frame may put it into debt. So frames of any size pass a bucket of any
/// size, and the average holds exactly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    size: i128,
    refill_ns: i128,
    /// The fill level, in units so small that the bucket gains one whole number of them each
    /// nanosecond. A token has `refill_ns` units.
    level: i128,
    burst: u64,
}

impl Bucket {
    /// A full bucket.
    pub fn new(config: &TokenBucket) -> Self {
        let size = i128::from(config.size.clamp(1, TokenBucket::MAX_SIZE));
        let refill_ms = config.refill_time.clamp(1, TokenBucket::MAX_REFILL_MS);
        let refill_ns = i128::from(refill_ms * Nanos::MILLI);
        Self { size, refill_ns, level: size * refill_ns, burst: config.one_time_burst }
    }

    /// Adds what `ns` nanoseconds bring.
    pub fn refill(&mut self, ns: u64) {
        self.level = (self.level + i128::from(ns) * self.size).min(self.size * self.refill_ns);
    }

    /// True if the bucket lets a frame pass.
    pub fn is_open(&self) -> bool {
        self.burst > 0 || self.level > 0
    }

    /// Takes tokens, even more than the bucket has.
    #[inline]
    pub fn take(&mut self, tokens: u64) {
        let from_burst = tokens.min(self.burst);
        self.burst -= from_burst;
        self.level -= i128::from(tokens - from_burst) * self.refill_ns;
    }

    /// Returns tokens that were taken for a frame that did not pass.
    pub fn put_back(&mut self, tokens: u64) {
        self.level += i128::from(tokens) * self.refill_ns;
    }

    /// The number of whole tokens.
    pub fn tokens(&self) -> u64 {
        let level = self.level.max(0) / self.refill_ns;
        u64::try_from(level).unwrap_or(u64::MAX).saturating_add(self.burst)
    }

    /// Nanoseconds until the bucket lets a frame pass.
    pub fn opens_in(&self) -> u64 {
        match self.is_open() {
            true => 0,
            false => u64::try_from(-self.level / self.size + 1).unwrap_or(u64::MAX),
        }
    }
}
