//! The memory a front end shares: its files, mapped, and the table of the guest's addresses made of them.

use std::os::fd::AsFd;
use std::sync::Arc;

use jail::strangers::{Descriptor, Kind, kind};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use shmem::budget::{Account, OverBudget};
use shmem::{DirtyLog, GuestMemory, GuestMemoryError, GuestRange, LentWindow, RegionError};

/// Most regions of a guest's memory: what a front end is told that there are slots for.
pub const MAX_SLOTS: usize = 64;
/// Most bytes of a log of written pages: a bit for each page of 8 TiB of addresses.
const MAX_LOG: u64 = (8 << 40) / 4096 / 8;

/// Why memory is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A file whose pages somebody else might hold back for ever.
    #[error(
        "Guest memory is no file of tmpfs or hugetlbfs; have the front end share memory (QEMU: \
         memory-backend-memfd, or memory-backend-file in /dev/shm or hugetlbfs)"
    )]
    NoMemory,
    /// The kernel does not say what the file is.
    #[error("The file of guest memory cannot be inspected")]
    Inspect(#[source] Errno),
    /// More regions than there are slots for, or one that no file has.
    #[error("The guest's memory has more than {MAX_SLOTS} regions, or one that no file can have")]
    TooMuch,
    /// More memory than may be mapped.
    #[error("The guest's memory is too large: {0}")]
    OverBudget(OverBudget),
    /// The kernel refuses to map it.
    #[error("The guest's memory cannot be mapped")]
    Map(#[source] RegionError),
    /// The table contradicts itself.
    #[error("The guest's memory table is malformed")]
    Table(#[from] GuestMemoryError),
    /// A region that goes beyond its file's end.
    #[error("The guest's memory file ends before byte {0}")]
    Short(u64),
    /// Memory without files, of which more would have to be copied than is.
    #[error(
        "The guest's memory comes without files, and is larger than the {0} bytes that are copied"
    )]
    Copy(u64),
    /// A region that is to be removed and is not there.
    #[error("There is no such region of guest memory")]
    NoRegion,
    /// A log that is not whole.
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
    /// Where the guest sees it.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Where the front end sees it: rings are named by these addresses.
    pub user: u64,
    /// Where it starts in its file.
    pub offset: u64,
}

/// A region with its file.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Where the guest and the front end have it.
    pub region: Region,
    /// Its file, for a successor of this process.
    pub file: Arc<Descriptor>,
    /// A number that no other slot of the session has had: names it for the keeper.
    pub number: u32,
    /// How often it was added: QEMU before 8.1 does so for each pair of queues, and removes it as often.
    pub times: u32,
    /// Device and inode of the file.
    identity: (u64, u64),
    window: LentWindow,
    /// Where its region is in the window's mapping.
    position: usize,
}

impl Slot {
    /// Maps a region of the guest's memory, if none of the other slots has mapped that part of its file
    /// already.
    ///
    /// # Errors
    /// [`MemoryError`] when its file is not to be trusted, more is mapped than may be, or the kernel refuses.
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

    /// Where the guest's memory table has it.
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

    /// True if it is this region of this file.
    #[must_use]
    pub fn is(&self, region: Region, file: &Descriptor) -> bool {
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
/// [`MemoryError::Log`] when it is not whole; as [`map`] otherwise.
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
    // What is beyond the last whole word, no page is in.
    let log = DirtyLog::new(window.mapping(), position, size as usize & !7);
    log.map(Arc::new).ok_or(MemoryError::Log)
}

/// Maps part of a file for other uses than a guest's memory.
///
/// # Errors
/// [`MemoryError`] when it is not memory, or shorter; or more is mapped than may be.
pub fn map_memory(
    file: &Descriptor,
    offset: u64,
    size: u64,
    account: &Arc<Account>,
) -> Result<LentWindow, MemoryError> {
    inspect(file)?;
    map(file, offset, size, account)
}

/// Checks that a file is memory: touching a page of any other could take as long as its owner likes.
fn inspect(file: &Descriptor) -> Result<(u64, u64), MemoryError> {
    if kind(file) != Kind::Memory {
        return Err(MemoryError::NoMemory);
    }
    let stat = rustix::fs::fstat(file).map_err(MemoryError::Inspect)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Maps the window of a file that is asked for.
fn map(
    file: &Descriptor,
    offset: u64,
    size: u64,
    account: &Arc<Account>,
) -> Result<LentWindow, MemoryError> {
    let end = offset.checked_add(size).ok_or(MemoryError::TooMuch)?;
    let stat = rustix::fs::fstat(file).map_err(MemoryError::Inspect)?;
    if u64::try_from(stat.st_size).unwrap_or(0) < end {
        return Err(MemoryError::Short(end));
    }
    Ok(LentWindow::map(file.as_fd(), offset, size, account)?)
}
