//! The memory a front end shares: its files, mapped, and the table of the guest's addresses made of them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use shmem::{DirtyLog, GuestMemory, GuestMemoryError, GuestRange, Mapping, RegionError};

use super::message::Region;

/// Most regions of a guest's memory: what a front end is told that there are slots for.
pub const MAX_SLOTS: usize = 64;
/// Most bytes of files that are mapped for one guest.
const MAX_MAPPED: u64 = 4 << 40;
/// Most bytes of a log of written pages: a bit for each page of a guest of the largest size.
const MAX_LOG: u64 = MAX_MAPPED / 4096 / 8;

/// Why memory is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A file whose pages somebody else might hold back for ever.
    #[error(
        "Guest memory is not a memory file, but of file system type {0:#x}; have the front end share \
         memory (QEMU: memory-backend-memfd, or memory-backend-file in /dev/shm or hugetlbfs)"
    )]
    FileSystem(u64),
    /// The kernel does not say what the file is.
    #[error("The file of guest memory cannot be inspected")]
    Inspect(#[source] Errno),
    /// More memory than is mapped for one guest.
    #[error(
        "The guest's memory is larger than {MAX_MAPPED} bytes, or has more than {MAX_SLOTS} regions"
    )]
    TooMuch,
    /// The kernel refuses to map it.
    #[error("The guest's memory cannot be mapped")]
    Map(#[from] RegionError),
    /// The table contradicts itself.
    #[error("The guest's memory table is malformed")]
    Table(#[from] GuestMemoryError),
    /// A region that goes beyond its file's end.
    #[error("The guest's memory file ends before byte {0}")]
    Short(u64),
    /// A region that is to be removed and is not there.
    #[error("There is no such region of guest memory")]
    NoRegion,
    /// A log that is not whole.
    #[error("The log of written pages does not lie in its file, or is too large")]
    Log,
}

/// A region with its file.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Where the guest and the front end have it.
    pub region: Region,
    /// Its file, for a successor of this process.
    pub file: Arc<OwnedFd>,
    /// A number that no other slot of the session has had: names it for the keeper.
    pub number: u32,
    /// How often it was added: QEMU before 8.1 does so for each pair of queues, and removes it as often.
    pub times: u32,
    /// Device and inode of the file: slots of one file share one mapping.
    identity: (u64, u64),
    mapping: Arc<Mapping>,
}

impl Slot {
    /// Maps a region of the guest's memory, if no other slot has mapped its file as far already.
    ///
    /// # Errors
    /// [`MemoryError`] when its file is not to be trusted, or the kernel refuses.
    pub fn new(
        region: Region,
        file: Arc<OwnedFd>,
        number: u32,
        others: &[Self],
    ) -> Result<Self, MemoryError> {
        let identity = inspect(&file)?;
        let end = region.offset.checked_add(region.size).ok_or(MemoryError::TooMuch)?;
        let mapped: u64 = others.iter().map(|slot| slot.region.size).sum();
        if end > MAX_MAPPED || mapped.saturating_add(region.size) > MAX_MAPPED {
            return Err(MemoryError::TooMuch);
        }
        let same = |slot: &&Self| slot.identity == identity && slot.mapping.len() as u64 >= end;
        let mapping = match others.iter().find(same) {
            Some(slot) => Arc::clone(&slot.mapping),
            None => map(&file, end)?,
        };
        Ok(Self { region, file, number, times: 1, identity, mapping })
    }

    /// Where the guest's memory table has it.
    #[must_use]
    pub fn range(&self) -> GuestRange {
        GuestRange {
            guest: self.region.guest,
            user: self.region.user,
            size: self.region.size,
            mapping: Arc::clone(&self.mapping),
            offset: self.region.offset as usize,
        }
    }

    /// True if it is this region of this file.
    #[must_use]
    pub fn is(&self, region: Region, file: &OwnedFd) -> bool {
        self.region == region && inspect(file).is_ok_and(|identity| identity == self.identity)
    }
}

/// Makes the guest's memory table of these slots.
///
/// # Errors
/// [`MemoryError`] when they overlap, or are too many.
pub fn table(slots: &[Slot]) -> Result<Arc<GuestMemory>, MemoryError> {
    if slots.len() > MAX_SLOTS {
        return Err(MemoryError::TooMuch);
    }
    Ok(Arc::new(GuestMemory::new(slots.iter().map(Slot::range).collect())?))
}

/// Maps a log of written pages.
///
/// # Errors
/// [`MemoryError::Log`] when it is not whole.
pub fn log(file: &OwnedFd, offset: u64, size: u64) -> Result<Arc<DirtyLog>, MemoryError> {
    inspect(file)?;
    let end = offset.checked_add(size).filter(|end| *end <= 2 * MAX_LOG);
    let mapping = map(file, end.ok_or(MemoryError::Log)?)?;
    // What is beyond the last whole word, no page is in.
    let log = DirtyLog::new(&mapping, offset as usize, size as usize & !7);
    log.map(Arc::new).ok_or(MemoryError::Log)
}

/// Maps a file for other uses than a guest's memory, up to `end`.
///
/// # Errors
/// [`MemoryError`] when it is not memory, or shorter.
pub fn map_memory(file: &OwnedFd, end: u64) -> Result<Arc<Mapping>, MemoryError> {
    inspect(file)?;
    map(file, end)
}

/// Checks that a file is memory: touching a page of any other could take as long as its owner likes.
fn inspect(file: &OwnedFd) -> Result<(u64, u64), MemoryError> {
    const TMPFS: u64 = 0x0102_1994;
    const HUGETLBFS: u64 = 0x9584_58f6;
    let system = rustix::fs::fstatfs(file).map_err(MemoryError::Inspect)?.f_type as u64;
    if ![TMPFS, HUGETLBFS].contains(&(system & 0xffff_ffff)) {
        return Err(MemoryError::FileSystem(system));
    }
    let stat = rustix::fs::fstat(file).map_err(MemoryError::Inspect)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Maps a file up to `end`, in whole pages of its file system: those of hugetlbfs are not unmapped in
/// parts.
fn map(file: &OwnedFd, end: u64) -> Result<Arc<Mapping>, MemoryError> {
    let stat = rustix::fs::fstat(file).map_err(MemoryError::Inspect)?;
    if u64::try_from(stat.st_size).unwrap_or(0) < end {
        return Err(MemoryError::Short(end));
    }
    let page = u64::try_from(stat.st_blksize).unwrap_or(4096).clamp(4096, 1 << 30);
    let len = usize::try_from(end.next_multiple_of(page)).map_err(|_| MemoryError::TooMuch)?;
    Ok(Mapping::unsealed(file.as_fd(), len)?)
}
