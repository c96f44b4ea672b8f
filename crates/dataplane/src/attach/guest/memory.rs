//! The memory that a front end shares: its mapped files, and the guest's memory table made of them.

use std::os::fd::AsFd;
use std::sync::Arc;

use jail::strangers::{Descriptor, Kind, kind};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use shmem::budget::{Account, OverBudget};
use shmem::{DirtyLog, GuestMemory, GuestMemoryError, GuestRange, LentWindow, RegionError};

/// The maximum number of regions of a guest's memory. Front ends are told that there are this many
/// slots.
pub const MAX_SLOTS: usize = 64;
/// The maximum number of bytes of a dirty log: a bit for each page of 8 TiB of guest addresses.
const MAX_LOG: u64 = (8 << 40) / 4096 / 8;

/// The reason why memory is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A file of a kind whose page faults another process could block for ever.
    #[error(
        "Guest memory is not a file of tmpfs or hugetlbfs; have the front end share memory (QEMU: \
         memory-backend-memfd, or memory-backend-file in /dev/shm or hugetlbfs)"
    )]
    NoMemory,
    /// The kernel does not say what kind of file it is.
    #[error("The file of guest memory cannot be inspected")]
    Inspect(#[source] Errno),
    /// There are more regions than slots, or a region is larger than any file.
    #[error("The guest's memory has more than {MAX_SLOTS} regions, or one that no file can have")]
    TooMuch,
    /// The user's budget for mapped memory is exceeded.
    #[error("The guest's memory is too large: {0}")]
    OverBudget(OverBudget),
    /// The kernel refuses to map the memory.
    #[error("The guest's memory cannot be mapped")]
    Map(#[source] RegionError),
    /// The table contradicts itself.
    #[error("The guest's memory table is malformed")]
    Table(#[from] GuestMemoryError),
    /// A region ends beyond the end of its file.
    #[error("The guest's memory file ends before byte {0}")]
    Short(u64),
    /// The guest's memory comes without files, and is larger than the limit for copied memory.
    #[error(
        "The guest's memory comes without files, and is larger than the {0} bytes that are copied"
    )]
    Copy(u64),
    /// A guest behind an IOMMU uses too many pages that do not follow each other.
    #[error(
        "The guest's memory is in more than {0} ranges; behind an IOMMU, map fewer or larger pages"
    )]
    Ranges(usize),
    /// The ranges come from too many files.
    #[error("The guest's memory is in more than {0} files")]
    Files(usize),
    /// The region to be removed is not there.
    #[error("There is no such region of guest memory")]
    NoRegion,
    /// The dirty log's range is not valid.
    #[error("The log of written pages does not lie in its file, or is too large")]
    Log,
}

impl From<RegionError> for MemoryError {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::OverBudget(over) => Self::OverBudget(over),
            error => Self::Map(error),
        }
    }
}

/// A range of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// The region's guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// The range's address in the front end's process. Messages name rings by these addresses.
    pub user: u64,
    /// Where the region starts in its file.
    pub offset: u64,
}

/// A region with its file.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The region's addresses in the guest and in the front end.
    pub region: Region,
    /// The region's file, kept for a successor of this process.
    pub file: Arc<Descriptor>,
    /// A number that no other slot of the session has had. The persistent state names the slot by
    /// it.
    pub number: u32,
    /// How often the front end has added the region. QEMU before 8.1 adds a region once for each
    /// pair of queues, and removes it as often.
    pub times: u32,
    /// Device and inode of the file.
    identity: (u64, u64),
    window: LentWindow,
    /// Where the region begins in the window's mapping.
    position: usize,
}

