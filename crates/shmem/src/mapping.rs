//! Mapped memory, and what it is divided into: windows, words that both sides use, buffer pools.

use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

#[cfg(feature = "std")]
use crate::region::Backing;
use crate::{Bytes, Shareable};

/// Memory that no operating system has mapped: it stays, and does not fail.
#[cfg(not(feature = "std"))]
#[derive(Debug)]
pub(crate) struct Backing;

#[cfg(not(feature = "std"))]
impl Backing {
    pub const fn none() -> Self {
        Self
    }

    pub fn has_failed(&self) -> bool {
        false
    }

    pub fn discard(&self, memory: Bytes<'_>) {
        memory.fill(0);
    }

    pub fn release(&mut self, _memory: Bytes<'_>) {}
}

/// A mapped range. It is unmapped when its last holder drops it.
pub struct Mapping {
    pub(crate) at: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) backing: Backing,
}

// SAFETY: a mapping is an address range; access goes through Bytes and atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The `len` bytes at `at`, which something else has mapped: on a bare machine, or for a
    /// device. They are not unmapped.
    ///
    /// # Safety
    /// They must stay mapped, readable and writable, as long as the result or something made of it
    /// is held. Meanwhile, this process may hold no references to any of them, except to atomics.
    #[must_use]
    pub unsafe fn raw(at: NonNull<u8>, len: usize) -> Arc<Self> {
        Arc::new(Self { at, len, backing: Backing::none() })
    }

    /// Zeroes memory that is private to this process. A mapping without a file returns its pages to
    /// the system.
    pub fn discard(&self) {
        self.backing.discard(self.all());
    }

    /// Bytes mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the mapping has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The mapping's address in this process, for requests to the kernel.
    #[must_use]
    pub fn address(&self) -> usize {
        self.at.addr().get()
    }

    /// True if the memory has failed: some of it is zeros that the other side does not see. See
    /// `guard`.
    #[inline(always)]
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.backing.has_failed()
    }

    /// A window on the whole mapping.
    #[inline]
    #[must_use]
    pub fn all(&self) -> Bytes<'_> {
        // SAFETY: mapped until self is dropped; code makes no references into a mapping but to
        // atomics, which tolerate copies racing with them.
        unsafe { Bytes::from_raw(self.at.as_ptr(), self.len) }
    }

    /// A window on `len` bytes at `at`, or `None` if they are not all mapped.
    #[inline]
    #[must_use]
    pub fn bytes(&self, at: usize, len: usize) -> Option<Bytes<'_>> {
        self.all().get(at, len)
    }

    /// The `T` at byte `at`, which keeps the mapping. `None` if it is misaligned or does not lie
    /// within the mapping.
    #[must_use]
    pub fn shared<T: Shareable>(self: &Arc<Self>, at: usize) -> Option<Shared<T>> {
        let slice = self.shared_slice::<T>(at, 1)?;
        Some(Shared { at: slice.at, mapping: slice.mapping })
    }

    /// The `count` values of `T` at byte `at`; see [`shared`](Self::shared).
    #[must_use]
    pub fn shared_slice<T: Shareable>(
        self: &Arc<Self>,
        at: usize,
        count: usize,
    ) -> Option<SharedSlice<T>> {
        let window = self.bytes(at, count.checked_mul(size_of::<T>())?)?;
        let at = self.at.as_ptr().wrapping_add(at).cast::<T>();
        let at = NonNull::new(at).filter(|p| p.is_aligned() && !window.is_empty())?;
        Some(SharedSlice { at, count, mapping: Arc::clone(self) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (at, len) = (self.at.as_ptr(), self.len);
        // SAFETY: mapped until now; no window or `Shared` outlives the mapping.
        self.backing.release(unsafe { Bytes::from_raw(at, len) });
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len)
    }
}

/// A shared `T` that keeps its mapping.
pub struct Shared<T> {
    at: NonNull<T>,
    mapping: Arc<Mapping>,
}

impl<T> Shared<T> {
    /// The mapping that the value lies in.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl<T: Shareable> Shared<T> {
    /// A part of the value, which also keeps the mapping.
    #[must_use]
    pub fn part<U: Shareable>(&self, of: impl FnOnce(&T) -> &U) -> Shared<U> {
        Shared { at: NonNull::from(of(self)), mapping: Arc::clone(&self.mapping) }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, mapping: Arc::clone(&self.mapping) }
    }
}

