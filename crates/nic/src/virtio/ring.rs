//! What split and packed queues have in common: descriptors, chains, and the device's side of a
//! queue.

use std::sync::Arc;

use abi::virtio::{Word, flags};
use shmem::{DirtyLog, GuestMemory, Shareable, Shared, SharedSlice, guard};

use super::{Fault, Features, Inflight, QueueConfig, QueueError, QueueLayout, QueueState};
use crate::walk;

/// Bytes of a descriptor.
const DESCRIPTOR: u32 = 16;
/// The maximum number of entries of a table of indirect descriptors, unless the queue itself has
/// more.
const MAX_TABLE: u32 = 1024;
/// The maximum number of descriptors of a chain, including its table's. QEMU and the kernel's vhost
/// have the same limit.
pub(super) const MAX_CHAIN: u16 = 1024;

/// A piece of a chain: a buffer named by a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub at: u64,
    pub len: u32,
}

/// The pieces of a frame's chains, and how many descriptors were read for them.
#[derive(Debug)]
pub(super) struct Pieces {
    list: Vec<Piece>,
    /// How many descriptors were read since the list was cleared, and how many for the current
    /// chain.
    read: usize,
    chain: u16,
}

impl Pieces {
    /// Makes room for a queue of `size` entries.
    pub fn new(size: usize) -> Self {
        Self { list: Vec::with_capacity(size.min(MAX_CHAIN.into())), read: 0, chain: 0 }
    }

    /// Forgets the pieces, for the next frame.
    pub fn clear(&mut self) {
        self.list.clear();
        self.read = 0;
    }

    /// Begins a chain.
    pub fn start_chain(&mut self) {
        self.chain = 0;
    }

    /// How many descriptors were read for the frame.
    pub fn read(&self) -> usize {
        self.read
    }

    /// Counts a descriptor, if its chain may have one more.
    #[inline]
    fn count(&mut self) -> Result<(), Fault> {
        if self.chain == MAX_CHAIN {
            return Err(Fault::EndlessChain);
        }
        self.chain += 1;
        self.read += 1;
        walk::note(1);
        Ok(())
    }
}

impl std::ops::Deref for Pieces {
    type Target = [Piece];

    fn deref(&self) -> &[Piece] {
        &self.list
    }
}

/// A chain, as the ring names it when the chain is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// The chain's number: the first descriptor's in split queues, the driver's own in packed ones.
    pub id: u16,
    /// How many entries of the ring the chain takes.
    pub slots: u16,
}

/// The direction of a queue's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The device reads the buffers.
    FromGuest,
    /// The device writes the buffers.
    ToGuest,
}

impl Direction {
    /// The flag of descriptors in this direction.
    #[inline(always)]
    pub fn flag(self) -> u16 {
        match self {
            Self::FromGuest => 0,
            Self::ToGuest => flags::WRITE,
        }
    }
}

/// The device's side of a queue. Buffers are *taken* in the order in which they were made
/// available, and *put* as used in the same order. Buffers that were put are *published* together.
pub(super) trait Ring: Send + std::fmt::Debug {
    /// Makes the queue, which resumes where its state says.
    fn new(parts: Parts) -> Result<Self, QueueError>
    where
        Self: Sized;

    /// True if a chain is available and not taken.
    fn has_work(&self) -> bool;

    /// Snapshots chains of one direct descriptor each that were not taken yet, with their numbers.
    /// Returns at most `most`, up to a chain of another kind or the ring's end. Takes nothing.
    fn singles(&mut self, most: usize) -> Result<impl Iterator<Item = (Piece, u16)>, Fault>;

    /// Takes the next `count` chains, each of one direct descriptor.
    fn take(&mut self, count: usize);

    /// Takes the next chain of any kind, and appends its pieces; `None` if none is available. Takes
    /// nothing on a fault.
    fn take_chain(&mut self, pieces: &mut Pieces) -> Result<Option<Chain>, Fault>;

    /// Takes the next chain, and reads only the ring entries that it occupies.
    fn pass_chain(&mut self) -> Option<Chain>;

    /// True if nothing is available at `position`, after everything that was available at the last
    /// look.
    fn ends_at(&self, position: u16) -> bool;

    /// The position up to which chains were taken.
    fn taken(&self) -> u16;

    /// True if `position` is ahead of what was taken, by at most the queue's size.
    fn is_before(&self, position: u16) -> bool;

