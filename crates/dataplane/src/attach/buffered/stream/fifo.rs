//! Bytes on their way through a stream, in memory that outlives a data process: its successor goes on in
//! the middle of a frame.
//!
//! The cursors are stored after what they tell of. Around system calls and moves, which change bytes and
//! cursors at two moments, the buffer is marked: a process that dies in between leaves the mark, and its
//! successor knows that it does not know.
#![allow(unsafe_code, reason = "state memory is lent as bytes to system calls")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use shmem::{Mapping, Shareable, Shared};

/// Bytes of the memory of a buffer of [`Fifo::ROOM`] bytes, cursors included.
pub const MEMORY: usize = HEADER + Fifo::ROOM;
/// Bytes before them.
const HEADER: usize = 64;

/// Where a buffer stands, as a successor finds it.
#[repr(C, align(64))]
struct Cursors {
    taken: AtomicU32,
    filled: AtomicU32,
    /// 1 while bytes or cursors are changing.
    unsettled: AtomicU32,
}

// SAFETY: atomic words only.
unsafe impl Shareable for Cursors {}

/// Bytes that came and were not taken yet, in one piece. Public for fuzzing.
pub struct Fifo {
    map: Arc<Mapping>,
    /// Where its bytes are.
    at: usize,
    cursors: Shared<Cursors>,
    taken: usize,
    filled: usize,
    /// It is marked.
    unsettled: bool,
}

impl std::fmt::Debug for Fifo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fifo({}..{})", self.taken, self.filled)
    }
}

impl Fifo {
    /// Bytes it holds at most.
    pub const ROOM: usize = 124 << 10;

    /// The buffer whose [`MEMORY`] bytes are at `at` of the mapping, and which nobody else uses. A
    /// successor (`resume`) finds it as it was; `None` if it cannot know how that is, or the mapping is
    /// too small.
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

    /// An empty one in memory of this process.
    ///
    /// # Errors
    /// There is no memory.
    pub fn private() -> Result<Self, shmem::RegionError> {
        let map = Mapping::private(MEMORY)?;
        let none = || shmem::RegionError::Map { len: MEMORY, source: rustix::io::Errno::INVAL };
        Self::open(&map, 0, false).ok_or_else(none)
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self.map.bytes(self.at, Self::ROOM) {
            // SAFETY: these bytes are this buffer's alone (`open`), which lends them by itself only; the
            // supervisor, which maps them too, does not look at them.
            Some(bytes) => unsafe { bytes.exclusive() },
            None => &mut [],
        }
    }

    /// What came and was not taken.
    pub fn there(&mut self) -> &mut [u8] {
        let (taken, filled) = (self.taken, self.filled);
        &mut self.bytes()[taken..filled]
    }

    /// True if nothing is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == self.filled
    }

    /// Takes the first `bytes` of what is there, or all of it. They stay in their place until the next
    /// [`space`](Self::space). To be [settled](Self::settle).
    pub fn take(&mut self, bytes: usize) -> &mut [u8] {
        let from = self.taken;
        self.taken = from.saturating_add(bytes).min(self.filled);
        let to = self.taken;
        &mut self.bytes()[from..to]
    }

    /// Where more bytes go, behind what is there. Say how many came with [`fill`](Self::fill). From now
    /// on until it is [settled](Self::settle) the buffer is marked.
    pub fn space(&mut self) -> &mut [u8] {
        self.unsettle();
        let (taken, filled) = (self.taken, self.filled);
        if taken > 0 {
            self.bytes().copy_within(taken..filled, 0);
            (self.taken, self.filled) = (0, filled - taken);
        }
        let filled = self.filled;
        &mut self.bytes()[filled..]
    }

    /// So many bytes came. To be [settled](Self::settle).
    pub fn fill(&mut self, bytes: usize) {
        self.filled = (self.filled + bytes).min(Self::ROOM);
    }

    /// Bytes or cursors are about to change.
    pub fn unsettle(&mut self) {
        if !self.unsettled {
            self.unsettled = true;
            self.cursors.unsettled.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// Tells a successor how it stands.
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
        assert_eq!(Fifo::open(&map, MEMORY, true).unwrap().there(), b"llo");
        let mut fifo = Fifo::open(&map, MEMORY, true).unwrap();
        let space = fifo.space();
        space[..2].copy_from_slice(b"w!");
        assert_eq!(space.len(), Fifo::ROOM - 3);
        fifo.fill(2);
        fifo.settle();
        assert_eq!(Fifo::open(&map, MEMORY, true).unwrap().there(), b"llow!");
        assert!(Fifo::open(&map, MEMORY, false).unwrap().is_empty());
        assert!(Fifo::open(&map, 4 * MEMORY, false).is_none(), "beyond the end");
    }
}
