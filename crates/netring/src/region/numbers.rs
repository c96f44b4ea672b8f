//! Tracks which port has which buffer, ring and interface of a region. Uses no shared memory.

use std::sync::atomic::{AtomicU16, Ordering};

use crate::layout::RESERVED_BUFFERS;

/// Numbers `0..len`, each free or taken.
#[derive(Debug)]
pub(super) struct Numbers {
    taken: Vec<bool>,
    /// Where to look first. Numbers returned last are used again last, because a switch may need a
    /// moment to notice that a port is gone.
    next: usize,
}

impl Numbers {
    /// `len` free numbers.
    pub(super) fn new(len: u32) -> Self {
        Self { taken: vec![false; len as usize], next: 0 }
    }

    /// Takes `count` consecutive numbers; returns the first.
    pub(super) fn take_run(&mut self, count: u32) -> Option<u32> {
        let count = count as usize;
        let ends = (self.taken.len() + 1).checked_sub(count)?;
        let next = self.next.min(ends);
        let first =
            (next..ends).chain(0..next).find(|at| !self.taken[*at..at + count].contains(&true))?;
        self.taken[first..first + count].fill(true);
        self.next = first + count;
        Some(first as u32)
    }

    /// Returns `count` numbers from `first` on; false, and nothing changes, if one was not taken.
    pub(super) fn give_run(&mut self, first: u32, count: u32) -> bool {
        let (first, count) = (first as usize, count as usize);
        let Some(run) = first.checked_add(count).and_then(|end| self.taken.get_mut(first..end))
        else {
            return false;
        };
        let good = !run.contains(&false);
        if good {
            run.fill(false);
        }
        good
    }

    /// How many are free.
    pub(super) fn free(&self) -> usize {
        self.taken.iter().filter(|taken| !**taken).count()
    }
}

/// The holder of a buffer: a ring, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(u16);

impl Holder {
    const FREE: Self = Self(0);
    const RESERVED: Self = Self(1);
    /// Allocated, and in no ring: a [`Buffer`](crate::Buffer), or in a list of extra buffers.
    pub(crate) const LOOSE: Self = Self(2);

    /// The ring object of this number.
    pub(crate) const fn ring(ring: u32) -> Self {
        Self(3 + ring as u16)
    }
}

/// The holder of each buffer of a region.
///
/// The table is outside of shared memory and follows each exchange of buffers that goes through the
/// library. So what returns when a port closes does not depend on the content of slots. Buffers are
/// taken and returned under the region's lock. An exchange touches only two entries, whose buffers
/// the exchanging thread holds.
#[derive(Debug)]
pub(super) struct BufferTable {
    holders: Box<[AtomicU16]>,
}

impl BufferTable {
    /// `len` buffers, all free except the reserved ones.
    pub(super) fn new(len: u32) -> Self {
        let holder = |i| if i < RESERVED_BUFFERS { Holder::RESERVED } else { Holder::FREE };
        Self { holders: (0..len).map(|i| AtomicU16::new(holder(i).0)).collect() }
    }

    fn get(&self, buffer: u32) -> Option<Holder> {
        self.holders.get(buffer as usize).map(|holder| Holder(holder.load(Ordering::Relaxed)))
    }

    fn set(&self, buffer: u32, holder: Holder) {
        if let Some(entry) = self.holders.get(buffer as usize) {
            entry.store(holder.0, Ordering::Relaxed);
        }
    }

    /// Takes the first free buffer at or after `from`, or before it if there is none after.
    pub(super) fn take(&self, from: u32, holder: Holder) -> Option<u32> {
        let len = self.holders.len() as u32;
        let found = (from.min(len)..len)
            .chain(0..from.min(len))
            .find(|buffer| self.get(*buffer) == Some(Holder::FREE))?;
        self.set(found, holder);
        Some(found)
    }

    /// Returns a buffer that `holder` has; false if it does not have it.
    pub(super) fn give(&self, buffer: u32, holder: Holder) -> bool {
        let held = self.is_held(buffer, holder) && holder.0 > Holder::RESERVED.0;
        if held {
            self.set(buffer, Holder::FREE);
        }
        held
    }

    /// Returns all buffers that `holder` has.
    pub(super) fn give_all(&self, holder: Holder) {
        self.held_by(holder).for_each(|buffer| self.set(buffer, Holder::FREE));
    }

