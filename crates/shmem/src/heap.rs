//! Private memory from which frames are lent.

use alloc::boxed::Box;
use alloc::vec;
use core::ptr::NonNull;

use crate::Bytes;

/// Zeroed memory on the heap. Its bytes are only copied in and out, so one part of it can be
/// written while another is lent.
#[derive(Debug)]
pub struct Heap {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is this value's own; access goes through windows, which only copy.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// `len` zero bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let memory: Box<[u8]> = vec![0; len].into();
        let at = Box::into_raw(memory).cast::<u8>();
        // SAFETY: a box is never null.
        Self { at: unsafe { NonNull::new_unchecked(at) }, len }
    }

    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A window on all bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> Bytes<'_> {
        // SAFETY: the memory lives as long as self, and no code makes references to its bytes.
        unsafe { Bytes::from_raw(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let memory = core::ptr::slice_from_raw_parts_mut(self.at.as_ptr(), self.len);
        // SAFETY: `new` made it from a box of this length, and no window outlives self.
        drop(unsafe { Box::from_raw(memory) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_while_others_are_lent() {
        let heap = Heap::new(100);
        let lent = heap.bytes().get(0, 50).unwrap();
        lent.fill(7);
        heap.bytes().get(50, 50).unwrap().fill(9);
        assert_eq!(lent.to_vec(), [7; 50]);
        assert_eq!(heap.bytes().to_vec()[50..], [9; 50]);
        assert!(heap.bytes().get(60, 41).is_none() && heap.len() == 100 && !heap.is_empty());
    }
}
