//! The ranges of a session in a memory file, which outlives this process.
//!
//! A front end of a guest behind an IOMMU sends a message for each page that the guest maps. What
//! the supervisor keeps of a session is compared and sent after each message, so the ranges are not
//! a part of that. The supervisor holds the file with them, and a process writes a range there at
//! the same cost however many there are.
//!
//! A record alone does not count. The session's state says up to which number records count, and
//! what was unmapped last: see [`Commit`]. So a process that dies between two stores leaves either
//! all of a message's effects, or none.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use jail::strangers::Descriptor;
use serde::{Deserialize, Serialize};
use shmem::sync::AtomicU64;
use shmem::{Mapping, Memfd, Pages, RegionError, SharedSlice};

use super::MAX_RANGES;
use crate::attach::guest::memory::Region;

/// Words of a record: number, guest-physical address, size, offset in the file, file and flags.
const WORDS: usize = 5;
/// Flags beside the number of the file.
const WRITABLE: u64 = 1 << 32;
const HAS_FILE: u64 = 1 << 33;

/// Says which records count. It is a part of the session's state, which changes at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The number of the next range. Records with this number or a later one do not count.
    pub next: u64,
    /// What the last message to unmap memory removed: from this address to that one, ranges with
    /// numbers before this one.
    pub unmapped: (u64, u64, u64),
}

impl Commit {
    fn counts(&self, entry: &Entry) -> bool {
        let (from, to, before) = self.unmapped;
        let end = entry.region.guest.saturating_add(entry.region.size);
        let is_gone = entry.number < before && from <= entry.region.guest && end <= to;
        entry.number < self.next && !is_gone
    }
}

/// A range, as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// A number that no earlier range of the session has had.
    pub number: u64,
    /// Where the range is.
    pub region: Region,
    /// The device may write it.
    pub writable: bool,
    /// The number of its file. A range without a file is not mapped.
    pub file: Option<u32>,
}

/// The records of a session.
#[derive(Debug)]
pub struct Record {
    file: Arc<Descriptor>,
    /// # Protocol: `Record.words` (vfio-user, in a memory file)
    /// - Writer: control thread
    /// - Reader: a successor, as it starts
    /// - Ordering: a record's number release, after its other words / relaxed: no two processes at
    ///   a time
    /// - Partner: the session's state at the supervisor ([`Commit`])
    /// - Without it: a successor maps a range that is half written
    /// - Shown by: `ranges` tests
    words: SharedSlice<AtomicU64>,
    /// Free records before `used`.
    free: Vec<u32>,
    /// No later record was ever used.
    used: u32,
    /// Records of ranges that were unmapped by the last message. They stay until its effects are
    /// kept.
    gone: Vec<u32>,
}

impl Record {
    /// A file without ranges. Its pages are allocated as they are used.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> Result<Self, RegionError> {
        let file = Memfd::create("toklat ranges", 8 * WORDS * MAX_RANGES, Pages::Small)?;
        Self::of(Arc::new(Descriptor::ours(file.into_fd())))
    }

    fn of(file: Arc<Descriptor>) -> Result<Self, RegionError> {
        let mapping = Mapping::sealed(std::os::fd::AsFd::as_fd(&*file))?;
        let small = || RegionError::TooSmall { len: mapping.len() };
        let words = mapping.shared_slice(0, WORDS * MAX_RANGES).ok_or_else(small)?;
        Ok(Self { file, words, free: Vec::new(), used: 0, gone: Vec::new() })
    }

    /// A predecessor's file. Returns the ranges that count, with their places; others are removed.
    ///
    /// # Errors
    /// The kernel's, or the file is too small.
    pub fn adopt(
        file: Arc<Descriptor>,
        commit: &Commit,
    ) -> Result<(Self, Vec<(u32, Entry)>), RegionError> {
        let mut this = Self::of(file)?;
        let mut found = Vec::new();
        for place in 0..MAX_RANGES as u32 {
            let Some(entry) = this.entry(place) else { continue };
            let unused = this.used..place;
            this.free.extend(unused);
            this.used = place + 1;
            if commit.counts(&entry) {
                found.push((place, entry));
            } else {
                this.gone.push(place);
            }
        }
        this.settle();
        Ok((this, found))
    }

    /// The file, for the supervisor.
    #[must_use]
    pub fn file(&self) -> &Arc<Descriptor> {
        &self.file
    }

    /// Enters a range; returns its place. `None` if there is no room.
    pub fn enter(&mut self, entry: &Entry) -> Option<u32> {
        let new = (self.used < MAX_RANGES as u32).then_some(self.used);
        let place = self.free.pop().or(new)?;
        self.used = self.used.max(place + 1);
        let Entry { number, region, writable, file } = *entry;
        let flags = if writable { WRITABLE } else { 0 };
        let file = file.map_or(0, |file| u64::from(file) | HAS_FILE);
        let words = [region.guest, region.size, region.offset, file | flags];
        for (at, word) in (1..).zip(words) {
            self.words[WORDS * place as usize + at].store(word, Ordering::Relaxed);
        }
        // Numbers begin with 0, which stands for none here.
        self.words[WORDS * place as usize].store(number + 1, Ordering::Release);
        Some(place)
    }

    /// Notes that a range was unmapped. Its record stays until the next [`settle`](Self::settle).
    pub fn remove(&mut self, place: u32) {
        self.gone.push(place);
    }

    /// Clears the records of ranges that were unmapped. The effects of that are kept by now.
    pub fn settle(&mut self) {
        for place in &self.gone {
            self.words[WORDS * *place as usize].store(0, Ordering::Release);
        }
        self.free.append(&mut self.gone);
    }

    fn entry(&self, place: u32) -> Option<Entry> {
        let word = |at: usize| self.words[WORDS * place as usize + at].load(Ordering::Relaxed);
        let number = word(0).checked_sub(1)?;
        let (guest, size, offset, flags) = (word(1), word(2), word(3), word(4));
        let region = Region { guest, size, user: guest, offset };
        let file = (flags & HAS_FILE != 0).then_some(flags as u32);
        Some(Entry { number, region, writable: flags & WRITABLE != 0, file })
    }
}
