//! The receive buffer: unread data and out-of-order data.
//!
//! It is a window into the stream, laid over blocks. Out-of-order data goes to its final place at
//! once, so nothing is copied twice, and overlaps need no special case.

use alloc::collections::VecDeque;

use crate::pool::{BLOCK, Block, Pool};

#[derive(Default)]
pub(crate) struct ReceiveBuffer {
    blocks: VecDeque<Option<Block>>,
    /// Offset of the first unread byte in the first block.
    start: usize,
    readable: usize,
}

impl ReceiveBuffer {
    /// Bytes that can be read.
    #[inline]
    pub fn readable(&self) -> usize {
        self.readable
    }

    /// Writes `bytes` at `offset` from the first unread byte. Returns false if the pool is empty;
    /// some bytes may be written even then.
    pub fn write(&mut self, offset: usize, mut bytes: &[u8], pool: &mut Pool) -> bool {
        let mut at = self.start + offset;
        while !bytes.is_empty() {
            let index = at / BLOCK;
            while self.blocks.len() <= index {
                self.blocks.push_back(None);
            }
            let place = &mut self.blocks[index];
            if place.is_none() {
                *place = pool.take();
            }
            let Some(block) = place else { return false };
            let n = bytes.len().min(BLOCK - at % BLOCK);
            block[at % BLOCK..at % BLOCK + n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            at += n;
        }
        true
    }

    /// Makes the next `n` written bytes readable.
    pub fn extend(&mut self, n: usize) {
        self.readable += n;
    }

    /// Returns the first contiguous piece of readable data.
    pub fn front(&self) -> &[u8] {
        let end = (self.start + self.readable).min(BLOCK);
        match self.blocks.front() {
            Some(Some(block)) if self.readable > 0 => &block[self.start..end],
            _ => &[],
        }
    }

    /// Copies readable bytes from `offset` on, without consuming them; returns their number.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> usize {
        let total = out.len().min(self.readable.saturating_sub(offset));
        let mut done = 0;
        while done < total {
            let at = self.start + offset + done;
            let Some(Some(block)) = self.blocks.get(at / BLOCK) else { break };
            let n = (total - done).min(BLOCK - at % BLOCK);
            out[done..done + n].copy_from_slice(&block[at % BLOCK..at % BLOCK + n]);
            done += n;
        }
        done
    }

    /// Drops the first `n` readable bytes.
    pub fn consume(&mut self, n: usize, pool: &mut Pool) {
        let n = n.min(self.readable);
        self.readable -= n;
        self.skip(n, pool);
    }

    /// Skips `n` bytes that the application took from the segment itself. Nothing may be readable.
    pub fn skip(&mut self, n: usize, pool: &mut Pool) {
        self.start += n;
        while self.start >= BLOCK {
            match self.blocks.pop_front() {
                Some(block) => block.into_iter().for_each(|block| pool.give(block)),
                None => {
                    self.start %= BLOCK;
                    return;
                }
            }
            self.start -= BLOCK;
        }
    }

    /// Returns unused blocks to the pool. Call it only when there is no out-of-order data.
    pub fn shrink(&mut self, pool: &mut Pool) {
        if self.readable == 0 {
            self.clear(pool);
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, pool: &mut Pool) {
        while let Some(block) = self.blocks.pop_front() {
            block.into_iter().for_each(|block| pool.give(block));
        }
        (self.start, self.readable) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn out_of_order_bytes_lie_where_they_belong() {
        let mut pool = Pool::new(1 << 20, 0);
        let mut buffer = ReceiveBuffer::default();
        let bytes: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        assert!(buffer.write(9_000, &bytes[9_000..], &mut pool));
        assert_eq!(buffer.front(), &[] as &[u8]);
        assert!(buffer.write(0, &bytes[..9_500], &mut pool));
        buffer.extend(bytes.len());
        let mut peeked = [0; 10];
        assert_eq!(buffer.copy_out(4_090, &mut peeked), 10);
        assert_eq!(peeked, bytes[4_090..4_100]);
        let mut read = Vec::new();
        while buffer.readable() > 0 {
            let n = buffer.front().len().min(1000);
            read.extend_from_slice(&buffer.front()[..n]);
            buffer.consume(n, &mut pool);
        }
        assert_eq!(read, bytes);
        buffer.shrink(&mut pool);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn lent_bytes_move_the_window() {
        let mut pool = Pool::new(1 << 20, 0);
        let mut buffer = ReceiveBuffer::default();
        assert!(buffer.write(5_000, b"later", &mut pool));
        buffer.skip(5_000, &mut pool);
        buffer.extend(5);
        assert_eq!(buffer.front(), b"later");
        buffer.consume(5, &mut pool);
        buffer.skip(1 << 40, &mut pool);
        assert_eq!((buffer.front().len(), pool.used_bytes()), (0, 0));
    }

    #[test]
    fn an_empty_pool_refuses() {
        let mut pool = Pool::new(BLOCK, 0);
        let mut buffer = ReceiveBuffer::default();
        assert!(buffer.write(0, &[1; BLOCK], &mut pool));
        assert!(!buffer.write(BLOCK, &[1], &mut pool));
    }
}
