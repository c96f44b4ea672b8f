//! Blocks of memory for copied data: unread data, out-of-order data, small writes.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// A block of memory, from the pool.
pub(crate) type Block = Box<[u8; BLOCK]>;

/// All blocks of a machine: their limit, and the free blocks that are kept for reuse.
pub(crate) struct Pool {
    free: Vec<Block>,
    /// Blocks in use.
    used: usize,
    /// The limit of blocks in use.
    max: usize,
    /// Maximum number of free blocks to keep.
    keep: usize,
}

impl Pool {
    pub fn new(max_bytes: usize, keep_bytes: usize) -> Self {
        Self { free: Vec::new(), used: 0, max: max_bytes / BLOCK, keep: keep_bytes / BLOCK }
    }

    /// Takes a block; `None` if the limit is reached.
    pub fn take(&mut self) -> Option<Block> {
        if self.used >= self.max {
            return None;
        }
        let block = match self.free.pop() {
            Some(block) => block,
            None => vec![0; BLOCK].into_boxed_slice().try_into().ok()?,
        };
        self.used += 1;
        Some(block)
    }

    /// Takes a block back.
    pub fn give(&mut self, block: Block) {
        self.used = self.used.saturating_sub(1);
        if self.free.len() < self.keep {
            self.free.push(block);
        }
    }

    /// Bytes of blocks in use.
    pub fn used_bytes(&self) -> usize {
        self.used * BLOCK
    }
}
