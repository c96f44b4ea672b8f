//! Sealed memory files, and the kernel's mappings of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::budget::{Account, Charge, OverBudget};
use crate::guard::{Guarded, MAPPINGS};
use crate::{Bytes, Mapping, Shareable, Shared};

/// The reason why a region could not be made, adopted or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The kernel refused to make or size the memory file.
    #[error("Cannot make a memory file of {len} bytes; check memory limits")]
    Create {
        /// The requested size.
        len: usize,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
    /// A peer could still truncate the file, which would raise SIGBUS here.
    #[error("The memory file is not sealed against shrinking and growing; seal it first")]
    NotSealed,
    /// The kernel refused to map the file.
    #[error("Cannot map {len} bytes of shared memory; check vm.max_map_count and memory limits")]
    Map {
        /// The size of the mapping.
        len: usize,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
    /// The memory is too small for its contents.
    #[error("What is laid out here does not fit in {len} bytes of shared memory")]
    TooSmall {
        /// The available size.
        len: usize,
    },
    /// The file's size or seals could not be read.
    #[error("Cannot inspect the memory file")]
    Inspect(#[source] Errno),
    /// The guard's table is full, and a fault in an unguarded mapping would end the process.
    #[error("This process has {MAPPINGS} mappings of files already, and guards no more")]
    Unguarded,
    /// The mapping exceeds a peer's budget.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
}

/// Which pages back a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The system's base pages, committed when first touched.
    Small,
    /// 2 MiB pages, committed at once, if the system has enough free ones; else base pages.
    #[default]
    HugeIfFree,
}

/// A memory file of fixed size: sealed, so that no holder can make a mapping of it fault.
#[derive(Debug)]
pub struct Memfd {
    file: OwnedFd,
    len: usize,
}

const HUGE_PAGE: usize = 2 << 20;

impl Memfd {
    /// Makes a file of at least `len` bytes (rounded up to whole pages), all zero, and seals its
    /// size.
    ///
    /// # Errors
    /// [`RegionError::Create`] when the kernel refuses.
    pub fn create(name: &str, len: usize, pages: Pages) -> Result<Self, RegionError> {
        if pages == Pages::HugeIfFree
            && let Ok(huge) = Self::create_huge(name, len)
        {
            return Ok(huge);
        }
        let len = len.next_multiple_of(4096);
        Self::create_with(name, len, MemfdFlags::empty())
            .map_err(|source| RegionError::Create { len, source })
    }

    fn create_huge(name: &str, len: usize) -> Result<Self, Errno> {
        let len = len.next_multiple_of(HUGE_PAGE);
        let memfd = Self::create_with(name, len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)?;
        // Reserves the pages now: a huge page that is missing later would raise SIGBUS.
        rustix::fs::fallocate(&memfd.file, FallocateFlags::empty(), 0, len as u64)?;
        Ok(memfd)
    }

    fn create_with(name: &str, len: usize, flags: MemfdFlags) -> Result<Self, Errno> {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { file, len })
    }

    /// Adopts a file from another process.
    ///
    /// # Errors
    /// [`RegionError::NotSealed`] if its size could still change.
    pub fn adopt(file: OwnedFd) -> Result<Self, RegionError> {
        let len = Self::sealed_len(file.as_fd())?;
        Ok(Self { file, len })
    }

    /// The size of a file from another process, if it is fixed. Never blocks: a file that is no
    /// memory is refused before any other request.
    ///
    /// # Errors
    /// [`RegionError::NotSealed`] if its size could still change.
    pub fn sealed_len(file: BorrowedFd<'_>) -> Result<usize, RegionError> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| RegionError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(RegionError::NotSealed);
        }
        Ok(rustix::fs::fstat(file).map_err(RegionError::Inspect)?.st_size as usize)
    }

    /// The file's size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a file of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What tells the file from others: its device and number. `None` if the kernel does not say.
    #[must_use]
    pub fn identity(&self) -> Option<(u64, u64)> {
        let status = rustix::fs::fstat(&self.file).ok()?;
        Some((status.st_dev, status.st_ino))
    }

    /// Maps the whole file, readable and writable, shared with its other holders.
    ///
    /// # Errors
    /// [`RegionError::Map`] when the kernel refuses.
    pub fn map(&self) -> Result<Arc<Mapping>, RegionError> {
        Mapping::shared_file(self.file.as_fd(), self.len)
    }

    /// Gives the pages of `len` bytes at `at` back to the system; they read as zero afterwards.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn punch(&self, at: usize, len: usize) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, at as u64, len as u64)
    }

    /// The file descriptor itself, to be passed on.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.file
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What has to be released when a mapping is dropped.
pub(crate) struct Backing {
    /// True if the kernel made the mapping, so that the region must unmap it.
    is_kernels: bool,
    guarded: Guarded,
    /// The budget's charge, if a peer caused the mapping.
    charge: Option<Charge>,
}

