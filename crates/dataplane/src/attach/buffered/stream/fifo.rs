//! The bytes of a stream in transit, in memory that outlives a data process. Its successor
//! continues in the middle of a frame.
//!
//! Cursors are stored after the bytes that they cover. System calls and moves change bytes and
//! cursors at different times, so the buffer is marked around them. If the process dies in between,
//! the mark tells the successor that the buffer's state is ambiguous.
#![allow(unsafe_code, reason = "state memory is lent as bytes to system calls")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use shmem::{Mapping, Shareable, Shared};

/// Bytes of memory for a buffer of [`Fifo::ROOM`] bytes, cursors included.
pub const MEMORY: usize = HEADER + Fifo::ROOM;
/// Bytes before the buffer's content.
const HEADER: usize = 64;

/// The position of a buffer, as a successor finds it.
#[repr(C, align(64))]
struct Cursors {
    taken: AtomicU32,
    filled: AtomicU32,
    /// 1 while bytes or cursors are being changed.
    unsettled: AtomicU32,
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for Cursors {}

/// A contiguous buffer of bytes that have arrived and were not taken yet. Public for fuzzing.
pub struct Fifo {
    map: Arc<Mapping>,
    /// Where the buffer's bytes are.
    at: usize,
    cursors: Shared<Cursors>,
    taken: usize,
    filled: usize,
    /// The cursors are marked as unsettled.
    unsettled: bool,
}

impl std::fmt::Debug for Fifo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fifo({}..{})", self.taken, self.filled)
    }
}

impl Fifo {
    /// The most bytes that the buffer holds.
    pub const ROOM: usize = 124 << 10;

    /// Opens the buffer of [`MEMORY`] bytes at `at` of the mapping, which no other code uses. A
    /// successor (`resume`) continues with its content. `None` if that is ambiguous, or the mapping
    /// is too small.
    #[must_use]
    pub fn open(map: &Arc<Mapping>, at: usize, resume: bool) -> Option<Self> {
        let cursors: Shared<Cursors> = map.shared(at)?;
        map.bytes(at, MEMORY)?;
        if !resume {
            cursors.taken.store(0, Ordering::Relaxed);
            cursors.filled.store(0, Ordering::Relaxed);
            cursors.unsettled.store(0, Ordering::Relaxed);
        }
        let taken = cursors.taken.load(Ordering::Relaxed) as usize;
        let filled = cursors.filled.load(Ordering::Relaxed) as usize;
        let settled = cursors.unsettled.load(Ordering::Relaxed) == 0;
        (settled && taken <= filled && filled <= Self::ROOM).then_some(Self {
            map: Arc::clone(map),
            at: at + HEADER,
            cursors,
            taken,
            filled,
            unsettled: false,
        })
    }

    /// An empty buffer in memory of this process.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn private() -> Result<Self, shmem::RegionError> {
        let map = Mapping::private(MEMORY)?;
        let none = || shmem::RegionError::Map { len: MEMORY, source: rustix::io::Errno::INVAL };
        Self::open(&map, 0, false).ok_or_else(none)
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self.map.bytes(self.at, Self::ROOM) {
            // SAFETY: these bytes belong to this buffer alone (`open`), which lends them only while
            // it is borrowed. The supervisor maps them too, but does not access them.
            Some(bytes) => unsafe { bytes.exclusive() },
            None => &mut [],
        }
    }

    /// The bytes that are not taken yet.
    pub fn unread(&mut self) -> &mut [u8] {
        let (taken, filled) = (self.taken, self.filled);
        &mut self.bytes()[taken..filled]
    }

    /// True if the buffer is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == self.filled
    }

    /// Takes the first `bytes` bytes, or all if there are fewer. They stay in place until the next
    /// [`space`](Self::space). The caller must [settle](Self::settle) the buffer afterwards.
    pub fn take(&mut self, bytes: usize) -> &mut [u8] {
        let from = self.taken;
        self.taken = from.saturating_add(bytes).min(self.filled);
        let to = self.taken;
        &mut self.bytes()[from..to]
    }

    /// The space for more bytes, after those that are there. Call [`fill`](Self::fill) with the
    /// number that arrived. The buffer is marked until it is [settled](Self::settle).
    pub fn space(&mut self) -> &mut [u8] {
        self.mark_changing();
        let (taken, filled) = (self.taken, self.filled);
        if taken > 0 {
            self.bytes().copy_within(taken..filled, 0);
            (self.taken, self.filled) = (0, filled - taken);
        }
        let filled = self.filled;
        &mut self.bytes()[filled..]
    }

    /// Notes that this many bytes arrived. The caller must [settle](Self::settle) the buffer
    /// afterwards.
    pub fn fill(&mut self, bytes: usize) {
        self.filled = (self.filled + bytes).min(Self::ROOM);
    }

    /// Marks the buffer, because bytes or cursors are about to change.
    pub fn mark_changing(&mut self) {
        if !self.unsettled {
            self.unsettled = true;
            self.cursors.unsettled.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// Stores the cursors for a successor, and clears the mark.
    pub fn settle(&mut self) {
        self.unsettled = false;
        self.cursors.taken.store(self.taken as u32, Ordering::Relaxed);
        self.cursors.filled.store(self.filled as u32, Ordering::Release);
        self.cursors.unsettled.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_finds_what_was_left_unless_it_was_changing() {
        let map = Mapping::private(2 * MEMORY).unwrap();
        let mut fifo = Fifo::open(&map, MEMORY, false).unwrap();
        fifo.space()[..5].copy_from_slice(b"hello");
        fifo.fill(5);
        assert!(Fifo::open(&map, MEMORY, true).is_none(), "it died in a system call");
        fifo.settle();
        fifo.take(2);
        fifo.settle();
        assert_eq!(Fifo::open(&map, MEMORY, true).unwrap().unread(), b"llo");
        let mut fifo = Fifo::open(&map, MEMORY, true).unwrap();
        let space = fifo.space();
        space[..2].copy_from_slice(b"w!");
        assert_eq!(space.len(), Fifo::ROOM - 3);
        fifo.fill(2);
        fifo.settle();
        assert_eq!(Fifo::open(&map, MEMORY, true).unwrap().unread(), b"llow!");
        assert!(Fifo::open(&map, MEMORY, false).unwrap().is_empty());
        assert!(Fifo::open(&map, 4 * MEMORY, false).is_none(), "beyond the end");
    }
}
