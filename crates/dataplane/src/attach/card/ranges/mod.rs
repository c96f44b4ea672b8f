//! The ranges of a guest's memory: by address, over mapped windows of the front end's files.
//!
//! ```text
//!   guest addresses   | Range |   | Range | Range |      by address; a page each behind an IOMMU
//!                         \         /        /
//!   windows             [ Window ........ ]   ...        a mapping: of the range alone, or wide
//!   files               [ File ................. ]       one descriptor, whatever was sent with ranges
//! ```
//!
//! A front end of a guest behind an IOMMU (QEMU) sends a message for each page that the guest maps.
//! So a message costs no more when there are many ranges, except that it looks at each window: a
//! port may have some hundred. A range that is small, or one of many, is mapped in a wide window of
//! its file, together with what follows. The [memory table](Ranges::table) shows the device the
//! ranges only, and merges those that follow each other.

mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use jail::strangers::Descriptor;
use rustix::io::Errno;
use shmem::budget::Account;
use shmem::{GuestMemory, GuestRange, LentWindow, Mapping};

pub use self::record::Commit;
use self::record::{Entry, Record};
use crate::attach::guest::kept::Kept;
use crate::attach::guest::memory::{self, MemoryError, Region};

/// The maximum number of ranges.
pub const MAX_RANGES: usize = 8192;
/// The maximum number of files.
const MAX_FILES: usize = 256;
/// The maximum number of bytes of memory that can be copied.
const MAX_COPY: u64 = 64 << 30;
/// Bytes of a wide window, which begins at a multiple of them in its file.
const WINDOW: u64 = 1 << 30;
/// Bytes of the page of an IOMMU. Ranges that are not larger come in numbers.
const PAGE: u64 = 4096;
/// How many windows of a file are mapped as they come. Further ones are wide.
const EXACT: usize = 32;
/// The name of the records among what is kept.
const RECORDS: &str = "ranges";

/// The ranges of a session.
#[derive(Debug)]
pub struct Ranges {
    by_address: BTreeMap<u64, Range>,
    files: Vec<Arc<File>>,
    windows: Vec<Arc<Window>>,
    next_file: u32,
    /// How many ranges are mapped.
    mapped: usize,
    record: Option<Record>,
    commit: Commit,
    account: Arc<Account>,
}

#[derive(Debug)]
struct Range {
    region: Region,
    writable: bool,
    /// The range's record.
    record: u32,
    place: Option<Place>,
}

/// Where a range is mapped.
#[derive(Debug)]
pub struct Place {
    window: Arc<Window>,
    position: usize,
}

#[derive(Debug)]
struct Window {
    lent: LentWindow,
    file: Arc<File>,
}

#[derive(Debug)]
struct File {
    descriptor: Arc<Descriptor>,
    /// Device and inode.
    identity: (u64, u64),
    /// The number by which it is kept.
    number: u32,
}

/// The ranges in a session's records: their addresses, and whether they have files.
#[cfg(test)]
pub(crate) fn recorded(records: Descriptor, commit: &serde_json::Value) -> Vec<(u64, bool)> {
    let commit: Commit = serde_json::from_value(commit.clone()).unwrap();
    let (_, entries) = Record::adopt(Arc::new(records), &commit).unwrap();
    entries.into_iter().map(|(_, entry)| (entry.region.guest, entry.file.is_some())).collect()
}

impl Range {
    fn end(&self) -> u64 {
        self.region.guest + self.region.size
    }

    fn mapped(&self) -> Option<GuestRange> {
        let Region { guest, user, size, .. } = self.region;
        let Place { window, position } = self.place.as_ref()?;
        let mapping = Arc::clone(window.lent.mapping());
        Some(GuestRange { guest, user, size, mapping, offset: *position })
    }
}

impl Ranges {
    /// No ranges; what is mapped is charged to `account`.
    #[must_use]
    pub fn new(account: &Arc<Account>) -> Self {
        Self {
            by_address: BTreeMap::new(),
            files: Vec::new(),
            windows: Vec::new(),
            next_file: 0,
            mapped: 0,
            record: None,
            commit: Commit::default(),
            account: Arc::clone(account),
        }
    }

    /// True if there are ranges, and none of them is mapped.
    #[must_use]
    pub fn lack_memory(&self) -> bool {
        !self.by_address.is_empty() && self.mapped == 0
    }

    /// True if `region` has bytes, and shares none with a range.
    #[must_use]
    pub fn is_free(&self, region: Region) -> bool {
        let Some(end) = region.guest.checked_add(region.size) else { return false };
        let before = self.by_address.range(..end).next_back();
        region.size > 0 && before.is_none_or(|(_, range)| range.end() <= region.guest)
    }