impl Backing {
    const fn kernel() -> Self {
        Self { is_kernels: true, guarded: Guarded::not_needed(), charge: None }
    }

    /// For memory that something else has mapped: nothing to release.
    pub const fn none() -> Self {
        Self { is_kernels: false, guarded: Guarded::not_needed(), charge: None }
    }

    #[inline(always)]
    pub fn has_failed(&self) -> bool {
        self.guarded.has_failed()
    }

    pub fn discard(&self, memory: Bytes<'_>) {
        match self.is_kernels {
            true => self.advise(memory, Advice::LinuxDontNeed),
            false => memory.fill(0),
        }
    }

    fn advise(&self, memory: Bytes<'_>, advice: Advice) {
        // SAFETY: this backing owns the range. At most its bytes become zeros, which atomics and
        // `Bytes` tolerate. A kernel without huge pages fails, which changes nothing.
        let _ = unsafe { rustix::mm::madvise(memory.as_ptr().cast(), memory.len(), advice) };
    }

    /// Unmaps `memory`, which nothing uses any more.
    pub fn release(&mut self, memory: Bytes<'_>) {
        // The guard's entry is removed first: another mapping may soon reuse the addresses.
        self.guarded = Guarded::not_needed();
        if self.is_kernels {
            // SAFETY: this backing owns the range, and `Mapping::drop` vouches that nothing uses
            // it. Failure would only leak it.
            let _ = unsafe { rustix::mm::munmap(memory.as_ptr().cast(), memory.len()) };
        }
    }
}

impl Mapping {
    /// Maps `len` bytes of a file that its owner may truncate. Install the [guard](crate::guard)
    /// first: it keeps this process alive in that case.
    ///
    /// # Errors
    /// [`RegionError::Map`] when the kernel refuses.
    pub fn unsealed(file: BorrowedFd<'_>, len: usize) -> Result<Arc<Self>, RegionError> {
        Self::shared_file(file, len)
    }

    /// Maps `len` bytes at `offset` of a file that a peer lends, charged to `account`; otherwise
    /// like [`unsealed`](Self::unsealed). Core dumps leave it out. Both numbers are multiples of
    /// the file's page size: see [`LentWindow`](crate::LentWindow).
    pub(crate) fn lent(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        account: &Arc<Account>,
    ) -> Result<Arc<Self>, RegionError> {
        let charge = account.charge(whole_pages(len)? as u64)?;
        let mut mapping = Self::new_file(file, offset, len)?;
        mapping.advise(Advice::LinuxDontDump);
        mapping.backing.charge = Some(charge);
        Ok(Arc::new(mapping))
    }

    /// Maps all of a file from another process.
    ///
    /// # Errors
    /// As [`Memfd::sealed_len`], and [`RegionError::Map`] when the kernel refuses.
    pub fn sealed(file: BorrowedFd<'_>) -> Result<Arc<Self>, RegionError> {
        Self::shared_file(file, Memfd::sealed_len(file)?)
    }

