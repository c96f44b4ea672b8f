//! Checked windows on memory that others may write, and the exact copy.

use alloc::vec;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::AtomicU64;

/// Asks the processor to fetch the line at `at`; never faults.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it does not access memory architecturally.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Like [`prefetch`], for a line that is about to be written. The line arrives in the writer's
/// exclusive state, so it crosses between the cores once instead of twice.
#[inline(always)]
pub fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, as above. Processors without the instruction (before 2006) take it for no
    // operation; the intrinsic would become a fetch to read unless the whole program is built for
    // newer ones.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks the processor to fetch all lines of `value`.
#[inline(always)]
pub fn prefetch_all<T>(value: &T) {
    let at: *const u8 = ptr::from_ref(value).cast();
    (0..size_of::<T>()).step_by(64).for_each(|i| prefetch(at.wrapping_add(i)));
}

/// Copies exactly `len` bytes. The last pieces overlap instead of a tail loop. That is as fast as
/// copying a rounded-up length, and leaks no neighbour's bytes.
///
/// # Safety
/// Both ranges must be mapped for `len` bytes and must not overlap each other.
#[inline(always)]
unsafe fn copy_exact(from: *const u8, to: *mut u8, len: usize) {
    /// Copies `N` bytes at `from + at`.
    ///
    /// # Safety
    /// As for [`copy_exact`], for the `N` bytes at `at`.
    #[inline(always)]
    unsafe fn piece<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
        // SAFETY: the caller keeps this function's contract. The array goes through registers and
        // needs no alignment.
        unsafe {
            let bytes = ptr::read_unaligned(from.add(at).cast::<[u8; N]>());
            ptr::write_unaligned(to.add(at).cast::<[u8; N]>(), bytes);
        }
    }
    // SAFETY: every piece lies within `len`, which the caller vouches for.
    unsafe {
        match len {
            32..=64 => {
                piece::<32>(from, to, 0);
                piece::<32>(from, to, len - 32);
            }
            // The C library's copy uses the machine's vector instructions, which is faster from
            // this length on.
            256.. => ptr::copy_nonoverlapping(from, to, len),
            65.. => {
                let mut at = 0;
                while at + 64 <= len {
                    piece::<64>(from, to, at);
                    at += 64;
                }
                if at < len {
                    piece::<64>(from, to, len - 64);
                }
            }
            16.. => {
                piece::<16>(from, to, 0);
                piece::<16>(from, to, len - 16);
            }
            8.. => {
                piece::<8>(from, to, 0);
                piece::<8>(from, to, len - 8);
            }
            _ => ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// A checked window on shared bytes. It lies inside its mapping by construction, and allows only
/// copying.
///
/// The other side may write while a copy runs. The result is then a mixture of old and new, but
/// never undefined. Treat a copy as opaque bytes, and parse the private copy.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'m> {
    at: *mut u8,
    len: usize,
    mapping: PhantomData<&'m [AtomicU64]>,
}

// SAFETY: a window is an address range that stays mapped for 'm; all access copies.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for Bytes<'_> {}

impl<'m> Bytes<'m> {
    /// A window on `len` bytes at `at`.
    ///
    /// # Safety
    /// The range must stay mapped readable and writable for `'m`, and no code in this process
    /// may hold a reference to any byte of it meanwhile.
    #[inline]
    #[must_use]
    pub unsafe fn from_raw(at: *mut u8, len: usize) -> Self {
        Self { at, len, mapping: PhantomData }
    }

    /// The address where the window starts, for tables of this crate and for programs in C.
    #[must_use]
    pub fn as_ptr(self) -> *mut u8 {
        self.at
    }

    /// A window of no bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { at: ptr::dangling_mut(), len: 0, mapping: PhantomData }
    }

    /// A window on private memory, for code in this process.
    #[inline]
    #[must_use]
    pub fn of(private: &'m mut [u8]) -> Self {
        Self { at: private.as_mut_ptr(), len: private.len(), mapping: PhantomData }
    }

    /// The bytes themselves, for memory that is not shared at the time.
    ///
    /// # Safety
    /// For `'m`, nothing else may read or write them: no other window, process or system call.
    #[must_use]
    pub unsafe fn exclusive(self) -> &'m mut [u8] {
        // SAFETY: mapped for 'm, as the window is; exclusive by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Bytes in the window.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// True if the window has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The `len` bytes at `at`, or `None` if they do not lie within the window.
    #[inline]
    #[must_use]
    pub fn get(self, at: usize, len: usize) -> Option<Self> {
        let end = at.checked_add(len)?;
        // SAFETY: at <= end <= self.len.
        (end <= self.len).then(|| Self { at: unsafe { self.at.add(at) }, len, ..self })
    }

    /// The first `len` bytes, or all there are.
    #[inline]
    #[must_use]
    pub fn prefix(self, len: usize) -> Self {
        Self { len: len.min(self.len), ..self }
    }

    /// The window after the first `at` bytes; empty if there are fewer.
    #[inline]
    #[must_use]
    pub fn suffix(self, at: usize) -> Self {
        let at = at.min(self.len);
        // SAFETY: at <= self.len.
        Self { at: unsafe { self.at.add(at) }, len: self.len - at, ..self }
    }

    /// Copies the window's first bytes out; returns how many (the shorter of the two lengths).
    #[inline]
    pub fn copy_out(self, to: &mut [u8]) -> usize {
        let len = self.len.min(to.len());
        // SAFETY: both sides have `len` bytes; `to` is exclusive, so they do not overlap.
        unsafe { copy_exact(self.at, to.as_mut_ptr(), len) };
        len
    }

    /// Copies `from` to the window's start; returns how many bytes fitted.
    #[inline]
    pub fn copy_in(self, from: &[u8]) -> usize {
        let len = self.len.min(from.len());
        // SAFETY: both sides have `len` bytes; no code holds a reference into the window.
        unsafe { copy_exact(from.as_ptr(), self.at, len) };
        len
    }

    /// Copies this window to the start of `to`; returns how many bytes fitted.
    #[inline]
    pub fn copy_to(self, to: Bytes<'_>) -> usize {
        let len = self.len.min(to.len);
        if self.at.addr().abs_diff(to.at.addr()) < len {
            // One owner lent the same buffer twice. The result may be a mixture, but is defined.
            // SAFETY: both ranges are mapped; `copy` allows overlap.
            unsafe { ptr::copy(self.at, to.at, len) };
        } else {
            // SAFETY: both ranges are mapped for `len` bytes and do not overlap.
            unsafe { copy_exact(self.at, to.at, len) };
        }
        len
    }

    /// True if the window held exactly `bytes` when each of its words was read. The other side may
    /// change them meanwhile.
    #[inline]
    #[must_use]
    pub fn equals(self, bytes: &[u8]) -> bool {
        if self.len != bytes.len() {
            return false;
        }
        let Some(last) = bytes.last_chunk::<8>() else {
            let mut few = [0; 8];
            self.copy_out(&mut few);
            return few[..bytes.len()] == *bytes;
        };
        // Compares words that were read into registers. The C library's comparison may read a byte
        // twice, and fails on changes. The last word may overlap the one before.
        let differs = |at: usize, ours: &[u8; 8]| {
            // SAFETY: the window has as many bytes as `bytes`, which has eight at `at`.
            let theirs = unsafe { ptr::read_unaligned(self.at.add(at).cast::<[u8; 8]>()) };
            u64::from_ne_bytes(*ours) ^ u64::from_ne_bytes(theirs)
        };
        let words = bytes.as_chunks::<8>().0.iter().enumerate();
        let differ = words.fold(0, |differ, (i, word)| differ | differs(8 * i, word));
        differ | differs(bytes.len() - 8, last) == 0
    }

    /// Reads a `T` at byte `at`, or `None` if it does not lie within the window.
    #[inline]
    #[must_use]
    pub fn read<T: zerocopy::FromBytes>(self, at: usize) -> Option<T> {
        let window = self.get(at, size_of::<T>())?;
        // SAFETY: the window has size_of::<T>() bytes, and every pattern of them is a T.
        Some(unsafe { ptr::read_unaligned(window.at.cast::<T>()) })
    }

    /// Writes `value` at byte `at`; false if it does not fit there.
    #[inline]
    pub fn write<T: zerocopy::IntoBytes + zerocopy::Immutable>(self, at: usize, value: T) -> bool {
        let Some(window) = self.get(at, size_of::<T>()) else { return false };
        // SAFETY: the window has size_of::<T>() bytes.
        unsafe { ptr::write_unaligned(window.at.cast::<T>(), value) };
        true
    }

    /// Sets every byte to `value`.
    pub fn fill(self, value: u8) {
        // SAFETY: the window is mapped for its length.
        unsafe { ptr::write_bytes(self.at, value, self.len) };
    }

    /// Copies the window into a new vector: for set-up and tests, not for the data path.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_out(&mut bytes);
        bytes
    }

    /// Fetches the window's first line ahead of use.
    #[inline(always)]
    pub fn prefetch(self) {
        prefetch(self.at);
    }

    /// Fetches the line at byte `at`, even outside the window: it is only a hint.
    #[inline(always)]
    pub fn prefetch_at(self, at: usize) {
        prefetch(self.at.wrapping_add(at));
    }

    /// Like [`prefetch_at`](Self::prefetch_at), for bytes that are about to be written.
    #[inline(always)]
    pub fn prefetch_to_write(self, at: usize) {
        prefetch_to_write(self.at.wrapping_add(at));
    }

    /// The window without its lifetime, for tables that outlive a borrow. See [`Span`].
    #[inline]
    #[must_use]
    pub fn span(self) -> Span {
        Span { at: self.at, len: self.len as u32 }
    }
}