    /// Undoes taking, back to position `to`.
    fn rewind(&mut self, to: u16);

    /// Puts chains as used, with the bytes written. They are the oldest that were taken, or are
    /// about to be.
    fn put(&mut self, chains: impl Iterator<Item = (Chain, u32)>);

    /// Marks the next unmarked chains as in flight, if the front end wants that.
    fn mark(&mut self, chains: &[Chain]);

    /// Hands the put chains to the driver.
    fn publish(&mut self);

    /// Asks the driver to kick when it makes the next chain available.
    fn arm(&self);

    /// Withdraws the request for a kick.
    fn disarm(&self);
}

/// The parts of which a ring is made, whatever its format.
#[derive(Debug)]
pub(super) struct Parts {
    pub memory: Arc<GuestMemory>,
    pub layout: QueueLayout,
    pub features: Features,
    pub state: Shared<QueueState>,
    pub dirty: Option<Arc<DirtyLog>>,
    pub direction: Direction,
    pub inflight: Option<Inflight>,
}

impl Parts {
    pub fn new(config: QueueConfig, direction: Direction) -> Self {
        let QueueConfig { memory, layout, features, state, dirty, inflight } = config;
        Self { memory, layout, features, state, dirty, direction, inflight }
    }

    /// Takes the area for buffers in flight; the ring then owns it.
    pub fn take_inflight(&mut self) -> Result<Option<Inflight>, QueueError> {
        let size = self.layout.size;
        match self.inflight.take() {
            Some(area) if area.size() < size => Err(QueueError::Inflight),
            area => Ok(area),
        }
    }

    /// The `count` values of `T` that are the queue's `part`.
    pub fn area<T: Shareable>(
        &self,
        part: &'static str,
        at: u64,
        count: usize,
    ) -> Result<SharedSlice<T>, QueueError> {
        let area = self.memory.shared_slice(at, count);
        area.ok_or(QueueError::Area { part, at, align: align_of::<T>() })
    }

    pub fn has(&self, feature: Features) -> bool {
        self.features.contains(feature)
    }

    /// Logs that the queue has written `len` bytes at `at`.
    #[inline(always)]
    pub fn log(&self, at: u64, len: u64) {
        if let Some(dirty) = &self.dirty {
            dirty.mark(at, len);
        }
    }

    /// Appends a descriptor's piece, if its direction is the queue's. An empty piece counts but is
    /// left out.
    #[inline]
    pub fn append(&self, pieces: &mut Pieces, piece: Piece, flags: u16) -> Result<(), Fault> {
        if flags & flags::WRITE != self.direction.flag() {
            return Err(Fault::BadDirection);
        }
        pieces.count()?;
        if piece.len > 0 {
            pieces.list.push(piece);
        }
        Ok(())
    }

    /// Reads a table of indirect descriptors. `visit` gets each descriptor's address and word, and
    /// returns the next index.
    pub fn walk_table(
        &self,
        table: Piece,
        mut visit: impl FnMut(u64, Word) -> Result<Option<u32>, Fault>,
    ) -> Result<(), Fault> {
        let count = table.len / DESCRIPTOR;
        let most = MAX_TABLE.max(u32::from(self.layout.size));
        let whole = table.len.is_multiple_of(DESCRIPTOR) && (1..=most).contains(&count);
        if !whole || !self.has(Features::INDIRECT_DESC) {
            return Err(Fault::BadIndirect);
        }
        let bytes = self.memory.bytes(table.at, table.len).ok_or(Fault::BadAddress)?;
        let mut next = 0;
        for _ in 0..count {
            let descriptor = bytes.read::<[u64; 2]>((next * DESCRIPTOR) as usize);
            let [address, word] = descriptor.ok_or(Fault::BadDescriptor)?.map(u64::from_le);
            match visit(address, Word::from_bits(word))? {
                Some(following) if following < count => next = following,
                Some(_) => return Err(Fault::BadDescriptor),
                None => return Ok(()),
            }
        }
        Err(Fault::EndlessChain)
    }
}

/// Checks whether guest memory has failed (see [`shmem::guard`]).
#[derive(Debug, Default)]
pub(super) struct Watch(guard::Watch);

impl Watch {
    #[inline(always)]
    pub fn check(&mut self, memory: &GuestMemory) -> Result<(), Fault> {
        if self.0.finds_failed(memory) { Err(Fault::Memory) } else { Ok(()) }
    }
}
