//! The memory of a link's frames.
//!
//! Frames lie one after the other in chunks. A chunk is used again once all of its frames are gone,
//! so frames that leave early (overtaken, dropped from the middle of a queue) cost at most the rest
//! of their chunk. Chunks are made on demand, up to a limit.

use std::collections::VecDeque;

use port::{Nanos, Offload, Picked};
use shmem::{Bytes, Heap};

/// Bytes of a chunk. A longer frame gets a chunk of its own.
pub(crate) const CHUNK: usize = 64 << 10;
/// The maximum number of chunks of a link.
const CHUNKS: usize = 1 << 16;
/// Empty chunks that are kept for the next frames.
const SPARE: usize = 16;
/// Bytes before a frame that has a request or a host behind its port: the host's number and the
/// request.
const PREFIX: usize = 2 + frame::OFFLOAD_HEADER;
/// The longest frame.
const MAX_LEN: usize = (1 << 24) - 1;

/// A frame on a link. It has no destructor: [`Store::remove`] frees its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// In a queue: since when. Behind it: when the frame is due.
    pub at: Nanos,
    /// The chunk's number and the place in it.
    place: u32,
    /// The frame's length and [flags](Held::PREFIXED).
    len: u32,
}

impl Held {
    /// A prefix precedes the frame.
    const PREFIXED: u32 = 1 << 24;
    /// The checksum is known to be good.
    const GOOD: u32 = 1 << 25;

    /// The same frame at another time.
    pub fn at(self, at: Nanos) -> Self {
        Self { at, ..self }
    }

    pub fn len(&self) -> usize {
        (self.len & MAX_LEN as u32) as usize
    }

    fn prefix(&self) -> usize {
        if self.len & Self::PREFIXED == 0 { 0 } else { PREFIX }
    }

    fn chunk(&self) -> usize {
        (self.place >> 16) as usize
    }

    /// Forgets that the frame's checksum is good.
    pub fn distrust(&mut self) {
        self.len &= !Self::GOOD;
    }
}

#[derive(Debug)]
struct Chunk {
    memory: Option<Heap>,
    frames: u32,
}

/// The chunks of a link.
#[derive(Debug)]
pub(crate) struct Store {
    chunks: Vec<Chunk>,
    /// Empty chunks with memory.
    spare: Vec<u16>,
    /// Numbers of chunks without memory.
    unused: Vec<u16>,
    /// The chunk that is being filled, and its used bytes.
    filling: Option<(u16, usize)>,
    /// Bytes of memory in all chunks.
    bytes: usize,
    /// The maximum of `bytes`.
    most: usize,
}

impl Store {
    pub fn new(most: usize) -> Self {
        Self {
            chunks: Vec::new(),
            spare: Vec::new(),
            unused: Vec::new(),
            filling: None,
            bytes: 0,
            most,
        }
    }

    /// Bytes of memory in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the limit. What is beyond it stays until its frames are gone.
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// True if a frame of `len` bytes fits.
    #[inline]
    pub fn fits(&self, len: usize) -> bool {
        let len = len + PREFIX;
        let filled = self.filling.is_some_and(|(_, used)| used + len <= CHUNK);
        let spare = len <= CHUNK && !self.spare.is_empty();
        filled || spare || self.bytes + len.max(CHUNK) <= self.most
    }

    /// Copies a frame in, with its request and the host behind its port that sent it. `None`
    /// without room.
    #[inline]
    pub fn add(
        &mut self,
        frame: Picked<'_>,
        (offload, via): (Offload, u16),
        at: Nanos,
    ) -> Option<Held> {
        let good = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
        let prefixed = via != 0 || (offload != Offload::NONE && offload != good);
        let prefix = if prefixed { PREFIX } else { 0 };
        let place = self.reserve(prefix + frame.len())?;
        let bytes = self.window(place, prefix + frame.len());
        let mut len = frame.len() as u32;
        if prefixed {
            len |= Held::PREFIXED;
            bytes.copy_in(&via.to_le_bytes());
            bytes.suffix(2).copy_in(&offload.header());
        } else if offload == good {
            len |= Held::GOOD;
        }
        frame.copy_to(bytes.suffix(prefix));
        Some(Held { at, place, len })
    }

