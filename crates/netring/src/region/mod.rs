//! Regions: the memory that ports of one process share, and which port has what of it.
//!
//! ```text
//!   Region (Arc) ---- mapping, memory file
//!     |  take       interfaces, rings, buffers      (a lock; set-up only)
//!     v
//!   Lease: what one port has of it; gives it back when dropped
//! ```
//!
//! `net/netmap.h`: structures, extra buffers, pools.

mod lease;
mod numbers;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use shmem::{Bytes, Mapping, Memfd, Pages, Pool};

use crate::layout::{
    BUFFER_BYTES, BUFFER_STRIDE, Geometry, GeometryError, IF_HEADER, MAX_RINGS, MAX_SLOTS,
    RESERVED_BUFFERS, RING_HEADER, SLOTS, Slot,
};
pub(crate) use lease::{Ends, Lease, Wanted};
pub(crate) use numbers::Holder;
use numbers::{BufferTable, Numbers};

/// The reason why a region could not be made, or could not meet a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A size is out of range.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The memory cannot be allocated or mapped.
    #[error(transparent)]
    Memory(#[from] shmem::RegionError),
    /// A pool is used up.
    #[error("The region has too few free {0}; make it larger with RegionConfig, or close a port")]
    Exhausted(&'static str),
    /// The kernel refused an event descriptor.
    #[error("Cannot make an event descriptor; check the limit of open files")]
    Event(#[source] Errno),
    /// The buffer to return is free, reserved, in a ring, or not of this region.
    #[error("Buffer {0} was not taken, so it cannot be given back")]
    NotTaken(u32),
}

/// The size of a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionConfig {
    interfaces: u32,
    rings: u32,
    slots: u32,
    buffers: u32,
    buffer_stride: u32,
    buffer_usable: u32,
    pages: Pages,
}

impl Default for RegionConfig {
    /// One port of default size.
    fn default() -> Self {
        Self {
            interfaces: 1,
            rings: 2,
            slots: SLOTS,
            buffers: 2 * SLOTS,
            buffer_stride: BUFFER_STRIDE,
            buffer_usable: BUFFER_BYTES,
            pages: Pages::default(),
        }
    }
}

impl RegionConfig {
    /// Room for `ports` ports with `rings` rings in each direction, of `slots` slots each.
    #[must_use]
    pub fn ports(ports: u32, rings: u32, slots: u32) -> Self {
        let all = ports.saturating_mul(rings).saturating_mul(2);
        Self::default()
            .interfaces(ports)
            .rings(all.max(1))
            .slots(slots)
            .buffers(all.saturating_mul(slots))
    }

    /// Sets how many ports the region can hold at a time.
    #[must_use]
    pub fn interfaces(self, interfaces: u32) -> Self {
        Self { interfaces, ..self }
    }

    /// How many rings, of both directions and all ports.
    #[must_use]
    pub fn rings(self, rings: u32) -> Self {
        Self { rings, ..self }
    }

    /// The maximum number of slots of a ring (2 to 4,096).
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    /// How many buffers, not counting the two reserved ones: one for each slot, and the extra ones.
    #[must_use]
    pub fn buffers(self, buffers: u32) -> Self {
        Self { buffers, ..self }
    }

    /// Bytes from one buffer to the next: a multiple of 64.
    #[must_use]
    pub fn buffer_stride(self, buffer_stride: u32) -> Self {
        Self { buffer_stride, ..self }
    }

    /// Bytes of a buffer that frames use, at most the stride.
    #[must_use]
    pub fn buffer_usable(self, buffer_usable: u32) -> Self {
        Self { buffer_usable, ..self }
    }

    /// Sets the kind of pages that back the region.
    #[must_use]
    pub fn pages(self, pages: Pages) -> Self {
        Self { pages, ..self }
    }

    fn geometry(&self) -> Result<Geometry, GeometryError> {
        let most_offsets = 2 * (MAX_RINGS as usize + 1);
        let slots = match self.slots {
            2..=MAX_SLOTS => self.slots,
            _ => return Err(GeometryError("number of slots")),
        };
        if self.buffer_usable == 0 || self.buffer_usable > self.buffer_stride {
            return Err(GeometryError("usable bytes of a buffer"));
        }
        Ok(Geometry {
            if_size: (IF_HEADER + 8 * most_offsets).next_multiple_of(64) as u32,
            if_num: self.interfaces,
            ring_size: (RING_HEADER as u32 + slots * size_of::<Slot>() as u32)
                .next_multiple_of(128),
            ring_num: self.rings,
            buf_size: self.buffer_stride,
            buf_num: self.buffers.saturating_add(RESERVED_BUFFERS),
        })
    }
}

/// The record of what is taken and what is free.
#[derive(Debug)]
struct Books {
    interfaces: Numbers,
    rings: Numbers,
    /// Where to look for a free buffer first.
    next_buffer: u32,
}

/// Memory for ports. Ports of one process that are in one region can exchange buffers, so frames
/// pass between them without a copy.
#[derive(Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
    file: Option<Arc<Memfd>>,
    geometry: Geometry,
    usable: u32,
    books: Mutex<Books>,
    buffers: BufferTable,
}

