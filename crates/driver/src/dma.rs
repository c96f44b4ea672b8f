//! Memory that driver and device share, with the device's addresses for it.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use shmem::{Bytes, Mapping, Shareable, SharedSlice};

/// A part of a mapping, handed out from its start on. Chunks are never returned.
#[derive(Clone, Debug)]
pub struct Dma {
    mapping: Arc<Mapping>,
    /// Offset in the mapping of the first free byte, and of the end.
    next: usize,
    end: usize,
    /// What to add to an offset to get the device's address, modulo 2^64.
    bias: u64,
}

impl Dma {
    /// The `len` bytes at `offset` of `mapping`, at address `device` for the device. `None` if they
    /// are not all mapped.
    #[must_use]
    pub fn new(mapping: Arc<Mapping>, offset: usize, len: usize, device: u64) -> Option<Self> {
        mapping.bytes(offset, len)?;
        let bias = device.wrapping_sub(offset as u64);
        Some(Self { mapping, next: offset, end: offset + len, bias })
    }

    /// Hands out the next `len` bytes, zeroed, at a device address that is a multiple of `align` (a
    /// power of two). `None` if too few are left.
    pub fn take(&mut self, len: usize, align: usize) -> Option<Chunk> {
        let device = self.bias.wrapping_add(self.next as u64);
        let skip = device.wrapping_neg() as usize & (align - 1);
        let offset = self.next.checked_add(skip)?;
        let end = offset.checked_add(len).filter(|end| *end <= self.end)?;
        self.next = end;
        let device = self.bias.wrapping_add(offset as u64);
        let chunk = Chunk { mapping: Arc::clone(&self.mapping), offset, len, device };
        chunk.bytes().fill(0);
        Some(chunk)
    }
}

/// A chunk of shared memory that was handed out.
#[derive(Clone, Debug)]
pub struct Chunk {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
    device: u64,
}

impl Chunk {
    /// Returns the device's address of the chunk's first byte.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.device
    }

    /// The chunk's bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> Bytes<'_> {
        self.mapping.bytes(self.offset, self.len).unwrap_or(Bytes::empty())
    }

    /// The `count` values of `T` at the chunk's start; `None` if the chunk is too short or not
    /// aligned.
    #[must_use]
    pub fn words<T: Shareable>(&self, count: usize) -> Option<SharedSlice<T>> {
        let fits = count.checked_mul(size_of::<T>())? <= self.len;
        fits.then(|| self.mapping.shared_slice(self.offset, count)).flatten()
    }
}

/// A ring of descriptors of two 64-bit words each.
#[derive(Clone, Debug)]
pub struct Slots {
    /// Its descriptors.
    pub words: SharedSlice<[AtomicU64; 2]>,
    /// The device's address of the first descriptor.
    pub device: u64,
}

impl Slots {
    /// A ring of `count` descriptors, aligned to 128 bytes at least, and in one page if it fits.
    pub fn take(dma: &mut Dma, count: u32) -> Option<Self> {
        let len = 16 * count as usize;
        let chunk = dma.take(len, within_a_page(len).max(128))?;
        Some(Self { words: chunk.words(count as usize)?, device: chunk.device() })
    }
}

/// The alignment at which `len` bytes lie in one page, if they fit: behind an IOMMU, the next page
/// may be elsewhere in memory.
pub(crate) fn within_a_page(len: usize) -> usize {
    len.next_power_of_two().min(4096)
}

/// Equal buffers, one for each descriptor of a ring.
#[derive(Clone, Debug)]
pub struct Buffers {
    chunk: Chunk,
    len: usize,
    stride: usize,
}

impl Buffers {
    /// Makes `count` buffers of `len` bytes, spaced so that they spread over the cache.
    pub fn take(dma: &mut Dma, count: u32, len: u32) -> Option<Self> {
        let stride = (len as usize).next_multiple_of(64) + 64;
        let chunk = dma.take(stride * count as usize, 64)?;
        Some(Self { chunk, len: len as usize, stride })
    }

    /// Bytes of each buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the buffers have no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A view of buffer `i`; an empty one if there is no such buffer.
    #[inline]
    #[must_use]
    pub fn get(&self, i: u32) -> Bytes<'_> {
        let at = i as usize * self.stride;
        self.chunk.bytes().get(at, self.len).unwrap_or(Bytes::empty())
    }

    /// The device's address of buffer `i`.
    #[inline]
    #[must_use]
    pub fn device(&self, i: u32) -> u64 {
        self.chunk.device + u64::from(i) * self.stride as u64
    }
}
