//! Places in a ring of descriptors.

/// A place in a ring of `len` descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The descriptor's index, below `len`.
    pub at: u32,
    /// Descriptors of the ring.
    pub len: u32,
}

impl Place {
    /// The number of descriptors from here to `to`, with wrap-around.
    #[inline(always)]
    pub const fn distance(self, to: u32) -> u32 {
        if to >= self.at { to - self.at } else { to + self.len - self.at }
    }

    /// How many of the descriptors from here to `to` are contiguous.
    #[inline(always)]
    pub const fn run(self, to: u32) -> u32 {
        if to >= self.at { to - self.at } else { self.len - self.at }
    }

    /// The place `count` descriptors on, at most one round.
    #[inline(always)]
    pub const fn after(self, count: u32) -> u32 {
        let after = self.at.wrapping_add(count);
        if after >= self.len { after.wrapping_sub(self.len) } else { after }
    }
}

/// The element of queue 0 or 1. The number is masked, so no access needs a bounds check.
#[inline(always)]
pub(crate) const fn of_queue<T>(two: &[T; 2], queue: usize) -> &T {
    &two[queue & 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_go_around_the_end() {
        let from = |at| Place { at, len: 8 };
        assert_eq!([from(2).distance(5), from(6).distance(1), from(3).distance(3)], [3, 3, 0]);
        assert_eq!([from(2).run(5), from(6).run(1), from(6).run(0)], [3, 2, 2]);
        assert_eq!([from(2).after(3), from(6).after(2), from(6).after(8)], [5, 0, 6]);
    }
}