impl Region {
    /// Makes a region in a sealed memory file, which can be lent to a switch or to the other end of
    /// a pipe.
    ///
    /// # Errors
    /// A size is out of range, or the kernel does not have the memory.
    pub fn create(config: RegionConfig) -> Result<Arc<Self>, RegionError> {
        let geometry = Self::checked(&config)?;
        let file = Memfd::create("toklat-region", geometry.file_size() as usize, config.pages)?;
        Ok(Self::over(file.map()?, Some(file), geometry, config.buffer_usable))
    }

    /// Makes a region in memory of this process: for inline switches and tests.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn private(config: RegionConfig) -> Result<Arc<Self>, RegionError> {
        let geometry = Self::checked(&config)?;
        let mapping = Mapping::private(geometry.file_size() as usize)?;
        Ok(Self::over(mapping, None, geometry, config.buffer_usable))
    }

    fn checked(config: &RegionConfig) -> Result<Geometry, RegionError> {
        let geometry = config.geometry()?;
        geometry.check(usize::MAX)?;
        Ok(geometry)
    }

    fn over(
        mapping: Arc<Mapping>,
        file: Option<Memfd>,
        geometry: Geometry,
        usable: u32,
    ) -> Arc<Self> {
        let books = Books {
            interfaces: Numbers::new(geometry.if_num),
            rings: Numbers::new(geometry.ring_num),
            next_buffer: RESERVED_BUFFERS,
        };
        let (buffers, file) = (BufferTable::new(geometry.buf_num), file.map(Arc::new));
        Arc::new(Self { mapping, file, geometry, usable, books: Mutex::new(books), buffers })
    }

    /// Returns how the region is divided.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Its memory.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The region's memory file; `None` for a private region.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.as_fd())
    }

    pub(crate) fn memfd(&self) -> Option<Arc<Memfd>> {
        self.file.clone()
    }

    /// Bytes of a buffer that frames use.
    #[must_use]
    pub fn buffer_usable(&self) -> u32 {
        self.usable
    }

    /// How many buffers are free.
    #[must_use]
    pub fn free_buffers(&self) -> usize {
        self.buffers.free()
    }

    /// How many rings are free.
    #[must_use]
    pub fn free_rings(&self) -> usize {
        self.books().rings.free()
    }

    /// Allocates a buffer that is in no ring.
    ///
    /// # Errors
    /// [`RegionError::Exhausted`].
    pub fn buffer(self: &Arc<Self>) -> Result<Buffer, RegionError> {
        let number = self.take_buffer(&mut self.books(), Holder::LOOSE)?;
        Ok(Buffer { region: Arc::clone(self), number })
    }

    /// Returns a buffer that is in no ring, by its number.
    ///
    /// # Errors
    /// [`RegionError::NotTaken`] for a number out of range, a reserved or free buffer, and one that
    /// is in a ring.
    pub fn give_back(&self, buffer: u32) -> Result<(), RegionError> {
        let _books = self.books();
        let given = self.buffers.give(buffer, Holder::LOOSE);
        given.then_some(()).ok_or(RegionError::NotTaken(buffer))
    }

    fn take_buffer(&self, books: &mut Books, holder: Holder) -> Result<u32, RegionError> {
        let taken = self.buffers.take(books.next_buffer, holder);
        let taken = taken.ok_or(RegionError::Exhausted("buffers"))?;
        books.next_buffer = taken + 1;
        Ok(taken)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // The data is consistent at all times, so a panic elsewhere does not corrupt it.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for an allocated buffer that is in no ring.
    fn is_loose(&self, buffer: u32) -> bool {
        self.buffers.is_held(buffer, Holder::LOOSE)
    }

    fn give_back_all(&self, holder: Holder) {
        let _books = self.books();
        self.buffers.give_all(holder);
    }

    /// Notes that two buffers of the region have changed places.
    #[inline]
    pub(crate) fn exchanged(&self, a: u32, b: u32) {
        self.buffers.exchange(a, b);
    }
}

/// The buffers from [`RESERVED_BUFFERS`] on; number `i` is at `i - RESERVED_BUFFERS`.
pub(crate) fn pool_of(mapping: &Arc<Mapping>, geometry: &Geometry) -> Option<Pool> {
    let first = geometry.buf_offset() + u64::from(RESERVED_BUFFERS * geometry.buf_size);
    let count = geometry.buf_num.checked_sub(RESERVED_BUFFERS)?;
    Pool::new(mapping, usize::try_from(first).ok()?, geometry.buf_size, count)
}

/// A buffer that is in no ring. Exchanged for a slot's buffer, it can be kept, filled ahead or sent
/// again. It returns to its region on drop.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) region: Arc<Region>,
    pub(crate) number: u32,
}

impl Buffer {
    /// The buffer's number in the region.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The buffer's usable bytes.
    #[must_use]
    pub fn window(&self) -> Bytes<'_> {
        let Region { mapping, geometry, usable, .. } = &*self.region;
        let at = geometry.buf_offset() + u64::from(self.number) * u64::from(geometry.buf_size);
        mapping.bytes(at as usize, *usable as usize).unwrap_or(Bytes::empty())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let given = self.region.give_back(self.number);
        debug_assert!(given.is_ok(), "{given:?}");
    }
}
