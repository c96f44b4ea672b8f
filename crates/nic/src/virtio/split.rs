//! Split queues (virtio 1.2, 2.7), the device's side.
//!
//! ```text
//!   available ring (driver writes):  flags, idx, ring[size], used_event
//!   used ring (device writes):       flags, idx, ring[size] of { id, len }, avail_event
//!
//!   put ........ taken ........ idx       free-running 16-bit positions
//!   | lent       | available    |
//! ```

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use abi::virtio::{Descriptor, flags, passed};
use shmem::SharedSlice;

use super::inflight::SplitJournal;
use super::ring::{Chain, MAX_CHAIN, Parts, Piece, Pieces, Ring};
use super::{Fault, Features, Inflight, QueueError};
use crate::walk;

/// In the available ring: the driver wants no interrupts.
const NO_INTERRUPT: u16 = 1;
/// In the used ring: the device wants no kicks.
const NO_NOTIFY: u16 = 1;
/// Words of either ring before its entries.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const RING: usize = 2;

/// A split queue.
#[derive(Debug)]
pub(super) struct Split {
    descriptors: SharedSlice<Descriptor>,
    /// The available ring.
    ///
    /// # Protocol: virtio: split: available index; packed: flags of a descriptor
    /// - Writer: driver
    /// - Reader: worker, holder of the egress lock
    /// - Ordering: load acquire
    /// - Partner: descriptors and frames before it
    /// - Without it: the device reads descriptors that are not written yet
    /// - Shown by: `nic` tests `queues`
    ///
    /// # Protocol: virtio: interrupt suppression (flags, `used_event`, driver area)
    /// - Writer: driver
    /// - Reader: worker
    /// - Ordering: relaxed load, after the batch's `SeqCst` fence; read again when a deferred
    ///   interrupt for sent frames is due, in case the driver has looked since
    /// - Partner: the used index
    /// - Without it: a guest sleeps beside a full queue
    /// - Shown by: `nic` tests `events`
    driver: SharedSlice<AtomicU16>,
    /// The used ring's flags and index.
    device: SharedSlice<AtomicU16>,
    /// The used ring's entries.
    ///
    /// # Protocol: virtio: split: used index; packed: first used descriptor, stored last
    /// - Writer: worker (transmit: complete), holder of the egress lock (receive)
    /// - Reader: driver
    /// - Ordering: store release, once a batch
    /// - Partner: used entries, the frame's bytes
    /// - Without it: the driver reads a frame before its bytes, or overwrites one that is being
    ///   copied
    /// - Shown by: `nic` tests `queues`
    used: SharedSlice<[AtomicU32; 2]>,
    /// The word after the entries, with EVENT_IDX: the index at which the device wants a kick.
    ///
    /// # Protocol: virtio: kick suppression (flags, `avail_event`, device area)
    /// - Writer: worker
    /// - Reader: driver
    /// - Ordering: relaxed store, `SeqCst` fence, then the ring is read again
    /// - Partner: the available index
    /// - Without it: a worker sleeps while frames wait
    /// - Shown by: `nic` tests `events`
    event: Option<SharedSlice<AtomicU16>>,
    parts: Parts,
    journal: Option<SplitJournal>,
    size: u16,
    /// The driver's index when it was last read.
    available: u16,
    taken: u16,
    put: u16,
    published: u16,
}

impl Split {
    /// How many chains may be taken, at most `most`.
    #[inline(always)]
    fn available(&mut self, most: usize) -> Result<usize, Fault> {
        let known = usize::from(self.available.wrapping_sub(self.taken));
        if known >= most {
            return Ok(most);
        }
        let index = u16::from_le(self.driver[INDEX].load(Ordering::Acquire));
        let count = index.wrapping_sub(self.taken);
        if count > self.size - self.taken.wrapping_sub(self.put) {
            return Err(Fault::BadIndex);
        }
        self.available = index;
        Ok(most.min(usize::from(count)))
    }

    /// Starts to keep an area for chains in flight. Chains that another process had in flight are
    /// given back, because they may have been delivered or written.
    fn adopt(&mut self, area: Inflight) {
        let waiting = self.available(usize::from(self.size)).unwrap_or(0);
        let (journal, adopted) = SplitJournal::new(area, self.put, waiting as u16);
        self.journal = Some(journal);
        let Some(heads) = adopted else { return };
        self.take(heads.len());
        self.put(heads.iter().map(|id| (Chain { id: *id, slots: 1 }, 0)));
        self.publish();
        // Apart from the chains in flight, nothing was taken.
        self.parts.state.taken.publish(u32::from(self.taken));
    }