    /// Maps a region of a file, where no window has it yet.
    ///
    /// # Errors
    /// [`MemoryError`] when there are too many ranges or files, the file is not trustworthy, the
    /// budget is exceeded, or the kernel refuses.
    pub fn place(
        &mut self,
        region: Region,
        descriptor: Arc<Descriptor>,
    ) -> Result<Place, MemoryError> {
        if self.by_address.len() >= MAX_RANGES {
            return Err(MemoryError::Ranges(MAX_RANGES));
        }
        let identity = memory::inspect(&descriptor)?;
        let is_known = |file: &&Arc<File>| file.identity == identity;
        let file = match self.files.iter().find(is_known) {
            Some(file) => Arc::clone(file),
            None if self.files.len() == MAX_FILES => return Err(MemoryError::Files(MAX_FILES)),
            None => Arc::new(File { descriptor, identity, number: self.file_number() }),
        };
        self.place_in(region, &file)
    }

    fn file_number(&self) -> u32 {
        let mut number = self.next_file;
        while self.files.iter().any(|file| file.number == number) {
            number = number.wrapping_add(1);
        }
        number
    }

    fn place_in(&mut self, region: Region, file: &Arc<File>) -> Result<Place, MemoryError> {
        let Region { offset, size, .. } = region;
        let of_file = self.windows.iter().filter(|window| Arc::ptr_eq(&window.file, file));
        let mut count = 0;
        for window in of_file {
            if let Some(position) = window.lent.position(offset, size) {
                return Ok(Place { window: Arc::clone(window), position });
            }
            count += 1;
        }
        let lent = self.map(region, file, size <= PAGE || count >= EXACT)?;
        let position = lent.position(offset, size).ok_or(MemoryError::TooMuch)?;
        let window = Arc::new(Window { lent, file: Arc::clone(file) });
        self.windows.push(Arc::clone(&window));
        if !self.files.iter().any(|known| Arc::ptr_eq(known, file)) {
            self.next_file = file.number.wrapping_add(1);
            self.files.push(Arc::clone(file));
        }
        Ok(Place { window, position })
    }

    /// Maps a region alone, or with what is around it in its file if the budget allows that.
    fn map(&self, region: Region, file: &File, wide: bool) -> Result<LentWindow, MemoryError> {
        let Region { offset, size, .. } = region;
        let file = &file.descriptor;
        if wide {
            let from = offset - offset % WINDOW;
            let len = memory::length(file)?;
            let end = offset.saturating_add(size);
            let to = end.checked_next_multiple_of(WINDOW).unwrap_or(u64::MAX).min(len);
            if end <= to && self.account.allows(to - from) {
                let window = memory::map(file, from, to - from, &self.account);
                if window.is_ok() {
                    return window;
                }
            }
        }
        memory::map(file, offset, size, &self.account)
    }

    /// Adds a region that is [free](Self::is_free). One without a place is not mapped.
    ///
    /// # Errors
    /// `ENOSPC` when there are too many, `ENOMEM` when the range cannot be recorded. Then the place
    /// is given up.
    pub fn add(
        &mut self,
        region: Region,
        writable: bool,
        place: Option<Place>,
    ) -> Result<(), Errno> {
        let file = place.as_ref().map(|place| place.window.file.number);
        match self.record(region, writable, file) {
            Ok(record) => {
                self.insert(Range { region, writable, record, place });
                Ok(())
            }
            Err(error) => {
                drop(place);
                self.sweep();
                Err(error)
            }
        }
    }

    /// Records a new range; returns the record's place.
    fn record(&mut self, region: Region, writable: bool, file: Option<u32>) -> Result<u32, Errno> {
        if self.by_address.len() >= MAX_RANGES {
            return Err(Errno::NOSPC);
        }
        let record = match &mut self.record {
            Some(record) => record,
            None => self.record.insert(Record::new().map_err(|_| Errno::NOMEM)?),
        };
        record.settle();
        let entry = Entry { number: self.commit.next, region, writable, file };
        let place = record.enter(&entry).ok_or(Errno::NOSPC)?;
        self.commit.next += 1;
        Ok(place)
    }

    fn insert(&mut self, range: Range) {
        self.mapped += usize::from(range.place.is_some());
        self.by_address.insert(range.region.guest, range);
    }

    /// Removes the ranges from one address to another; returns how many bytes they had.
    ///
    /// # Errors
    /// `EINVAL` when a range is only partly between them. Then all stay.
    pub fn remove(&mut self, from: u64, to: u64) -> Result<u64, Errno> {
        let crosses = |at: u64| {
            let before = self.by_address.range(..at).next_back();
            before.is_some_and(|(_, range)| range.end() > at)
        };
        if crosses(from) || crosses(to) {
            return Err(Errno::INVAL);
        }
        // Not `split_off`, which looks at all ranges.
        let gone = self.by_address.range(from..to.max(from)).map(|(at, _)| *at);
        let gone: Vec<u64> = gone.collect();
        if let Some(record) = &mut self.record {
            record.settle();
        }
        let mut bytes = 0u64;
        for range in gone.iter().filter_map(|at| self.by_address.remove(at)) {
            self.record.iter_mut().for_each(|record| record.remove(range.record));
            self.mapped -= usize::from(range.place.is_some());
            bytes = bytes.saturating_add(range.region.size);
        }
        self.commit.unmapped = (from, to, self.commit.next);
        self.sweep();
        Ok(bytes)
    }

