//! Sequence numbers, which wrap (RFC 9293, 3.4).

use core::ops::{Add, AddAssign, Sub};

/// A sequence number. Its order is circular, so it has no `Ord`: see [`before`](Self::before).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// True if this number comes earlier than `other`.
    #[inline]
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// True if this number comes later than `other`.
    #[inline]
    #[must_use]
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Bytes from `earlier` to this number.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The later of the two numbers.
    #[inline]
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// The earlier of the two numbers.
    #[inline]
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    #[inline]
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_wraps() {
        let (low, high) = (Seq(5), Seq(u32::MAX - 5));
        assert!(high.before(low) && low.after(high));
        assert_eq!(low.since(high), 11);
        assert_eq!((high.max(low), high.min(low)), (low, high));
        assert_eq!((high + 11, low - 11), (low, high));
    }
}