    /// Copies a frame that is held.
    pub fn add_copy(&mut self, of: &Held) -> Option<Held> {
        let place = self.reserve(of.prefix() + of.len())?;
        let copy = Held { place, ..*of };
        self.whole(of).copy_to(self.whole(&copy));
        Some(copy)
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Option<u32> {
        let (number, at) = match self.filling {
            Some((number, used)) if used + len <= CHUNK => (number, used),
            _ => (self.next_chunk(len)?, 0),
        };
        if len <= CHUNK {
            self.filling = Some((number, at + len));
        }
        self.chunks[usize::from(number)].frames += 1;
        Some(u32::from(number) << 16 | at as u32)
    }

    /// A chunk for `len` bytes.
    #[cold]
    fn next_chunk(&mut self, len: usize) -> Option<u16> {
        if len > MAX_LEN {
            return None;
        }
        // The chunk that was filled so far may be empty by now.
        if let Some((number, _)) = self.filling.filter(|_| len <= CHUNK) {
            self.filling = None;
            self.retire(number);
        }
        if len <= CHUNK
            && let Some(number) = self.spare.pop()
        {
            return Some(number);
        }
        let size = len.max(CHUNK);
        if self.bytes + size > self.most {
            return None;
        }
        let number = match self.unused.pop() {
            Some(number) => number,
            None if self.chunks.len() == CHUNKS => return None,
            None => {
                self.chunks.push(Chunk { memory: None, frames: 0 });
                (self.chunks.len() - 1) as u16
            }
        };
        self.chunks[usize::from(number)].memory = Some(Heap::new(size));
        self.bytes += size;
        Some(number)
    }

    /// Reuses or frees a chunk if it is empty.
    fn retire(&mut self, number: u16) {
        let chunk = &mut self.chunks[usize::from(number)];
        if chunk.frames > 0 {
            return;
        }
        let size = chunk.memory.as_ref().map_or(0, Heap::len);
        if size == CHUNK && self.spare.len() < SPARE && self.bytes <= self.most {
            self.spare.push(number);
        } else {
            chunk.memory = None;
            self.bytes -= size;
            self.unused.push(number);
        }
    }

    /// Removes a frame.
    #[inline]
    pub fn remove(&mut self, held: &Held) {
        let number = held.chunk();
        let chunk = &mut self.chunks[number];
        chunk.frames -= 1;
        if chunk.frames == 0 {
            match &mut self.filling {
                Some((filling, used)) if usize::from(*filling) == number => *used = 0,
                _ => self.retire(number as u16),
            }
        }
    }

    fn whole(&self, held: &Held) -> Bytes<'_> {
        self.window(held.place, held.prefix() + held.len())
    }

    #[inline]
    fn window(&self, place: u32, len: usize) -> Bytes<'_> {
        let memory = self.chunks[(place >> 16) as usize].memory.as_ref();
        let bytes = memory.and_then(|memory| memory.bytes().get((place & 0xffff) as usize, len));
        bytes.unwrap_or(Bytes::empty())
    }

    /// A frame's bytes.
    #[inline]
    pub fn bytes_of(&self, held: &Held) -> Bytes<'_> {
        self.whole(held).suffix(held.prefix())
    }

    /// A frame's request, and the host behind its port that sent it.
    #[inline]
    pub fn beside(&self, held: &Held) -> (Offload, u16) {
        if held.prefix() == 0 {
            let flags = if held.len & Held::GOOD == 0 { 0 } else { Offload::DATA_VALID };
            return (Offload { flags, ..Offload::NONE }, 0);
        }
        let (mut via, mut header) = ([0; 2], [0; frame::OFFLOAD_HEADER]);
        let bytes = self.whole(held);
        bytes.copy_out(&mut via);
        bytes.suffix(2).copy_out(&mut header);
        (Offload::from_header(&header), u16::from_le_bytes(via))
    }
}

/// Entries of a block of a [`Fifo`].
const BLOCK: usize = 256;

/// A queue of frames that grows by blocks, so it takes little more memory than its frames need.
#[derive(Debug, Default)]
pub(crate) struct Fifo {
    blocks: VecDeque<Box<[Held; BLOCK]>>,
    spare: Option<Box<[Held; BLOCK]>>,
    /// The first frame's place in the first block.
    first: usize,
    len: usize,
}

impl Fifo {
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn push(&mut self, held: Held) {
        let at = self.first + self.len;
        if at == self.blocks.len() * BLOCK {
            let fresh = self.spare.take().unwrap_or_else(|| Box::new([held; BLOCK]));
            self.blocks.push_back(fresh);
        }
        self.blocks[at / BLOCK][at % BLOCK] = held;
        self.len += 1;
    }

    #[inline]
    pub fn front(&self) -> Option<&Held> {
        if self.len == 0 { None } else { Some(&self.blocks[0][self.first]) }
    }

    #[inline]
    pub fn pop(&mut self) -> Option<Held> {
        let held = *self.front()?;
        self.first += 1;
        self.len -= 1;
        if self.first == BLOCK {
            self.first = 0;
            self.spare = self.blocks.pop_front();
        } else if self.len == 0 {
            self.first = 0;
        }
        Some(held)
    }

    /// Sets when every frame is due.
    pub fn set_all(&mut self, due: Nanos) {
        for at in self.first..self.first + self.len {
            self.blocks[at / BLOCK][at % BLOCK].at = due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(number: u64) -> Held {
        Held { at: Nanos(number), place: 0, len: 0 }
    }

    #[test]
    fn a_queue_keeps_order_and_lets_blocks_go() {
        let mut fifo = Fifo::default();
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..50 {
            for _ in 0..(round * 37) % 900 {
                fifo.push(held(pushed));
                pushed += 1;
            }
            for _ in 0..(round * 53) % 900 {
                let Some(front) = fifo.front().copied() else { break };
                assert_eq!((front.at.0, fifo.pop().map(|held| held.at.0)), (popped, Some(popped)));
                popped += 1;
            }
            assert_eq!(fifo.len() as u64, pushed - popped);
            assert!(fifo.blocks.len() <= fifo.len() / BLOCK + 2, "{}", fifo.blocks.len());
        }
        fifo.set_all(Nanos(3));
        while let Some(held) = fifo.pop() {
            assert_eq!(held.at, Nanos(3));
        }
        assert!(fifo.len() == 0 && fifo.pop().is_none());
    }
}