    /// Unmaps windows without ranges, and gives up files without windows.
    fn sweep(&mut self) {
        self.windows.retain(|window| Arc::strong_count(window) > 1);
        self.files.retain(|file| Arc::strong_count(file) > 1);
    }

    /// The memory table of the ranges that are mapped.
    #[must_use]
    pub fn table(&self) -> GuestMemory {
        let of = |writable: bool| {
            let ranges = self.by_address.values().filter(|range| range.writable == writable);
            ranges.filter_map(Range::mapped).collect()
        };
        // Each range was checked for overlaps when it was added.
        GuestMemory::with_read_only(of(true), of(false)).unwrap_or_default()
    }

    /// An empty copy of the guest's memory, for ranges that came without files.
    ///
    /// # Errors
    /// [`MemoryError`] when there is too much of it, or it is in too many pieces.
    pub fn copy(&self) -> Result<GuestMemory, MemoryError> {
        let sizes = self.by_address.values().map(|range| range.region.size);
        if sizes.fold(0, u64::saturating_add) > MAX_COPY {
            return Err(MemoryError::Copy(MAX_COPY));
        }
        // Neighbours are one piece, and one mapping.
        let mut pieces: Vec<(u64, u64, bool)> = Vec::new();
        for Range { region: Region { guest, size, .. }, writable, .. } in self.by_address.values() {
            match pieces.last_mut() {
                Some((at, len, same)) if *at + *len == *guest && same == writable => *len += size,
                _ => pieces.push((*guest, *size, *writable)),
            }
        }
        let (mut writable, mut others) = (Vec::new(), Vec::new());
        for (guest, size, is_writable) in pieces {
            let mapping = Mapping::reserved(size as usize, &self.account)?;
            let range = GuestRange { guest, user: guest, size, mapping, offset: 0 };
            if is_writable { writable.push(range) } else { others.push(range) }
        }
        Ok(GuestMemory::with_read_only(writable, others)?.into_copy())
    }

    /// Adds what a successor of this process needs, and returns what belongs into the session's
    /// state. The descriptors are the records and the files.
    pub fn keep(&self, kept: &mut Kept) -> Commit {
        let mut keep = |name: String, fd: &Arc<Descriptor>| {
            kept.insert(name, (serde_json::Value::Null, Some(Arc::clone(fd))));
        };
        self.files.iter().for_each(|file| keep(format!("file {}", file.number), &file.descriptor));
        self.record.iter().for_each(|record| keep(RECORDS.into(), record.file()));
        self.commit
    }

    /// Adds a range that a predecessor of an earlier version has kept; `None` if that fails.
    pub fn add_earlier(
        &mut self,
        region: Region,
        writable: bool,
        file: Option<Arc<Descriptor>>,
    ) -> Option<()> {
        let place = file.map(|file| self.place(region, file)).transpose().ok()?;
        self.is_free(region).then(|| self.add(region, writable, place).ok()).flatten()
    }

    /// Restores the ranges that a predecessor has kept; `None` if a part is missing.
    #[must_use]
    pub fn restore(kept: &Kept, commit: Commit, account: &Arc<Account>) -> Option<Self> {
        let mut this = Self { commit, ..Self::new(account) };
        let fd = |name: &str| kept.get(name).and_then(|(_, fd)| fd.clone());
        let Some(records) = fd(RECORDS) else { return (commit.next == 0).then_some(this) };
        let (record, entries) = Record::adopt(records, &commit).ok()?;
        let mut files: BTreeMap<u32, Arc<File>> = BTreeMap::new();
        for (record, Entry { region, writable, file, .. }) in entries {
            if !this.is_free(region) {
                return None;
            }
            let file = match file {
                None => None,
                Some(number) => Some(match files.get(&number) {
                    Some(file) => Arc::clone(file),
                    None => {
                        let descriptor = fd(&format!("file {number}"))?;
                        let identity = memory::inspect(&descriptor).ok()?;
                        let file = Arc::new(File { descriptor, identity, number });
                        files.insert(number, Arc::clone(&file));
                        file
                    }
                }),
            };
            let place = file.map(|file| this.place_in(region, &file)).transpose().ok()?;
            this.insert(Range { region, writable, record, place });
        }
        this.record = Some(record);
        Some(this)
    }
}
