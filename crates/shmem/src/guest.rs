//! A guest's memory: ranges of guest-physical addresses over mappings, and the log of written
//! pages.
//!
//! ```text
//!   guest-physical   0 ........ 2 GiB      4 GiB ..... 6 GiB
//!                    | GuestRange |        | GuestRange |      sorted, apart from each other, immutable
//!                    v                     v
//!   mappings         Mapping A + offset    Mapping B + offset
//! ```
//!
//! An address from a guest is looked up and checked here, once. The result is a window inside a
//! mapping. A changed memory table is a new [`GuestMemory`].
//!
//! Ranges that follow each other in the guest's addresses and in a mapping become one: behind an
//! IOMMU, a guest's memory comes page by page.
//!
//! Only the functions whose names end in `to_read` find ranges that a device may read and not write
//! (vfio-user: firmware, and what a guest behind an IOMMU sends).
//!
//! A table may be a [copy](GuestMemory::into_copy): private memory at the guest's addresses, which
//! its owner keeps in step with the guest's memory.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Bytes, Mapping, Shareable, SharedSlice};

/// Bytes of a page in the log of written pages (vhost-user, "Migration").
const LOG_PAGE: u64 = 4096;

/// A range of a guest's memory.
#[derive(Clone, Debug)]
pub struct GuestRange {
    /// Guest-physical address of its first byte.
    pub guest: u64,
    /// The range's address in the guest's front end; the same as `guest` if no such addresses are
    /// used.
    pub user: u64,
    /// Bytes.
    pub size: u64,
    /// The mapping that contains the range.
    pub mapping: Arc<Mapping>,
    /// The range's offset in the mapping.
    pub offset: usize,
}

/// The reason why ranges do not make a memory table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuestMemoryError {
    /// Two ranges share guest-physical or front-end addresses.
    #[error(
        "Guest memory at {first:#x} and at {second:#x} overlap; each address may lie in one range"
    )]
    Overlap {
        /// Guest-physical start of one.
        first: u64,
        /// Guest-physical start of the other.
        second: u64,
    },
    /// A range has no bytes, or goes beyond the last address.
    #[error("Guest memory at {guest:#x} cannot have {size:#x} bytes")]
    Size {
        /// The range's guest-physical start.
        guest: u64,
        /// Its bytes.
        size: u64,
    },
    /// A range exceeds its mapping.
    #[error(
        "Guest memory at {guest:#x} goes beyond its file; the file is smaller than the table says"
    )]
    NotMapped {
        /// The guest-physical start of the range.
        guest: u64,
    },
}

/// A guest's memory table: immutable, with disjoint ranges.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// The writable ranges, ordered by guest-physical address.
    ranges: Box<[Entry]>,
    /// The ranges that must not be written.
    read_only: Box<[Entry]>,
    /// The mappings of all ranges, each once.
    mappings: Box<[Arc<Mapping>]>,
    /// True if the memory is a private copy of the guest's.
    copy: bool,
}

/// A checked range. The fields that lookups need come first, in one cache line.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    guest: u64,
    size: u64,
    at: *mut u8,
    user: u64,
    offset: usize,
    mapping: Arc<Mapping>,
    writable: bool,
}

// SAFETY: an address range kept mapped by the Arc; access goes through Bytes and atomics.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// A copy of the range in which the last address was found. The next lookup starts there.
#[derive(Clone, Copy, Debug)]
pub struct Near<'m> {
    guest: u64,
    size: u64,
    at: *mut u8,
    memory: &'m GuestMemory,
}