// SAFETY: T is Shareable, hence Sync, and the mapping is Send and Sync.
unsafe impl<T: Shareable> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Shareable> Sync for Shared<T> {}

impl<T: Shareable> Deref for Shared<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: aligned, inside the mapping (checked when made), mapped as long as self lives,
        // and valid whatever bytes it has (Shareable).
        unsafe { self.at.as_ref() }
    }
}

impl<T: Shareable + fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Consecutive shared values of `T`.
pub struct SharedSlice<T> {
    at: NonNull<T>,
    count: usize,
    mapping: Arc<Mapping>,
}

impl<T> Clone for SharedSlice<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, count: self.count, mapping: Arc::clone(&self.mapping) }
    }
}

// SAFETY: as for Shared.
unsafe impl<T: Shareable> Send for SharedSlice<T> {}
// SAFETY: as for Shared.
unsafe impl<T: Shareable> Sync for SharedSlice<T> {}

impl<T: Shareable> Deref for SharedSlice<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: as for Shared, for `count` values.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl<T> fmt::Debug for SharedSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSlice({} of {})", self.count, core::any::type_name::<PhantomData<T>>())
    }
}

/// Equal buffers at equal distances in a mapping.
#[derive(Clone, Debug)]
pub struct Pool {
    at: *mut u8,
    stride: u32,
    count: u32,
    _mapping: Arc<Mapping>,
}

// SAFETY: an address range kept mapped by the Arc; access goes through Bytes.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// `count` buffers, `stride` bytes apart, from byte `at` on; `None` if they are not all mapped.
    #[must_use]
    pub fn new(mapping: &Arc<Mapping>, at: usize, stride: u32, count: u32) -> Option<Self> {
        mapping.bytes(at, (stride as usize).checked_mul(count as usize)?)?;
        let at = mapping.at.as_ptr().wrapping_add(at);
        Some(Self { at, stride, count, _mapping: Arc::clone(mapping) })
    }

    /// Buffers in the pool.
    #[inline(always)]
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes from one buffer to the next.
    #[inline(always)]
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// The pool's buffers, lent.
    #[inline(always)]
    #[must_use]
    pub fn buffers(&self) -> Buffers<'_> {
        let Self { at, stride, count, .. } = *self;
        Buffers { at, stride, count, pool: PhantomData }
    }

    /// Like [`Buffers::get`].
    #[inline(always)]
    #[must_use]
    pub fn get(&self, index: u32, len: u32) -> Option<Bytes<'_>> {
        self.buffers().get(index, len)
    }
}

/// The buffers of a pool, as a copy for loops. The compiler then knows that writes to buffers do
/// not change where the buffers are.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'p> {
    at: *mut u8,
    stride: u32,
    count: u32,
    pool: PhantomData<&'p Pool>,
}

impl<'p> Buffers<'p> {
    /// Windows on the first `len` bytes of each buffer, or `None` if the buffers are shorter.
    #[inline(always)]
    #[must_use]
    pub fn windows(self, len: u32) -> Option<Windows<'p>> {
        (len <= self.stride).then_some(Windows { buffers: self, len })
    }

    /// The first `len` bytes of buffer `index`, or `None` if there is no such buffer or it is
    /// shorter.
    #[inline(always)]
    #[must_use]
    pub fn get(self, index: u32, len: u32) -> Option<Bytes<'p>> {
        self.windows(len)?.get(index)
    }
}

/// Windows of the same length on the start of each buffer of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'p> {
    buffers: Buffers<'p>,
    len: u32,
}

impl<'p> Windows<'p> {
    /// Bytes of each window.
    #[inline(always)]
    #[must_use]
    pub fn size(self) -> u32 {
        self.len
    }

    /// The window on buffer `index`, or `None` if there is no such buffer.
    #[inline(always)]
    #[must_use]
    pub fn get(self, index: u32) -> Option<Bytes<'p>> {
        let Buffers { at, stride, count, .. } = self.buffers;
        let at = at.wrapping_add(index as usize * stride as usize);
        // SAFETY: index < count and len <= stride (`Buffers::windows`), so it lies in the range
        // that `Pool::new` found mapped; the pool, which is borrowed for 'p, keeps it so.
        (index < count).then(|| unsafe { Bytes::from_raw(at, self.len as usize) })
    }
}
