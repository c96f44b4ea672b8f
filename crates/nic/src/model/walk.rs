//! How much of a ring one turn may read.
//!
//! The driver fills the ring, and the worker that reads it also serves others. So each frame has a
//! fair share of descriptors, and a turn may read a few beyond those shares. The rest waits for the
//! next turn. A turn over `n` frames of `b` bytes reads at most `64 n + b / 16 + 2048` descriptors
//! and those of one more frame.

/// A frame's fair share: this many descriptors for any frame, and one more for every 16 bytes.
const SHARE: usize = 64;
const BYTES: usize = 16;
/// Descriptors that a turn may read beyond its frames' fair shares.
const ALLOWANCE: usize = 2048;

/// How many descriptors a turn may still read.
#[derive(Clone, Copy, Debug)]
pub struct Allowance(usize);

impl Allowance {
    #[inline(always)]
    pub fn new() -> Self {
        Self(ALLOWANCE)
    }

    /// Charges the descriptors read for a frame of `bytes` bytes; 0 bytes if the frame was not
    /// taken.
    #[inline]
    pub fn charge(&mut self, descriptors: usize, bytes: usize) {
        let share = SHARE + bytes / BYTES;
        self.0 = self.0.saturating_sub(descriptors.saturating_sub(share));
    }

    /// True if the turn must stop reading.
    #[inline(always)]
    pub fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// Counts descriptors that this thread has read, for tests and fuzzing. Does nothing without debug
/// assertions.
#[inline(always)]
pub fn note(descriptors: usize) {
    #[cfg(debug_assertions)]
    counter::READ.set(counter::READ.get() + descriptors as u64);
    #[cfg(not(debug_assertions))]
    let _ = descriptors;
}

/// How many descriptors models on this thread have read so far. Counts only with debug assertions,
/// for tests and fuzzing.
#[cfg(debug_assertions)]
#[must_use]
pub fn descriptors_read() -> u64 {
    counter::READ.get()
}

/// The maximum number of descriptors that a turn of any model may read for `frames` frames of
/// `bytes` bytes in all. It adds up the frames' shares, the allowance, the frame that exceeds it
/// (two chains), and a look at a batch's buffers before each frame.
#[cfg(debug_assertions)]
#[must_use]
pub fn most_descriptors(frames: usize, bytes: usize) -> u64 {
    const LAST: usize = 2 * 1024;
    const LOOK: usize = 64;
    (SHARE * frames + bytes / BYTES + ALLOWANCE + LAST + LOOK * (frames + 1)) as u64
}

#[cfg(debug_assertions)]
mod counter {
    thread_local! {
        pub static READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fair_shares_cost_nothing_and_the_rest_ends_a_turn() {
        let mut allowance = Allowance::new();
        // Big packets of Linux, frames of 64 KiB in small buffers, and buffers of a few bytes each.
        for (descriptors, bytes) in
            [(19, 0), (64, 60), (60, 0x1_0000), (127, 1514), (1024, 0x1_0000)]
        {
            (0..1000).for_each(|_| allowance.charge(descriptors, bytes));
            assert!(!allowance.is_spent(), "{descriptors} for {bytes}");
        }
        let turns = (1..).find(|_| {
            allowance.charge(1024, 60);
            allowance.is_spent()
        });
        assert_eq!(turns, Some(3));
    }
}
