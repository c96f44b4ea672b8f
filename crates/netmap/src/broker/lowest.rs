//! Numbers of which the lowest free one is given out next.

use std::collections::BTreeSet;

/// The numbers from a first to a last one, each free or in use. All operations take logarithmic
/// time.
#[derive(Debug)]
pub(super) struct Lowest {
    /// Free numbers below `next`.
    free: BTreeSet<u32>,
    next: u32,
    last: u32,
}

impl Lowest {
    pub(super) fn new(first: u32, last: u32) -> Self {
        Self { free: BTreeSet::new(), next: first, last }
    }

    /// The number that is given out next.
    pub(super) fn peek(&self) -> Option<u32> {
        self.free.first().copied().or_else(|| (self.next <= self.last).then_some(self.next))
    }

    /// Takes the lowest free number.
    pub(super) fn take(&mut self) -> Option<u32> {
        let number = self.peek()?;
        if !self.free.remove(&number) {
            self.next += 1;
        }
        Some(number)
    }

    /// Frees a number that was taken.
    pub(super) fn give(&mut self, number: u32) {
        if number < self.next {
            self.free.insert(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_comes_next_and_the_last_is_the_end() {
        let mut numbers = Lowest::new(2, 4);
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [Some(2), Some(3), Some(4)]);
        assert_eq!((numbers.peek(), numbers.take()), (None, None));
        numbers.give(4);
        numbers.give(2);
        numbers.give(99);
        assert_eq!([numbers.peek(), numbers.take(), numbers.take()], [Some(2), Some(2), Some(4)]);
        assert_eq!(numbers.take(), None);
    }
}
