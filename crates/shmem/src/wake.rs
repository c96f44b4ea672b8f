//! Words with which two sides hand work over and wake each other.
//!
//! This is the protocol of every hand-over in toklat, in both directions:
//!
//! ```text
//!   producer                                  consumer
//!   fill slots                                 loop:
//!   cursor.publish(new)      (release)           cursor.observe() (acquire); work while there is any
//!   flag.must_kick(..)       (fence; load)       flag.arm()       (store; fence)
//!     true -> ring the doorbell                  cursor.observe() once more: work? flag.disarm(), go on
//!                                                sleep until the doorbell; flag.disarm()
//! ```
//!
//! Both sides have a full fence between their store and their load, so at least one of them sees
//! the other's store: no wake-up is lost (loom test `wake_up_is_never_lost`).

use crate::Shareable;
use crate::sync::{AtomicU32, Ordering, fence};

/// A ring position that one side writes and the other reads.
#[derive(Debug)]
#[repr(transparent)]
pub struct Cursor(AtomicU32);

// SAFETY: the type consists of one atomic word.
unsafe impl Shareable for Cursor {}

impl Cursor {
    /// A cursor at `at`. In shared memory, cursors are mapped, not made.
    #[must_use]
    pub fn new(at: u32) -> Self {
        Self(AtomicU32::new(at))
    }

    /// Publishes `at`. A side that observes it sees everything written before. Only the writing
    /// side calls this.
    #[inline]
    pub fn publish(&self, at: u32) {
        self.0.store(at, Ordering::Release);
    }

    /// The position that the other side published. Everything it wrote before is then visible.
    #[inline]
    pub fn observe(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// The position that the writing side itself stored last.
    #[inline]
    pub fn own(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// "Wake me": a side that is about to sleep arms it, and the side that has made work reads it.
///
/// An even value is unarmed, an odd one armed. Every arming has its own value. The other side never
/// writes here, so it compares values to answer each arming with one kick.
#[derive(Debug)]
#[repr(transparent)]
pub struct WakeFlag(AtomicU32);

// SAFETY: the type consists of one atomic word.
unsafe impl Shareable for WakeFlag {}

impl WakeFlag {
    /// An unarmed flag. In shared memory, flags are mapped, not made.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default would hide which state it is in")]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Asks for one kick. The caller checks for work again before it sleeps.
    #[inline]
    pub fn arm(&self) {
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_add(1 + (value & 1)), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the request: the caller is awake.
    #[inline]
    pub fn disarm(&self) {
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_add(value & 1), Ordering::Relaxed);
    }

    /// True if the other side sleeps and must be kicked. It fences first, so call it after
    /// publishing. In `answered`, the caller keeps the arming for which it kicked last (0 at
    /// first).
    #[inline]
    pub fn must_kick(&self, answered: &mut u32) -> bool {
        fence(Ordering::SeqCst);
        self.must_kick_fenced(answered)
    }

    /// Like [`must_kick`](Self::must_kick), for a caller that fenced once for many flags.
    #[inline]
    pub fn must_kick_fenced(&self, answered: &mut u32) -> bool {
        let value = self.0.load(Ordering::Relaxed);
        if value & 1 == 0 || value == *answered {
            return false;
        }
        *answered = value;
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_arming_is_answered_once() {
        let (flag, mut answered) = (WakeFlag::new(), 0);
        assert!(!flag.must_kick(&mut answered));
        for _ in 0..3 {
            flag.arm();
            assert!(flag.must_kick(&mut answered));
            assert!(!flag.must_kick(&mut answered), "one kick an arming");
            flag.disarm();
            assert!(!flag.must_kick(&mut answered));
        }
        flag.arm();
        flag.arm();
        assert!(flag.must_kick(&mut answered), "armed twice in a row is armed");
    }
}
