//! The front end's record of buffers that a queue has taken and not used yet (vhost-user, "Inflight
//! I/O tracking"). A process that serves the queue next, and is no successor of this data process,
//! learns two things from it: where the queue stands, and which buffers the driver waits for.
//!
//! ```text
//!   split:   features u64 | version, size, last_batch_head, used_idx u16 | per head: inflight u8, -, next u16 | counter u64
//!   packed:  features u64 | version, size, free_head, old_free_head u16 | used_idx, old_used_idx u16, wraps u8 | -
//!            | per descriptor: inflight u8, -, next, last, num u16 | counter u64 | id, flags u16, len u32 | address u64
//! ```
//!
//! Buffers are used in the order in which they were taken. A transmit queue's buffers are marked
//! from the time they are gathered until their batch is published. A receive queue takes and uses
//! its buffers under one lock. So none is in flight between two deliveries, and none is marked.
//!
//! While a queue runs, it only writes the area. It reads the area once, with checks, when it
//! [adopts](Inflight::adopted) it, because the contents are untrusted input from the front end. A
//! queue without an area pays for a branch per batch.

mod packed;
mod split;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shmem::{Mapping, SharedSlice};

pub(super) use self::packed::{Adopted, Journal as PackedJournal};
pub(super) use self::split::Journal as SplitJournal;

const VERSION: u16 = 1;
/// Each queue's area is aligned to this many bytes.
const ALIGN: usize = 64;
/// Bytes of a word; no field crosses a word.
const WORD: usize = 8;
/// The mark of a buffer in flight.
const INFLIGHT: u64 = 1;

/// The area of one queue.
#[derive(Clone, Debug)]
pub struct Inflight {
    /// # Protocol: words of an area for buffers in flight
    /// - Writer: control thread, as a queue starts; then the holder of that queue's half
    /// - Reader: the front end's next back end
    /// - Ordering: relaxed, release fences between the steps of the specification: marked before
    ///   they are lent; listed before the used index, unmarked after it
    /// - Partner: used ring
    /// - Without it: what is in flight is given back twice, or never
    /// - Shown by: `nic` tests `inflight`
    words: SharedSlice<AtomicU64>,
    size: u16,
    adopt: bool,
}

/// Words before the entries, and words of an entry.
const fn shape(packed: bool) -> (usize, usize) {
    if packed { (4, 4) } else { (2, 2) }
}

impl Inflight {
    /// Bytes of the area of a queue of this size.
    #[must_use]
    pub const fn bytes(size: u16, packed: bool) -> usize {
        let (head, entry) = shape(packed);
        ((head + entry * size as usize) * WORD).next_multiple_of(ALIGN)
    }

    /// The area at byte `at` of a mapping; `None` if it is not inside, or has another version or
    /// size.
    #[must_use]
    pub fn new(mapping: &Arc<Mapping>, at: usize, size: u16, packed: bool) -> Option<Self> {
        at.checked_add(Self::bytes(size, packed)).filter(|end| *end <= mapping.len())?;
        let (head, entry) = shape(packed);
        let words = mapping.shared_slice(at, head + entry * usize::from(size))?;
        let this = Self { words, size, adopt: false };
        let [version, written, ..] = this.fields(1);
        // A new area, which no process has used yet, is all zero.
        (version == 0 || version == VERSION && written == size).then_some(this)
    }

    /// Marks the area as another process's: the queue must give back what it has in flight.
    #[must_use]
    pub fn adopted(mut self) -> Self {
        self.adopt = true;
        self
    }

    /// Entries.
    pub(super) fn size(&self) -> u16 {
        self.size
    }

    fn is_to_adopt(&self) -> bool {
        self.adopt && self.fields(1)[0] == VERSION
    }

    /// Four fields of 16 bits.
    fn fields(&self, word: usize) -> [u16; 4] {
        fields(self.word(word))
    }

    fn word(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
    }
}

/// The fields of a word.
fn fields(word: u64) -> [u16; 4] {
    [0, 16, 32, 48].map(|shift| (word >> shift) as u16)
}

/// The word of these fields.
fn word(fields: [u16; 4]) -> u64 {
    fields.into_iter().rev().fold(0, |word, field| word << 16 | u64::from(field))
}