impl<'m> Near<'m> {
    /// The window on `len` bytes at guest-physical `at`; `None` if they do not lie in one range.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&mut self, at: u64, len: u32) -> Option<Bytes<'m>> {
        let (from, len) = (at.wrapping_sub(self.guest), u64::from(len));
        if from.saturating_add(len) > self.size {
            return self.look_elsewhere(at, len as u32);
        }
        // SAFETY: the range of `size` bytes at `self.at` lies in a mapping that the memory table
        // keeps, and the table is borrowed for 'm; from + len <= size.
        Some(unsafe { Bytes::from_raw(self.at.add(from as usize), len as usize) })
    }

    /// Like [`bytes`](Self::bytes), for bytes that are only read.
    #[inline]
    #[must_use]
    pub fn bytes_to_read(&mut self, at: u64, len: u32) -> Option<Bytes<'m>> {
        self.bytes(at, len).or_else(|| self.memory.read_only_bytes(at, len))
    }

    /// Shows the `len` bytes at guest-physical `at` to `visit`, one window for each range. Returns
    /// false if some of them are not memory; the windows before them are shown.
    pub fn for_each(&mut self, at: u64, len: u32, visit: impl FnMut(Bytes<'m>)) -> bool {
        self.pieces::<false>(at, len, visit)
    }

    /// Like [`for_each`](Self::for_each), for bytes that are only read.
    pub fn for_each_to_read(&mut self, at: u64, len: u32, visit: impl FnMut(Bytes<'m>)) -> bool {
        self.pieces::<true>(at, len, visit)
    }

    #[inline]
    fn pieces<const TO_READ: bool>(
        &mut self,
        mut at: u64,
        mut len: u32,
        mut visit: impl FnMut(Bytes<'m>),
    ) -> bool {
        loop {
            let whole = if TO_READ { self.bytes_to_read(at, len) } else { self.bytes(at, len) };
            if let Some(whole) = whole {
                visit(whole);
                return true;
            }
            let memory = self.memory;
            let entry = memory.entry(at);
            let entry = entry.or_else(|| find(&memory.read_only, at).filter(|_| TO_READ));
            let Some(entry) = entry else { return false };
            // The piece has less than `len` bytes, because a lookup of all of them failed.
            let left = (entry.size - (at - entry.guest)) as u32;
            let Some(piece) = entry.bytes(at, left) else { return false };
            visit(piece);
            // This cannot overflow: a range ends before the last address.
            (at, len) = (at + u64::from(left), len - left);
        }
    }

    #[cold]
    fn look_elsewhere(&mut self, at: u64, len: u32) -> Option<Bytes<'m>> {
        let (memory, entry) = (self.memory, self.memory.entry(at)?);
        let bytes = entry.bytes(at, len)?;
        *self = Self { guest: entry.guest, size: entry.size, at: entry.at, memory };
        Some(bytes)
    }
}

impl GuestMemory {
    /// A table of `ranges`, in any order.
    ///
    /// # Errors
    /// [`GuestMemoryError`] when they overlap or are not mapped.
    pub fn new(ranges: Vec<GuestRange>) -> Result<Self, GuestMemoryError> {
        Self::with_read_only(ranges, Vec::new())
    }

    /// A table of one whole mapping, at guest-physical `guest`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(mapping: Arc<Mapping>, guest: u64) -> Result<Self, GuestMemoryError> {
        let size = mapping.len() as u64;
        Self::new(vec![GuestRange { guest, user: guest, size, mapping, offset: 0 }])
    }

    /// Like [`new`](Self::new), with ranges that must not be written.
    ///
    /// # Errors
    /// As `new`; overlaps between both kinds are errors, too.
    pub fn with_read_only(
        ranges: Vec<GuestRange>,
        read_only: Vec<GuestRange>,
    ) -> Result<Self, GuestMemoryError> {
        let entries = |ranges: Vec<GuestRange>, writable| {
            ranges.into_iter().map(move |range| Entry::new(range, writable))
        };
        let all = entries(ranges, true).chain(entries(read_only, false));
        let mut entries: Vec<Entry> = all.collect::<Result<_, _>>()?;
        for key in [|entry: &Entry| entry.user, |entry: &Entry| entry.guest] {
            entries.sort_unstable_by_key(key);
            let overlap =
                entries.windows(2).find(|pair| key(&pair[1]) - key(&pair[0]) < pair[0].size);
            if let Some([first, second]) = overlap {
                return Err(GuestMemoryError::Overlap { first: first.guest, second: second.guest });
            }
        }
        entries.dedup_by(|next, entry| entry.takes(next));
        let mappings = mappings(&entries);
        let (ranges, read_only): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| e.writable);
        Ok(Self { ranges: ranges.into(), read_only: read_only.into(), mappings, copy: false })
    }

    /// Declares the table's private memory a copy of the guest's.
    #[must_use]
    pub fn into_copy(self) -> Self {
        Self { copy: true, ..self }
    }

    /// True if the memory is a copy of the guest's.
    #[inline]
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.copy
    }

    /// Zeroes the memory if it is a copy. Does nothing to shared memory.
    pub fn discard(&self) {
        self.mappings.iter().filter(|_| self.copy).for_each(|mapping| mapping.discard());
    }

    /// Shows the `len` bytes at guest-physical `at`, which a device may read, to `visit`, with
    /// their addresses, one window for each range. Returns false if some of them are not memory;
    /// the windows before them are shown.
    pub fn read_each(&self, at: u64, len: u32, mut visit: impl FnMut(u64, Bytes<'_>)) -> bool {
        if let Some(whole) = self.bytes_to_read(at, len) {
            visit(at, whole);
            return true;
        }
        let mut next = at;
        self.near().for_each_to_read(at, len, |bytes| {
            visit(next, bytes);
            next += bytes.len() as u64;
        })
    }

    /// Writes the guest's bytes at `at` into the copy, as far as that is memory.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        if self.copy {
            self.read_each(at, bytes.len() as u32, |address, window| {
                window.copy_in(bytes.get((address - at) as usize..).unwrap_or_default());
            });
        }
    }

    /// The window on `len` bytes at guest-physical `at`; `None` if they do not lie in one range.
    #[must_use]
    pub fn bytes(&self, at: u64, len: u32) -> Option<Bytes<'_>> {
        self.entry(at)?.bytes(at, len)
    }

    /// Like [`bytes`](Self::bytes), for bytes that are only read.
    #[must_use]
    pub fn bytes_to_read(&self, at: u64, len: u32) -> Option<Bytes<'_>> {
        self.bytes(at, len).or_else(|| self.read_only_bytes(at, len))
    }

    #[cold]
    fn read_only_bytes(&self, at: u64, len: u32) -> Option<Bytes<'_>> {
        find(&self.read_only, at)?.bytes(at, len)
    }

    /// For many lookups in a row, most of them in the same range as the one before.
    #[inline]
    #[must_use]
    pub fn near(&self) -> Near<'_> {
        let (guest, size, at) = match self.ranges.first() {
            Some(entry) => (entry.guest, entry.size, entry.at),
            None => (0, 0, core::ptr::dangling_mut()),
        };
        Near { guest, size, at, memory: self }
    }

    /// The `count` values of `T` at guest-physical `at`. `None` if they do not lie in one range, or
    /// are not aligned in this process.
    #[must_use]
    pub fn shared_slice<T: Shareable>(&self, at: u64, count: usize) -> Option<SharedSlice<T>> {
        let entry = self.entry(at)?;
        let bytes = u32::try_from(count.checked_mul(size_of::<T>())?).ok()?;
        entry.bytes(at, bytes)?;
        entry.mapping.shared_slice(entry.offset + usize::try_from(at - entry.guest).ok()?, count)
    }

    /// The guest-physical address for the front end's address `user` (ring addresses of
    /// vhost-user).
    #[must_use]
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        let inside = |entry: &&Entry| user.wrapping_sub(entry.user) < entry.size;
        let entry = self.ranges.iter().find(inside)?;
        Some(entry.guest + (user - entry.user))
    }

    /// True if some of the memory has failed: see `guard`.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.has_failed())
    }

    fn entry(&self, at: u64) -> Option<&Entry> {
        find(&self.ranges, at)
    }
}

