//! The address range of a mapping, for a reader that takes no lock: the SIGBUS handler.
//!
//! An entry of the guard's table is reused, each time for one *life*. The handler must never pair
//! the start of one life with the end of another. The range between them could contain other
//! mappings, which the handler would replace by zeros.
//!
//! ```text
//!   life   4n: free  --claim-->  4n + 1: being filled in  --publish-->  4n + 2: valid  --leave-->  4n + 4: free
//! ```
//!
//! A reader loads `life` before and after the range. It trusts the range if both loads gave the
//! same valid life (a sequence lock). It never waits. A changing entry cannot be the one it looks
//! for, because the faulting thread keeps its own mapping, and so that mapping's entry.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering, fence};

/// The two lowest bits of a life, which hold its state.
const STATE: u64 = 0b11;
const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const VALID: u64 = 2;
/// The distance from one life to the next.
const NEXT: u64 = 4;

/// An address range that one side enters and the other reads.
#[derive(Debug)]
pub struct Place {
    /// # Protocol: an entry of the `guard` table (`place::Place`: `life`, start, end)
    /// - Writer: the side that maps: claimed, range, valid; as it unmaps: free, and the next life
    /// - Reader: the SIGBUS handler, which believes a range between two equal, valid lives
    /// - Ordering: `life`: claim acquire, fence release; valid, free: store release / load acquire,
    ///   the range, fence acquire, load relaxed
    /// - Partner: start, end (relaxed)
    /// - Without it: the start of one mapping with the end of another: zeros over what lies between
    /// - Shown by: loom `a_range_is_of_one_mapping`
    life: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

impl Place {
    /// A free one.
    #[cfg(not(loom))]
    pub const fn free() -> Self {
        Self { life: AtomicU64::new(FREE), start: AtomicU64::new(0), end: AtomicU64::new(0) }
    }

    /// A free one.
    #[cfg(loom)]
    #[must_use]
    pub fn free() -> Self {
        Self { life: AtomicU64::new(FREE), start: AtomicU64::new(0), end: AtomicU64::new(0) }
    }

    /// Enters a range; false if the entry is taken.
    pub fn enter(&self, range: &Range<usize>) -> bool {
        let free = self.life.load(Ordering::Relaxed);
        let claimed = free | CLAIMED;
        let orders = (Ordering::Acquire, Ordering::Relaxed);
        if free & STATE != FREE
            || self.life.compare_exchange(free, claimed, orders.0, orders.1).is_err()
        {
            return false;
        }
        // A reader that sees one of the words below sees the claim, too.
        fence(Ordering::Release);
        self.start.store(range.start as u64, Ordering::Relaxed);
        self.end.store(range.end as u64, Ordering::Relaxed);
        self.life.store(free | VALID, Ordering::Release);
        true
    }

    /// Frees the entry. Only the side that entered the range may call it.
    pub fn leave(&self) {
        let life = self.life.load(Ordering::Relaxed);
        self.life.store((life & !STATE) + NEXT, Ordering::Release);
    }

    /// The range of the current life; `None` if there is none, or it is changing.
    pub fn range(&self) -> Option<Range<usize>> {
        let life = self.life.load(Ordering::Acquire);
        if life & STATE != VALID {
            return None;
        }
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        // Pairs with the fence of a later `enter`.
        fence(Ordering::Acquire);
        let same = self.life.load(Ordering::Relaxed) == life;
        same.then_some(start as usize..end as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_range_at_a_time() {
        let place = Place::free();
        assert_eq!(place.range(), None);
        assert!(place.enter(&(4096..8192)));
        assert!(!place.enter(&(0..1)), "it is taken");
        assert_eq!(place.range(), Some(4096..8192));
        place.leave();
        assert_eq!(place.range(), None);
        assert!(place.enter(&(1..2)));
        assert_eq!(place.range(), Some(1..2));
    }
}
