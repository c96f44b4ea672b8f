//! Time. Functions take it as an argument; none reads a clock.

use core::ops::{Add, Sub};

/// A moment on a monotonic clock, in nanoseconds; read once per turn and passed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Nanoseconds in a microsecond.
    pub const MICRO: u64 = 1_000;
    /// Nanoseconds in a millisecond.
    pub const MILLI: u64 = 1_000_000;
    /// Nanoseconds in a second.
    pub const SECOND: u64 = 1_000_000_000;
    /// A moment that never comes: the deadline of a timer that is not armed.
    pub const NEVER: Self = Self(u64::MAX);

    /// Whole milliseconds since the clock's start, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn millis(self) -> u32 {
        (self.0 / Self::MILLI) as u32
    }

    /// Whole microseconds since the clock's start, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn micros(self) -> u32 {
        (self.0 / Self::MICRO) as u32
    }
}

impl Add<u64> for Nanos {
    type Output = Self;
    #[inline]
    fn add(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub for Nanos {
    type Output = u64;
    #[inline]
    fn sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