/// Finds the range that contains `at`.
fn find(ranges: &[Entry], at: u64) -> Option<&Entry> {
    let position = ranges.partition_point(|entry| entry.guest <= at).checked_sub(1)?;
    ranges.get(position).filter(|entry| at - entry.guest < entry.size)
}

/// The mappings of ranges, each once.
fn mappings(entries: &[Entry]) -> Box<[Arc<Mapping>]> {
    let mut all: Vec<&Arc<Mapping>> = entries.iter().map(|entry| &entry.mapping).collect();
    // Most neighbours share a mapping, so few are left to be sorted.
    all.dedup_by(|a, b| Arc::ptr_eq(a, b));
    all.sort_unstable_by_key(|mapping| Arc::as_ptr(mapping));
    all.dedup_by(|a, b| Arc::ptr_eq(a, b));
    all.into_iter().cloned().collect()
}

impl Entry {
    /// Adds the range after this one to it if it follows in all respects.
    fn takes(&mut self, next: &Self) -> bool {
        let follows = next.guest - self.guest == self.size
            && next.user.wrapping_sub(self.user) == self.size
            && (next.offset as u64).wrapping_sub(self.offset as u64) == self.size
            && next.writable == self.writable
            && Arc::ptr_eq(&next.mapping, &self.mapping);
        if follows {
            self.size += next.size;
        }
        follows
    }