    /// True if `holder` has the buffer.
    pub(super) fn is_held(&self, buffer: u32, holder: Holder) -> bool {
        self.get(buffer) == Some(holder)
    }

    /// Two buffers change places.
    #[inline]
    pub(super) fn exchange(&self, a: u32, b: u32) {
        if let (Some(of_a), Some(of_b)) = (self.get(a), self.get(b)) {
            self.set(a, of_b);
            self.set(b, of_a);
        }
    }

    /// The buffers that `holder` has, in order of their numbers.
    pub(super) fn held_by(&self, holder: Holder) -> impl Iterator<Item = u32> + '_ {
        let holds = move |(_, held): &(usize, &AtomicU16)| held.load(Ordering::Relaxed) == holder.0;
        self.holders.iter().enumerate().filter(holds).map(|(buffer, _)| buffer as u32)
    }

    /// How many are free.
    pub(super) fn free(&self) -> usize {
        self.held_by(Holder::FREE).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn reserved_buffers_are_never_handed_out_or_taken_back() {
        let table = BufferTable::new(4);
        assert_eq!(table.take(0, Holder::LOOSE), Some(2));
        assert_eq!(table.take(0, Holder::LOOSE), Some(3));
        assert_eq!(table.take(0, Holder::LOOSE), None);
        assert!(!table.give(0, Holder::RESERVED));
        assert!(!table.give(1, Holder::LOOSE));
    }

    #[test]
    fn runs_are_consecutive_and_whole() {
        let mut numbers = Numbers::new(8);
        assert_eq!(numbers.take_run(3), Some(0));
        assert_eq!(numbers.take_run(2), Some(3));
        assert!(numbers.give_run(0, 3));
        assert_eq!(numbers.take_run(4), None, "5 free, but in two pieces of 3");
        assert!(!numbers.give_run(2, 2), "2 is free already");
        assert!(!numbers.give_run(7, 2), "beyond the end");
        assert!(!numbers.give_run(u32::MAX, 2));
        assert_eq!(numbers.free(), 6);
        assert_eq!(Numbers::new(2).take_run(3), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { from: u32, ring: u32 },
        Give { buffer: u32, ring: u32 },
        Exchange { a: u32, b: u32 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let (buffer, ring) = (0..40u32, 0..3u32);
        prop_oneof![
            (buffer.clone(), ring.clone()).prop_map(|(from, ring)| Step::Take { from, ring }),
            (buffer.clone(), ring).prop_map(|(buffer, ring)| Step::Give { buffer, ring }),
            (buffer.clone(), buffer).prop_map(|(a, b)| Step::Exchange { a, b }),
        ]
    }

    proptest! {
        /// The model is a map from buffer to ring: no buffer is handed out twice, returned twice or
        /// lost.
        #[test]
        fn the_table_agrees_with_an_oracle(steps in prop::collection::vec(step(), 1..200)) {
            const BUFFERS: u32 = 32;
            let (table, mut oracle) = (BufferTable::new(BUFFERS), HashMap::<u32, u32>::new());
            for step in steps {
                match step {
                    Step::Take { from, ring } => match table.take(from, Holder::ring(ring)) {
                        Some(buffer) => {
                            prop_assert!((RESERVED_BUFFERS..BUFFERS).contains(&buffer));
                            prop_assert!(oracle.insert(buffer, ring).is_none(), "handed out twice");
                        }
                        None => prop_assert_eq!(oracle.len() as u32, BUFFERS - RESERVED_BUFFERS),
                    },
                    Step::Give { buffer, ring } => {
                        let held = oracle.get(&buffer) == Some(&ring);
                        prop_assert_eq!(table.give(buffer, Holder::ring(ring)), held);
                        if held {
                            oracle.remove(&buffer);
                        }
                    }
                    Step::Exchange { a, b } => {
                        if let (Some(x), Some(y)) = (oracle.get(&a).copied(), oracle.get(&b).copied()) {
                            table.exchange(a, b);
                            oracle.extend([(a, y), (b, x)]);
                        }
                    }
                }
                prop_assert_eq!(table.free() + oracle.len(), (BUFFERS - RESERVED_BUFFERS) as usize);
            }
        }
    }
}