    /// The head of the next chain.
    fn head(&self) -> u16 {
        let at = usize::from(self.taken & (self.size - 1));
        u16::from_le(self.driver[RING + at].load(Ordering::Relaxed))
    }

    /// Appends the buffers in a table of indirect descriptors.
    fn read_table(&self, table: Piece, pieces: &mut Pieces) -> Result<(), Fault> {
        self.parts.walk_table(table, |at, word| {
            let flags = word.third();
            if flags & flags::INDIRECT != 0 {
                return Err(Fault::BadIndirect);
            }
            self.parts.append(pieces, Piece { at, len: word.len() }, flags)?;
            Ok((flags & flags::NEXT != 0).then(|| u32::from(word.fourth())))
        })
    }
}

impl Ring for Split {
    fn new(mut parts: Parts) -> Result<Self, QueueError> {
        let layout = parts.layout;
        super::check_size(&layout, false)?;
        let size = usize::from(layout.size);
        let events = usize::from(parts.has(Features::EVENT_IDX));
        let event_at = layout.device.wrapping_add(4 + 8 * size as u64);
        let event = (events > 0).then(|| parts.area("used ring", event_at, 1)).transpose()?;
        let device: SharedSlice<AtomicU16> = parts.area("used ring", layout.device, RING)?;
        // The progress comes from the ring itself, because the process that set the position may
        // not have known it.
        let done = u16::from_le(device[INDEX].load(Ordering::Relaxed));
        let inflight = parts.take_inflight()?;
        let mut this = Self {
            descriptors: parts.area("descriptors", layout.descriptors, size)?,
            driver: parts.area("available ring", layout.driver, RING + size + events)?,
            device,
            used: parts.area("used ring", layout.device.wrapping_add(4), size)?,
            event,
            parts,
            journal: None,
            size: size as u16,
            available: done,
            taken: done,
            put: done,
            published: done,
        };
        if let Some(area) = inflight {
            this.adopt(area);
        }
        Ok(this)
    }

    fn has_work(&self) -> bool {
        u16::from_le(self.driver[INDEX].load(Ordering::Acquire)) != self.taken
    }

    #[inline(always)]
    fn singles(&mut self, most: usize) -> Result<impl Iterator<Item = (Piece, u16)>, Fault> {
        const KIND: u16 = flags::NEXT | flags::WRITE | flags::INDIRECT;
        let count = self.available(most)?;
        let (want, descriptors) = (self.parts.direction.flag(), &*self.descriptors);
        let at = usize::from(self.taken & (self.size - 1));
        let ring = &self.driver[RING..][..usize::from(self.size)][at..];
        Ok(ring.iter().take(count).map_while(move |head| {
            walk::note(1);
            let head = u16::from_le(head.load(Ordering::Relaxed));
            let descriptor = descriptors.get(usize::from(head))?;
            let word = descriptor.word(Ordering::Relaxed);
            let piece = Piece { at: descriptor.address(), len: word.len() };
            (word.third() & KIND == want).then_some((piece, head))
        }))
    }

    #[inline(always)]
    fn take(&mut self, count: usize) {
        self.taken = self.taken.wrapping_add(count as u16);
    }

    fn take_chain(&mut self, pieces: &mut Pieces) -> Result<Option<Chain>, Fault> {
        if self.available(1)? == 0 {
            return Ok(None);
        }
        let id = self.head();
        let mut next = id;
        pieces.start_chain();
        for _ in 0..self.size.min(MAX_CHAIN) {
            let descriptor = self.descriptors.get(usize::from(next)).ok_or(Fault::BadDescriptor)?;
            let word = descriptor.word(Ordering::Relaxed);
            let (piece, flags) =
                (Piece { at: descriptor.address(), len: word.len() }, word.third());
            let more = flags & flags::NEXT != 0;
            if flags & flags::INDIRECT == 0 {
                self.parts.append(pieces, piece, flags)?;
            } else if more {
                return Err(Fault::BadIndirect);
            } else {
                self.read_table(piece, pieces)?;
            }
            if !more {
                self.taken = self.taken.wrapping_add(1);
                return Ok(Some(Chain { id, slots: 1 }));
            }
            next = word.fourth();
        }
        Err(Fault::EndlessChain)
    }