    fn new(range: GuestRange, writable: bool) -> Result<Self, GuestMemoryError> {
        let GuestRange { guest, user, size, mapping, offset } = range;
        let wraps = guest.checked_add(size).is_none() || user.checked_add(size).is_none();
        if size == 0 || wraps {
            return Err(GuestMemoryError::Size { guest, size });
        }
        let window = usize::try_from(size).ok().and_then(|size| mapping.bytes(offset, size));
        let at = window.ok_or(GuestMemoryError::NotMapped { guest })?.as_ptr();
        Ok(Self { guest, size, at, user, offset, mapping, writable })
    }

    #[inline(always)]
    fn bytes(&self, at: u64, len: u32) -> Option<Bytes<'_>> {
        let from = at.wrapping_sub(self.guest);
        if from.saturating_add(u64::from(len)) > self.size {
            return None;
        }
        // SAFETY: the range of `size` bytes at `self.at` lies in the mapping (checked when made),
        // which lives as long as self; from + len <= size.
        Some(unsafe { Bytes::from_raw(self.at.add(from as usize), len as usize) })
    }
}

/// The log of pages written while a guest migrates (vhost-user, "Migration"). It has one bit for
/// each 4 KiB page, by guest-physical address. The front end reads and clears it.
#[derive(Debug)]
pub struct DirtyLog {
    /// # Protocol: `DirtyLog`
    /// - Writer: the thread that wrote a page
    /// - Reader: front end
    /// - Ordering: or `SeqCst`, after the bytes
    /// - Partner: the page
    /// - Without it: a page is missing in the migrated guest
    /// - Shown by: `nic` tests `offloads`
    words: SharedSlice<AtomicU64>,
}

impl DirtyLog {
    /// The log in the `len` bytes at `offset` of `mapping`. `None` if they are not all mapped, or
    /// not whole 64-bit words.
    #[must_use]
    pub fn new(mapping: &Arc<Mapping>, offset: usize, len: usize) -> Option<Self> {
        let words = mapping.shared_slice(offset, len / 8).filter(|_| len.is_multiple_of(8))?;
        Some(Self { words })
    }