    fn shared_file(file: BorrowedFd<'_>, len: usize) -> Result<Arc<Self>, RegionError> {
        Self::file_at(file, 0, len)
    }

    /// Maps `len` bytes at `offset` of a file that may fault, as those of
    /// [`unsealed`](Self::unsealed) can.
    ///
    /// # Errors
    /// The errors of [`unsealed`](Self::unsealed).
    pub fn file_at(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<Arc<Self>, RegionError> {
        Self::new_file(file, offset, len).map(Arc::new)
    }

    fn new_file(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, RegionError> {
        let failed = |source| RegionError::Map { len, source };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, offset)
        };
        let at =
            NonNull::new(at.map_err(failed)?.cast::<u8>()).ok_or_else(|| failed(Errno::NOMEM))?;
        let mut mapping = Self { at, len, backing: Backing::kernel() };
        // Without an entry in the guard's table, it is unmapped again.
        let guarded = Guarded::new(at.as_ptr(), len).ok_or(RegionError::Unguarded)?;
        mapping.backing.guarded = guarded;
        Ok(mapping)
    }

    /// Zeroed memory of this process alone, for inline switches and tests.
    ///
    /// # Errors
    /// [`RegionError::Map`] when the kernel refuses.
    pub fn private(len: usize) -> Result<Arc<Self>, RegionError> {
        Self::anonymous(len, MapFlags::PRIVATE).map(Arc::new)
    }

    /// Like [`private`](Self::private), for memory of which few pages are ever touched. The kernel
    /// only accounts for those.
    ///
    /// # Errors
    /// The errors of [`private`](Self::private).
    pub fn sparse(len: usize) -> Result<Arc<Self>, RegionError> {
        Self::new_sparse(len).map(Arc::new)
    }

    /// Like [`sparse`](Self::sparse), for a copy of peer memory that is not lent. The addresses are
    /// charged to `account`. Core dumps leave it out.
    ///
    /// # Errors
    /// The errors of [`sparse`](Self::sparse); [`RegionError::OverBudget`] before anything is
    /// mapped.
    pub fn reserved(len: usize, account: &Arc<Account>) -> Result<Arc<Self>, RegionError> {
        let charge = account.charge(whole_pages(len)? as u64)?;
        let mut mapping = Self::new_sparse(len)?;
        mapping.advise(Advice::LinuxDontDump);
        mapping.backing.charge = Some(charge);
        Ok(Arc::new(mapping))
    }

    fn new_sparse(len: usize) -> Result<Self, RegionError> {
        let mapping = Self::anonymous(len, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
        mapping.advise(Advice::LinuxNoHugepage);
        Ok(mapping)
    }

    fn advise(&self, advice: Advice) {
        self.backing.advise(self.all(), advice);
    }

    fn anonymous(len: usize, flags: MapFlags) -> Result<Self, RegionError> {
        let len = whole_pages(len)?;
        let failed = |source| RegionError::Map { len, source };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new_file`.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) };
        let at =
            NonNull::new(at.map_err(failed)?.cast::<u8>()).ok_or_else(|| failed(Errno::NOMEM))?;
        Ok(Self { at, len, backing: Backing::kernel() })
    }
}

/// The bytes that the kernel maps for `len` bytes.
fn whole_pages(len: usize) -> Result<usize, RegionError> {
    let failed = RegionError::Map { len, source: Errno::NOMEM };
    len.checked_next_multiple_of(4096).ok_or(failed)
}

impl<T: Shareable> Shared<T> {
    /// A `T` that only this process sees, all zero.
    ///
    /// # Errors
    /// [`RegionError::Map`] when the kernel refuses.
    pub fn private() -> Result<Self, RegionError> {
        let mapping = Mapping::private(size_of::<T>().max(1))?;
        let len = mapping.len();
        mapping.shared(0).ok_or(RegionError::Map { len, source: Errno::INVAL })
    }
}

#[cfg(test)]
mod tests;