    fn pass_chain(&mut self) -> Option<Chain> {
        self.available(1).ok().filter(|available| *available > 0)?;
        let id = self.head();
        self.take(1);
        Some(Chain { id, slots: 1 })
    }

    fn ends_at(&self, position: u16) -> bool {
        u16::from_le(self.driver[INDEX].load(Ordering::Relaxed)) == position
    }

    fn taken(&self) -> u16 {
        self.taken
    }

    fn is_before(&self, position: u16) -> bool {
        (1..=self.size).contains(&position.wrapping_sub(self.taken))
    }

    fn rewind(&mut self, to: u16) {
        self.taken = to;
    }

    #[inline(always)]
    fn put(&mut self, mut chains: impl Iterator<Item = (Chain, u32)>) {
        loop {
            let run = &self.used[usize::from(self.put & (self.size - 1))..];
            let mut count = 0;
            for ([id, len], (chain, written)) in run.iter().zip(&mut chains) {
                id.store(u32::from(chain.id).to_le(), Ordering::Relaxed);
                len.store(written.to_le(), Ordering::Relaxed);
                count += 1;
            }
            self.put = self.put.wrapping_add(count);
            if usize::from(count) < run.len() {
                break;
            }
        }
    }

    fn mark(&mut self, chains: &[Chain]) {
        if let Some(journal) = &mut self.journal {
            chains.iter().for_each(|chain| journal.take(chain.id));
        }
    }

    #[inline(always)]
    fn publish(&mut self) {
        if self.put == self.published {
            return;
        }
        let count = self.put.wrapping_sub(self.published);
        if let Some(journal) = &mut self.journal {
            journal.link(count, self.published);
        }
        self.published = self.put;
        self.device[INDEX].store(self.put.to_le(), Ordering::Release);
        self.parts.state.done.publish(u32::from(self.put));
        if let Some(journal) = &mut self.journal {
            journal.unmark(count, self.put);
        }
        self.parts.log(self.parts.layout.device, 4 + 8 * u64::from(self.size));
    }

    fn arm(&self) {
        match &self.event {
            Some(event) => {
                event[0].store(self.taken.to_le(), Ordering::Relaxed);
                self.parts.log(self.parts.layout.device + 4 + 8 * u64::from(self.size), 2);
            }
            None => {
                self.device[FLAGS].store(0, Ordering::Relaxed);
                self.parts.log(self.parts.layout.device, 2);
            }
        }
    }

    fn disarm(&self) {
        // An index that was passed triggers no kick for the next 65,536.
        if self.event.is_none() {
            self.device[FLAGS].store(NO_NOTIFY.to_le(), Ordering::Relaxed);
            self.parts.log(self.parts.layout.device, 2);
        }
    }
}

/// How the driver of a split queue asks for interrupts.
#[derive(Debug)]
pub(super) struct Interrupts {
    driver: SharedSlice<AtomicU16>,
    /// True if the driver gives an index, not a flag.
    by_index: bool,
}

impl Interrupts {
    pub fn new(parts: &Parts) -> Result<Self, QueueError> {
        let by_index = parts.has(Features::EVENT_IDX);
        let count = RING + usize::from(parts.layout.size) + usize::from(by_index);
        let driver = parts.area("available ring", parts.layout.driver, count)?;
        Ok(Self { driver, by_index })
    }

    /// True if the driver wants an interrupt for what was published since `old`, up to `new`.
    #[inline(always)]
    pub fn wanted(&self, old: u16, new: u16) -> bool {
        if self.by_index {
            let event = self.driver[self.driver.len() - 1].load(Ordering::Relaxed);
            passed(u16::from_le(event), new, old)
        } else {
            let flags = u16::from_le(self.driver[FLAGS].load(Ordering::Relaxed));
            new != old && flags & NO_INTERRUPT == 0
        }
    }

    /// True if the driver wants an interrupt for anything published in the round before `now`.
    pub fn awaited(&self, now: u16) -> bool {
        let size = self.driver.len() - RING - usize::from(self.by_index);
        self.wanted(now.wrapping_sub(size as u16), now)
    }
}