/// A window without a lifetime: `dataplane`'s map epochs vouch for its mapping. Frames in a batch
/// are made of these. Frames contain no windows of 4 GiB or more.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    at: *mut u8,
    len: u32,
}

// SAFETY: an address range; using it requires `bytes`, whose caller vouches for the mapping.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// A span of no bytes.
    pub const EMPTY: Self = Self { at: ptr::dangling_mut(), len: 0 };

    /// Bytes in the span.
    #[inline(always)]
    #[must_use]
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// True if the span has no bytes.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Turns the span into a window again.
    ///
    /// # Safety
    /// The mapping this span came from must stay mapped for `'m`.
    #[inline(always)]
    #[must_use]
    pub unsafe fn bytes<'m>(self) -> Bytes<'m> {
        Bytes { at: self.at, len: self.len as usize, mapping: PhantomData }
    }

    /// Fetches the span's first line ahead of use.
    #[inline(always)]
    pub fn prefetch(self) {
        prefetch(self.at);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_length() {
        let from: Vec<u8> = (0..300).map(|i| i as u8 ^ 0x5a).collect();
        for len in 0..=256 {
            let mut to = vec![0xee; 300];
            let mut source = from.clone();
            assert_eq!(Bytes::of(&mut source[..len]).copy_to(Bytes::of(&mut to)), len);
            assert_eq!(to[..len], from[..len]);
            assert!(to[len..].iter().all(|b| *b == 0xee), "length {len} wrote past its end");
        }
    }

    #[test]
    fn a_window_equals_its_bytes_and_no_others() {
        let mut memory = *b"abcdef";
        let window = Bytes::of(&mut memory);
        assert!(window.equals(b"abcdef") && window.prefix(2).equals(b"ab"));
        assert!(window.prefix(0).equals(b""));
        for other in [&b"abcdeg"[..], b"Abcdef", b"abcde", b"abcdef\0", b""] {
            assert!(!window.equals(other), "{other:?}");
        }
        for len in [7, 8, 9, 63, 64, 65, 200] {
            let mut memory: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let bytes = memory.clone();
            assert!(Bytes::of(&mut memory).equals(&bytes));
            for i in 0..len {
                memory[i] ^= 1;
                assert!(!Bytes::of(&mut memory).equals(&bytes), "byte {i} of {len}");
                memory[i] ^= 1;
            }
        }
    }

    #[test]
    fn windows_cannot_leave_their_mapping() {
        let mut memory = [0u8; 64];
        let window = Bytes::of(&mut memory);
        assert!(window.get(60, 4).is_some());
        assert!(window.get(60, 5).is_none());
        assert!(window.get(usize::MAX, 2).is_none());
        assert_eq!(window.read::<u32>(61), None);
        assert!(!window.write(61, 7u32));
        assert!(window.write(60, 7u32));
        assert_eq!(window.read::<u32>(60), Some(7));
        assert_eq!(window.suffix(100).len(), 0);
    }

    #[test]
    fn a_buffer_lent_twice_is_copied_onto_itself() {
        let mut memory = [0u8; 200];
        memory[0] = 9;
        let window = Bytes::of(&mut memory);
        assert_eq!(window.copy_to(window.suffix(1)), 199);
        assert_eq!(window.read::<u8>(1), Some(9));
    }
}