    /// Logs the `len` bytes at guest-physical `at`, after they were written. Pages beyond the log's
    /// end are skipped.
    pub fn mark(&self, at: u64, len: u64) {
        let Some(end) = len.checked_sub(1).and_then(|last| at.checked_add(last)) else { return };
        let pages = 64 * self.words.len() as u64;
        for page in at / LOG_PAGE..(end / LOG_PAGE + 1).min(pages) {
            let bit = (1u64 << (page % 64)).to_le();
            // The bit is set without reading it first. The front end could clear a set bit and copy
            // the page before the write became visible.
            self.words[(page / 64) as usize].fetch_or(bit, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(guest: u64, size: u64, mapping: &Arc<Mapping>, offset: usize) -> GuestRange {
        GuestRange { guest, user: guest + (1 << 40), size, mapping: Arc::clone(mapping), offset }
    }

    #[test]
    fn addresses_are_found_in_their_ranges_only() {
        let map = Mapping::private(0x4000).unwrap();
        (0..4).for_each(|page| map.bytes(page * 0x1000, 0x1000).unwrap().fill(page as u8));
        let ranges =
            vec![range(0x10_0000, 0x2000, &map, 0x2000), range(0x1000, 0x1000, &map, 0x1000)];
        let memory = GuestMemory::new(ranges).unwrap();
        let mut near = memory.near();
        let mut at = |at, len| {
            let found = memory.bytes(at, len).map(Bytes::to_vec);
            assert_eq!(near.bytes(at, len).map(Bytes::to_vec), found);
            found
        };
        assert_eq!(at(0x1000, 2), Some(vec![1; 2]));
        assert_eq!(at(0x10_1fff, 1), Some(vec![3]));
        assert_eq!(at(0x10_0000, 0x2000).unwrap()[0x0fff..0x1001], [2, 3]);
        for (outside, len) in [
            (0xfff, 1),
            (0x2000, 1),
            (0x1fff, 2),
            (0x10_1fff, 2),
            (0x10_2000, 1),
            (u64::MAX, 1),
            (u64::MAX, u32::MAX),
            (0, u32::MAX),
        ] {
            assert_eq!(at(outside, len), None, "{outside:#x}");
        }
        assert_eq!(memory.guest_address((1 << 40) + 0x10_0004), Some(0x10_0004));
        assert_eq!(memory.guest_address((1 << 40) + 0x2000), None);
        assert_eq!(memory.guest_address(0x1000), None);
        assert!(memory.shared_slice::<AtomicU64>(0x1008, 2).is_some());
        assert!(memory.shared_slice::<AtomicU64>(0x1004, 2).is_none(), "misaligned");
        assert!(memory.shared_slice::<AtomicU64>(0x1ff8, 2).is_none(), "half outside");
    }

    #[test]
    fn what_is_only_to_be_read_is_found_by_readers_alone() {
        let map = Mapping::private(0x4000).unwrap();
        map.bytes(0x1000, 0x1000).unwrap().fill(7);
        let (ranges, read_only) =
            (vec![range(0x1000, 0x1000, &map, 0)], vec![range(0x2000, 0x1000, &map, 0x1000)]);
        let memory = GuestMemory::with_read_only(ranges.clone(), read_only).unwrap();
        assert!(memory.bytes(0x2000, 4).is_none() && memory.near().bytes(0x2000, 4).is_none());
        assert!(memory.shared_slice::<AtomicU64>(0x2000, 1).is_none());
        assert!(!memory.near().for_each(0x1ffe, 4, |_| ()));
        for found in [memory.bytes_to_read(0x2ffe, 2), memory.near().bytes_to_read(0x2ffe, 2)] {
            assert_eq!(found.map(Bytes::to_vec), Some(vec![7; 2]));
        }
        assert!(memory.bytes_to_read(0x1000, 4).is_some());
        assert!(memory.bytes_to_read(0x2fff, 2).is_none());
        let over = GuestMemory::with_read_only(ranges, vec![range(0x1fff, 0x1000, &map, 0)]);
        assert!(matches!(over, Err(GuestMemoryError::Overlap { .. })));
    }

    #[test]
    fn ranges_that_follow_each_other_in_all_respects_become_one() {
        let (map, other) = (Mapping::private(0x8000).unwrap(), Mapping::private(0x8000).unwrap());
        let page = |guest: u64, page: usize| range(guest, 0x1000, &map, page * 0x1000);
        let pieces = |ranges: Vec<GuestRange>, read_only: Vec<GuestRange>| {
            let memory = GuestMemory::with_read_only(ranges, read_only).unwrap();
            let entries = memory.ranges.iter().chain(&memory.read_only);
            entries.map(|entry| (entry.guest, entry.size)).collect::<Vec<_>>()
        };
        let follow = vec![page(0x3000, 2), page(0x1000, 0), page(0x2000, 1)];
        assert_eq!(pieces(follow.clone(), vec![]), [(0x1000, 0x3000)]);
        assert_eq!(pieces(vec![], follow.clone()), [(0x1000, 0x3000)]);
        // Without the page in the middle, with one that is only read, and elsewhere.
        let (first, last) = ((0x1000, 0x1000), (0x3000, 0x1000));
        let ends = vec![follow[0].clone(), follow[1].clone()];
        assert_eq!(pieces(ends.clone(), vec![]), [first, last]);
        assert_eq!(pieces(ends.clone(), vec![page(0x2000, 1)]), [first, last, (0x2000, 0x1000)]);
        let elsewhere = range(0x2000, 0x1000, &other, 0x1000);
        let with = |middle: GuestRange| pieces([ends.clone(), vec![middle]].concat(), vec![]);
        assert_eq!(with(elsewhere), [first, (0x2000, 0x1000), last]);
        assert_eq!(with(page(0x2000, 4)), [first, (0x2000, 0x1000), last]);
        let other_user = GuestRange { user: 7 << 40, ..page(0x2000, 1) };
        assert_eq!(with(other_user), [first, (0x2000, 0x1000), last]);
        // Bytes and words of one piece are found in it.
        let memory = GuestMemory::new(follow).unwrap();
        map.bytes(0xffe, 4).unwrap().copy_in(&[1, 2, 3, 4]);
        assert_eq!(memory.near().bytes(0x1ffe, 4).unwrap().to_vec(), [1, 2, 3, 4]);
        assert_eq!(memory.shared_slice::<AtomicU64>(0x1000, 0x600).unwrap().len(), 0x600);
        assert!(memory.bytes(0x1000, 0x3001).is_none());
        assert_eq!(memory.guest_address((1 << 40) + 0x3fff), Some(0x3fff));
        assert_eq!(memory.mappings.len(), 1);
    }

    #[test]
    fn what_is_read_may_go_on_in_memory_that_is_only_read() {
        let map = Mapping::private(0x4000).unwrap();
        (0..4).for_each(|page| map.bytes(page * 0x1000, 0x1000).unwrap().fill(page as u8));
        let memory = GuestMemory::with_read_only(
            vec![range(0x1000, 0x1000, &map, 0x3000)],
            vec![range(0x2000, 0x1000, &map, 0), range(0x3000, 0x1000, &map, 0x2000)],
        )
        .unwrap();
        let read = |at, len| {
            let mut seen = Vec::new();
            let visit = |w: Bytes<'_>| seen.push((w.len(), w.read::<u8>(0).unwrap()));
            let whole = memory.near().for_each_to_read(at, len, visit);
            (seen, whole)
        };
        assert_eq!(read(0x1fff, 0x1002), (vec![(1, 3), (0x1000, 0), (1, 2)], true));
        assert_eq!(read(0x2ffe, 4), (vec![(2, 0), (2, 2)], true));
        assert_eq!(read(0x3ffe, 4), (vec![(2, 2)], false));
        assert!(!memory.near().for_each(0x1fff, 2, |_| ()));
        let mut seen = Vec::new();
        assert!(memory.read_each(0x1ffe, 4, |at, bytes| seen.push((at, bytes.len()))));
        assert_eq!(seen, [(0x1ffe, 2), (0x2000, 2)]);
    }

    #[test]
    fn a_buffer_may_go_from_one_range_into_the_next() {
        let map = Mapping::private(0x4000).unwrap();
        map.all().fill(1);
        map.bytes(0, 0x1000).unwrap().fill(2);
        let ranges = vec![range(0x1000, 0x1000, &map, 0x1000), range(0x2000, 0x1000, &map, 0)];
        let memory = GuestMemory::new(ranges).unwrap();
        let windows = |at, len| {
            let mut seen = Vec::new();
            let whole = memory.near().for_each(at, len, |w| seen.push((w.len(), w.read::<u8>(0))));
            (seen, whole)
        };
        assert_eq!(windows(0x1ffe, 5), (vec![(2, Some(1)), (3, Some(2))], true));
        assert_eq!(windows(0x1ffe, 2), (vec![(2, Some(1))], true));
        assert_eq!(windows(0x1fff, 0x1001), (vec![(1, Some(1)), (0x1000, Some(2))], true));
        assert_eq!(windows(0x1fff, 0x1002), (vec![(1, Some(1)), (0x1000, Some(2))], false));
        assert_eq!(windows(0xfff, 2), (vec![], false));
    }

    #[test]
    fn tables_that_overlap_or_are_not_mapped_are_refused() {
        let map = Mapping::private(0x4000).unwrap();
        let table = |ranges| GuestMemory::new(ranges).map(|_| ());
        let overlap = |first, second| Err(GuestMemoryError::Overlap { first, second });
        let low = || range(0x1000, 0x2000, &map, 0);
        assert_eq!(table(vec![low(), range(0x2fff, 0x1000, &map, 0)]), overlap(0x1000, 0x2fff));
        assert_eq!(table(vec![low(), low()]), overlap(0x1000, 0x1000));
        assert_eq!(table(vec![low(), range(0x3000, 0x1000, &map, 0)]), Ok(()));
        let same_user = GuestRange { user: low().user, ..range(0x9000, 0x1000, &map, 0) };
        assert!(matches!(table(vec![low(), same_user]), Err(GuestMemoryError::Overlap { .. })));
        let short = GuestMemoryError::NotMapped { guest: 0 };
        assert_eq!(table(vec![range(0, 0x2000, &map, 0x3000)]), Err(short));
        for (guest, size) in [(0, 0), (u64::MAX - 10, 0x1000), (0, u64::MAX)] {
            let refused = table(
                vec![GuestRange { user: 0, ..range(0, size, &map, 0) }; 1]
                    .into_iter()
                    .map(|range| GuestRange { guest, ..range })
                    .collect(),
            );
            assert!(refused.is_err(), "{guest:#x} {size:#x}");
        }
    }

    /// Whatever a guest's addresses are, no byte outside the log is written, and the log misses no
    /// page.
    #[test]
    fn a_log_is_written_within_its_bounds() {
        const AT: usize = 4096 - 24;
        const LEN: usize = 24;
        const PAGES: u64 = 8 * LEN as u64;
        let edges = [0, 1, LOG_PAGE - 1, LOG_PAGE, PAGES * LOG_PAGE - 1, PAGES * LOG_PAGE, 1 << 63];
        let ends = [u64::MAX - LOG_PAGE, u64::MAX - 1, u64::MAX];
        for at in edges.into_iter().chain(ends) {
            for len in edges.into_iter().chain(ends) {
                let map = Mapping::private(8192).unwrap();
                DirtyLog::new(&map, AT, LEN).unwrap().mark(at, len);
                let bytes = map.all().to_vec();
                let beside = bytes[..AT].iter().chain(&bytes[AT + LEN..]);
                assert!(beside.copied().all(|byte| byte == 0), "{at:#x} {len:#x}");
                let is_marked = |page: u64| bytes[AT + page as usize / 8] >> (page % 8) & 1 == 1;
                for page in 0..PAGES {
                    let (from, to) = (page * LOG_PAGE, (page + 1) * LOG_PAGE);
                    // Bytes beyond the last address lie in no range.
                    let last = len.checked_sub(1).and_then(|last| at.checked_add(last));
                    let wanted = last.is_some_and(|last| at < to && from <= last);
                    assert_eq!(is_marked(page), wanted, "page {page} of {at:#x} {len:#x}");
                }
            }
        }
        let map = Mapping::private(4096).unwrap();
        for (at, len) in [(0, 12), (4, 8), (4088, 16), (4096, 8), (usize::MAX - 7, 8), (0, 0)] {
            assert!(DirtyLog::new(&map, at, len).is_none(), "{at} {len}");
        }
    }

    #[test]
    fn written_pages_are_in_the_log() {
        let map = Mapping::private(4096).unwrap();
        let log = DirtyLog::new(&map, 8, 16).unwrap();
        log.mark(0x1fff, 2);
        log.mark(64 * 4096, 1);
        log.mark(5, 0);
        log.mark(127 * 4096, 1 << 30);
        log.mark(u64::MAX, 1);
        log.mark(u64::MAX, u64::MAX);
        let mut want = [0; 16];
        (want[0], want[8], want[15]) = (0b110, 1, 0x80);
        assert_eq!(map.bytes(8, 16).unwrap().to_vec(), want);
        assert_eq!(map.bytes(24, 8).unwrap().to_vec(), [0; 8]);
    }
}
