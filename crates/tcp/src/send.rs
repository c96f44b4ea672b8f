//! The send buffer: a queue of chunks that are referenced, not copied.

use alloc::collections::VecDeque;
use core::fmt;

use bytes::Bytes;

use crate::pool::{BLOCK, Block, Pool};

enum Data {
    /// Memory of the application's, shared.
    Shared(Bytes),
    /// Small writes, copied one after the other, and their length in bytes.
    Copied(Block, usize),
}

struct Chunk {
    /// Where the chunk starts in the stream.
    start: u64,
    data: Data,
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Shared(bytes) => bytes,
            Data::Copied(block, len) => &block[..(*len).min(BLOCK)],
        }
    }
}

/// Data that the application has sent and the peer has not acknowledged.
#[derive(Default)]
pub(crate) struct SendBuffer {
    chunks: VecDeque<Chunk>,
    /// Position in the stream of the first unacknowledged byte.
    front: u64,
    end: u64,
}

impl SendBuffer {
    /// Bytes that are not acknowledged.
    #[inline]
    pub fn len(&self) -> usize {
        (self.end - self.front) as usize
    }

    /// Chunks in the queue.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Appends a chunk without copying it.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            let start = self.end;
            self.end += bytes.len() as u64;
            self.chunks.push_back(Chunk { start, data: Data::Shared(bytes) });
        }
    }

    /// Copies bytes into blocks; returns how many found room.
    pub fn copy_in(&mut self, mut bytes: &[u8], pool: &mut Pool) -> usize {
        let before = self.end;
        while !bytes.is_empty() {
            let room = match self.chunks.back_mut() {
                Some(Chunk { data: Data::Copied(block, len), .. }) if *len < BLOCK => (block, len),
                _ => {
                    let Some(block) = pool.take() else { break };
                    let data = Data::Copied(block, 0);
                    self.chunks.push_back(Chunk { start: self.end, data });
                    continue;
                }
            };
            let (block, len) = room;
            let n = bytes.len().min(BLOCK - *len);
            block[*len..*len + n].copy_from_slice(&bytes[..n]);
            *len += n;
            self.end += n as u64;
            bytes = &bytes[n..];
        }
        (self.end - before) as usize
    }

    /// Drops the first `n` bytes, which are acknowledged.
    pub fn acknowledge(&mut self, n: usize, pool: &mut Pool) {
        self.front = (self.front + n as u64).min(self.end);
        while let Some(chunk) = self.chunks.front() {
            if chunk.start + chunk.bytes().len() as u64 > self.front {
                break;
            }
            if let Some(Chunk { data: Data::Copied(block, _), .. }) = self.chunks.pop_front() {
                pool.give(block);
            }
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.acknowledge(self.len(), pool);
    }

    /// Returns `len` bytes, or as many as there are, starting `offset` bytes after the first
    /// unacknowledged byte.
    pub fn payload(&self, offset: usize, len: usize) -> Payload<'_> {
        let start = (self.front + offset as u64).min(self.end);
        let len = len.min((self.end - start) as usize);
        let first = self.chunks.partition_point(|chunk| chunk.start <= start).saturating_sub(1);
        let skip = self.chunks.get(first).map_or(0, |chunk| (start - chunk.start) as usize);
        Payload { chunks: Some(&self.chunks), first, skip, len }
    }
}

/// Payload of a segment, in pieces that stay in the application's memory.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    chunks: Option<&'a VecDeque<Chunk>>,
    first: usize,
    skip: usize,
    len: usize,
}

impl<'a> Payload<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self { chunks: None, first: 0, skip: 0, len: 0 };

    /// Bytes of all pieces.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the payload has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, in order.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (mut skip, mut left) = (self.skip, self.len);
        let chunks = self.chunks.into_iter().flat_map(|chunks| chunks.iter()).skip(self.first);
        chunks.map_while(move |chunk| {
            let bytes = chunk.bytes().get(skip..).unwrap_or(&[]);
            let piece = &bytes[..bytes.len().min(left)];
            skip = 0;
            left -= piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Copies as much of the payload as fits to the start of `out`; returns the number of bytes.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        for piece in self.pieces() {
            let n = piece.len().min(out.len() - at);
            out[at..at + n].copy_from_slice(&piece[..n]);
            at += n;
        }
        at
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_queue_of_bytes(steps in proptest::collection::vec((0u8..4, 0usize..6000, 0usize..6000), 0..60)) {
            let mut pool = Pool::new(64 * BLOCK, 4 * BLOCK);
            let mut buffer = SendBuffer::default();
            let mut model: Vec<u8> = Vec::new();
            let mut next = 0u8;
            for (step, a, b) in steps {
                let bytes: Vec<u8> = (0..a).map(|i| next.wrapping_add(i as u8)).collect();
                match step {
                    0 => {
                        buffer.push(Bytes::from(bytes.clone()));
                        model.extend(&bytes);
                    }
                    1 => {
                        let n = buffer.copy_in(&bytes, &mut pool);
                        model.extend(&bytes[..n]);
                    }
                    2 => {
                        let n = a.min(model.len());
                        buffer.acknowledge(n, &mut pool);
                        model.drain(..n);
                    }
                    _ => {
                        let (start, end) = (a.min(model.len()), (a + b).min(model.len()));
                        let payload = buffer.payload(a, b);
                        let mut out = vec![0; payload.len()];
                        prop_assert_eq!(payload.copy_to(&mut out), payload.len());
                        prop_assert_eq!(&out[..], &model[start..end]);
                    }
                }
                next = next.wrapping_add(7);
                prop_assert_eq!(buffer.len(), model.len());
            }
            buffer.clear(&mut pool);
            prop_assert_eq!(pool.used_bytes(), 0);
        }
    }
}
