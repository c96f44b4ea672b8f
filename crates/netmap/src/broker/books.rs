//! Tracks which interfaces, rings and buffers of a region are allocated. Pure: no memory, no files.

use netring::layout::RESERVED_BUFFERS;

/// The numbers `0..len`, each free or allocated.
#[derive(Debug)]
pub(super) struct Numbers {
    taken: Vec<bool>,
    free: usize,
    /// Where to look first.
    next: usize,
}

impl Numbers {
    pub(super) fn new(len: u32) -> Self {
        Self { taken: vec![false; len as usize], free: len as usize, next: 0 }
    }

    /// Takes one number.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.take_run(1)
    }

    /// Allocates `count` consecutive numbers; returns the first.
    pub(super) fn take_run(&mut self, count: u32) -> Option<u32> {
        let count = count as usize;
        if self.free < count {
            return None;
        }
        let ends = (self.taken.len() + 1).checked_sub(count)?;
        let next = self.next.min(ends);
        let is_free = |at: &usize| !self.taken[*at..at + count].contains(&true);
        let first = (next..ends).chain(0..next).find(is_free)?;
        self.taken[first..first + count].fill(true);
        self.free -= count;
        self.next = first + count;
        Some(first as u32)
    }

    /// Frees a number; returns false if it was not allocated.
    pub(super) fn give(&mut self, number: u32) -> bool {
        let was_taken = self.taken.get_mut(number as usize).is_some_and(std::mem::take);
        self.free += usize::from(was_taken);
        was_taken
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }
}

/// What is allocated in a region.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) interfaces: Numbers,
    pub(super) rings: Numbers,
    buffers: Numbers,
}

impl Books {
    /// Starts with only the reserved buffers allocated.
    pub(super) fn new(geometry: &netring::layout::Geometry) -> Self {
        let mut buffers = Numbers::new(geometry.buf_num);
        buffers.take_run(RESERVED_BUFFERS);
        let [interfaces, rings] = [geometry.if_num, geometry.ring_num].map(Numbers::new);
        Self { interfaces, rings, buffers }
    }

    /// Takes `count` buffers, or none.
    pub(super) fn take_buffers(&mut self, count: u32) -> Option<Vec<u32>> {
        if self.buffers.free() < count as usize {
            return None;
        }
        (0..count).map(|_| self.buffers.take()).collect()
    }

    /// Takes `count` consecutive buffers; returns the first.
    pub(super) fn take_run(&mut self, count: u32) -> Option<u32> {
        self.buffers.take_run(count)
    }

    /// Takes up to `count` buffers.
    pub(super) fn take_up_to(&mut self, count: u32) -> Vec<u32> {
        let count = count.min(self.buffers.free() as u32);
        self.take_buffers(count).unwrap_or_default()
    }

    /// Frees a buffer; returns false if it was not allocated, or is reserved.
    pub(super) fn give_buffer(&mut self, number: u32) -> bool {
        number >= RESERVED_BUFFERS && self.buffers.give(number)
    }

    /// Buffers that are free.
    #[cfg(test)]
    pub(super) fn free_buffers(&self) -> usize {
        self.buffers.free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_consecutive_and_what_is_given_back_is_found() {
        let mut numbers = Numbers::new(8);
        assert_eq!([numbers.take_run(3), numbers.take_run(4)], [Some(0), Some(3)]);
        assert_eq!([numbers.take_run(2), numbers.take()], [None, Some(7)]);
        assert!(numbers.give(4) && numbers.give(5) && !numbers.give(5) && !numbers.give(99));
        assert_eq!((numbers.take_run(2), numbers.free()), (Some(4), 0));
    }

    #[test]
    fn reserved_buffers_are_never_handed_out_nor_taken_back() {
        let geometry = netring::layout::Geometry { buf_num: 5, ..Default::default() };
        let mut books = Books::new(&geometry);
        assert_eq!(books.take_buffers(4), None);
        assert_eq!(books.take_up_to(9), [2, 3, 4]);
        assert!(!books.give_buffer(0) && !books.give_buffer(1) && books.give_buffer(3));
        assert_eq!(books.free_buffers(), 1);
    }
}
