//! Ranges of sequence numbers that came out of order.

use alloc::vec::Vec;

use crate::options::SackBlocks;
use crate::seq::Seq;

/// The maximum number of ranges of a connection.
pub(crate) const MAX_RANGES: usize = 64;

#[derive(Clone, Copy)]
struct Range {
    start: Seq,
    end: Seq,
    /// The count at the last change; larger is more recent.
    touched: u32,
}

/// Ranges in order, with gaps between them.
#[derive(Default)]
pub(crate) struct Ranges {
    ranges: Vec<Range>,
    count: u32,
}

impl Ranges {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns true if `start..end` can be added.
    pub fn has_room(&self, start: Seq, end: Seq) -> bool {
        let touches = |r: &Range| !r.end.before(start) && !end.before(r.start);
        self.ranges.len() < MAX_RANGES || self.ranges.iter().any(touches)
    }

    /// Adds a range. Returns true if all of it was there before.
    pub fn insert(&mut self, start: Seq, end: Seq) -> bool {
        self.count = self.count.wrapping_add(1);
        let first = self.ranges.partition_point(|r| r.end.before(start));
        let last = self.ranges.partition_point(|r| !r.start.after(end));
        let mut new = Range { start, end, touched: self.count };
        let mut duplicate = false;
        if first < last {
            duplicate = last - first == 1
                && !start.before(self.ranges[first].start)
                && !end.after(self.ranges[first].end);
            new.start = new.start.min(self.ranges[first].start);
            new.end = new.end.max(self.ranges[last - 1].end);
            self.ranges.drain(first + 1..last);
            self.ranges[first] = new;
        } else {
            self.ranges.insert(first, new);
        }
        duplicate
    }

    /// Removes the ranges that `next` has reached; returns where in-order data ends.
    pub fn advance(&mut self, next: Seq) -> Seq {
        let mut end = next;
        let mut n = 0;
        for range in &self.ranges {
            if range.start.after(end) {
                break;
            }
            end = end.max(range.end);
            n += 1;
        }
        self.ranges.drain(..n);
        end
    }

    /// Writes up to `max` blocks, the most recently changed first (RFC 2018, 4).
    pub fn blocks(&self, blocks: &mut SackBlocks, max: usize) {
        let mut before = None::<u32>;
        for _ in 0..max {
            // The most recent range among those older than the previous one.
            let age = |r: &Range| self.count.wrapping_sub(r.touched);
            let older = |r: &&Range| before.is_none_or(|before| age(r) > before);
            let Some(range) = self.ranges.iter().filter(older).min_by_key(|r| age(r)) else {
                return;
            };
            blocks.push(range.start, range.end);
            before = Some(age(range));
        }
    }

    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_latest_block_comes_first() {
        let mut ranges = Ranges::default();
        for start in [10, 30, 50, 70, 31] {
            ranges.insert(Seq(start), Seq(start + 5));
        }
        let mut blocks = SackBlocks::default();
        ranges.blocks(&mut blocks, 3);
        let expected = [(30, 36), (70, 75), (50, 55)].map(|(a, b)| (Seq(a), Seq(b)));
        assert_eq!(blocks.as_slice(), expected);
    }

    proptest! {
        #[test]
        fn they_are_a_set(
            base in prop_oneof![Just(0u32), Just(u32::MAX - 50)],
            pieces in proptest::collection::vec((0u32..100, 1u32..20), 0..40),
        ) {
            let mut ranges = Ranges::default();
            let mut model = [false; 130];
            for (start, len) in pieces {
                let was = model[start as usize..(start + len) as usize].iter().all(|b| *b);
                model[start as usize..(start + len) as usize].fill(true);
                prop_assert_eq!(ranges.insert(Seq(base) + start, Seq(base) + start + len), was);
                for pair in ranges.ranges.windows(2) {
                    prop_assert!(pair[0].end.before(pair[1].start));
                }
                let total: u32 = ranges.ranges.iter().map(|r| r.end.since(r.start)).sum();
                prop_assert_eq!(total as usize, model.iter().filter(|b| **b).count());
            }
            let first = model.iter().position(|b| *b).unwrap_or(0) as u32;
            let end = first + model[first as usize..].iter().take_while(|b| **b).count() as u32;
            prop_assert_eq!(ranges.advance(Seq(base) + first), Seq(base) + end);
        }
    }
}