impl Slot {
    /// Maps a region of the guest's memory. Where another slot has mapped that part of the file
    /// already, its mapping is reused.
    ///
    /// # Errors
    /// [`MemoryError`] when the file is not trustworthy, the budget is exceeded, or the kernel
    /// refuses.
    pub fn new<'s>(
        region: Region,
        file: Arc<Descriptor>,
        number: u32,
        others: impl IntoIterator<Item = &'s Self>,
        account: &Arc<Account>,
    ) -> Result<Self, MemoryError> {
        let identity = inspect(&file)?;
        let Region { offset, size, .. } = region;
        let mapped = |slot: &Self| {
            let there = slot.window.position(offset, size).filter(|_| slot.identity == identity);
            there.map(|_| slot.window.clone())
        };
        let window = match others.into_iter().find_map(mapped) {
            Some(window) => window,
            None => map(&file, offset, size, account)?,
        };
        let position = window.position(offset, size).ok_or(MemoryError::TooMuch)?;
        Ok(Self { region, file, number, times: 1, identity, window, position })
    }

    /// The region's range in the guest's memory table.
    #[must_use]
    pub fn range(&self) -> GuestRange {
        GuestRange {
            guest: self.region.guest,
            user: self.region.user,
            size: self.region.size,
            mapping: Arc::clone(self.window.mapping()),
            offset: self.position,
        }
    }

    /// True if the slot maps this region of this file.
    #[must_use]
    pub fn is(&self, region: Region, file: &Descriptor) -> bool {
        self.region == region && inspect(file).is_ok_and(|identity| identity == self.identity)
    }
}

/// Makes the guest's memory table of these slots.
///
/// # Errors
/// [`MemoryError`] when slots overlap, or there are too many.
pub fn table(slots: &[Slot]) -> Result<Arc<GuestMemory>, MemoryError> {
    if slots.len() > MAX_SLOTS {
        return Err(MemoryError::TooMuch);
    }
    Ok(Arc::new(GuestMemory::new(slots.iter().map(Slot::range).collect())?))
}

/// Maps a dirty log.
///
/// # Errors
/// [`MemoryError::Log`] when its range is not valid; otherwise as for [`map`].
pub fn log(
    file: &Descriptor,
    offset: u64,
    size: u64,
    account: &Arc<Account>,
) -> Result<Arc<DirtyLog>, MemoryError> {
    inspect(file)?;
    if size > MAX_LOG {
        return Err(MemoryError::Log);
    }
    let window = map(file, offset, size, account)?;
    let position = window.position(offset, size).ok_or(MemoryError::Log)?;
    // Bits beyond the last whole word belong to no page.
    let log = DirtyLog::new(window.mapping(), position, size as usize & !7);
    log.map(Arc::new).ok_or(MemoryError::Log)
}

/// Maps part of a file for another use than guest memory.
///
/// # Errors
/// [`MemoryError`] when the file is not memory or too short, or the budget is exceeded.
pub fn map_memory(
    file: &Descriptor,
    offset: u64,
    size: u64,
    account: &Arc<Account>,
) -> Result<LentWindow, MemoryError> {
    inspect(file)?;
    map(file, offset, size, account)
}

/// Checks that a file is memory. A page fault in any other file could take as long as its owner
/// likes. Returns the file's device and inode.
///
/// # Errors
/// [`MemoryError::NoMemory`] for another file.
pub fn inspect(file: &Descriptor) -> Result<(u64, u64), MemoryError> {
    if kind(file) != Kind::Memory {
        return Err(MemoryError::NoMemory);
    }
    let stat = rustix::fs::fstat(file).map_err(MemoryError::Inspect)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The bytes of a file that was [inspected](inspect).
///
/// # Errors
/// [`MemoryError::Inspect`].
pub fn length(file: &Descriptor) -> Result<u64, MemoryError> {
    let stat = rustix::fs::fstat(file).map_err(MemoryError::Inspect)?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Maps a window of a file that was [inspected](inspect).
///
/// # Errors
/// [`MemoryError`] when the file is too short, or the budget is exceeded.
pub fn map(
    file: &Descriptor,
    offset: u64,
    size: u64,
    account: &Arc<Account>,
) -> Result<LentWindow, MemoryError> {
    let end = offset.checked_add(size).ok_or(MemoryError::TooMuch)?;
    if length(file)? < end {
        return Err(MemoryError::Short(end));
    }
    Ok(LentWindow::map(file.as_fd(), offset, size, account)?)
}
