//! One ring as its owner sees it: its own positions, and the peer's as last observed.
//!
//! ```text
//!   send ring       core .......... published ........ head ............ (core - 1)
//!                   with the core   filled, private    free: lent to Outgoing
//!   receive ring    published ..... head ............. core ............ (published - 1)
//!                   read, private   lent to Incoming   with the core
//! ```
//!
//! A pipe has no core. Its sender fills the slots of the twin, the other end's receive ring, and
//! acts as its core: it publishes `core`. Slots that the reader has released (`owner`) are free
//! again, with the buffers that the reader left in them. So nothing is copied, not even slots. The
//! send ring that is the twin's counterpart in netmap's layout is updated when an end is passed on.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use frame::OffloadSet;
use shmem::{Buffers, Bytes, Cursor, Mapping, Memfd, Pool, Shared, WakeFlag};

use crate::layout::{
    Fault, Geometry, RESERVED_BUFFERS, RingHeader, RingMemory, SlotWord, distance, next, previous,
    slot_flags,
};
use crate::region::{Region, pool_of};
use crate::{Incoming, Outgoing};

/// A ring's memory, and what it takes to find its buffers.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) ring: RingMemory,
    pub(crate) slots: u32,
    /// Bytes of a buffer that this side may fill.
    pub(crate) usable: u16,
    /// A processor other than this one reads the buffers that this side fills.
    pub(crate) far: bool,
    /// The offload requests that slots carry.
    pub(crate) offloads: OffloadSet,
    pool: Pool,
    region: Option<Arc<Region>>,
}

/// The memory of a port's queues.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) geometry: Geometry,
    pub(crate) usable: u32,
    /// The region that allocates the buffers, if this process made it.
    pub(crate) region: Option<Arc<Region>>,
    pub(crate) file: Option<Arc<Memfd>>,
}

impl Memory {
    pub(crate) fn of(region: &Arc<Region>) -> Self {
        Self {
            mapping: Arc::clone(region.mapping()),
            geometry: region.geometry(),
            usable: region.buffer_usable(),
            region: Some(Arc::clone(region)),
            file: region.memfd(),
        }
    }

    /// Ring object `ring`; `None` if it is not within the mapping.
    fn view(&self, ring: u32, slots: u32) -> Option<View> {
        Some(View {
            ring: RingMemory::of(&self.mapping, &self.geometry, ring, slots)?,
            slots,
            usable: u16::try_from(self.usable).unwrap_or(u16::MAX),
            far: false,
            offloads: OffloadSet::NONE,
            pool: pool_of(&self.mapping, &self.geometry)?,
            region: self.region.clone(),
        })
    }
}

/// Like [`View::buffer`].
#[inline(always)]
pub(crate) fn buffer(buffers: Buffers<'_>, number: u32, len: u32) -> Option<Bytes<'_>> {
    buffers.get(number.wrapping_sub(RESERVED_BUFFERS), len)
}

impl View {
    /// The first `len` bytes of a buffer; `None` if a number or length that the other side wrote is
    /// out of range.
    #[inline(always)]
    pub(crate) fn buffer(&self, number: u32, len: u32) -> Option<Bytes<'_>> {
        buffer(self.pool.buffers(), number, len)
    }

    /// The ring's buffers, for loops over [`buffer`].
    #[inline(always)]
    pub(crate) fn buffers(&self) -> Buffers<'_> {
        self.pool.buffers()
    }

    /// The current content of a slot.
    #[inline(always)]
    pub(crate) fn load(&self, at: u32) -> SlotWord {
        self.ring.slots[at as usize].load()
    }

    #[inline(always)]
    pub(crate) fn store(&self, at: u32, word: SlotWord) {
        self.ring.slots[at as usize].store(word);
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.ring.header.mapping()
    }

    /// Tells the region that two buffers have changed places.
    #[inline]
    pub(crate) fn exchanged(&self, a: u32, b: u32) {
        if let Some(region) = &self.region {
            region.exchanged(a, b);
        }
    }

    /// True if a position that the other side wrote is in `from ..= limit`.
    #[inline(always)]
    fn is_within(&self, at: u32, from: u32, limit: u32) -> bool {
        at < self.slots && distance(from, at, self.slots) <= distance(from, limit, self.slots)
    }
}

/// The words by which a sender and its reader pass slots to each other.
#[derive(Debug)]
struct HandOver {
    /// Where this side publishes filled slots.
    ours: Shared<Cursor>,
    /// Where this side asks to be woken.
    our_wake: Shared<WakeFlag>,
    /// Where the peer publishes slots that it has finished with.
    theirs: Shared<Cursor>,
    /// Where the peer asks to be woken.
    their_wake: Shared<WakeFlag>,
    /// The ring header that shows this side's positions to netmap's programs.
    shown: Shared<RingHeader>,
}

impl HandOver {
    /// For a port: the owner of the send ring passes slots to the core.
    fn to_core(ring: &RingMemory) -> Self {
        let control = &ring.control;
        Self {
            ours: control.part(|words| &words.owner.0),
            our_wake: control.part(|words| &words.owner_flags.0.wake),
            theirs: control.part(|words| &words.core.0),
            their_wake: control.part(|words| &words.core_flags.0.wake),
            shown: ring.header.clone(),
        }
    }

    /// For a pipe: this side acts as the core of `twin`, and the send ring shows its positions.
    fn to_twin(twin: &RingMemory, ring: &RingMemory) -> Self {
        let control = &twin.control;
        Self {
            ours: control.part(|words| &words.core.0),
            our_wake: control.part(|words| &words.core_flags.0.wake),
            theirs: control.part(|words| &words.owner.0),
            their_wake: control.part(|words| &words.owner_flags.0.wake),
            shown: ring.header.clone(),
        }
    }
}

/// A send ring.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// For pipes, the other end's receive ring.
    pub(crate) view: View,
    /// For pipes, the send ring, which [`settle`](Self::settle) updates.
    counterpart: Option<RingMemory>,
    words: HandOver,
    pub(crate) head: u32,
    published: u32,
    core: u32,
    /// The peer's last wake-up request that was answered.
    answered: u32,
    pub(crate) fault: Option<Fault>,
}

impl SendQueue {
    /// The send ring `ring`, with its twin `twin` if it belongs to a pipe, at the positions in its
    /// memory. `None` if they or the ring are out of range.
    pub(crate) fn new(memory: &Memory, ring: u32, twin: Option<u32>, slots: u32) -> Option<Self> {
        let view = memory.view(twin.unwrap_or(ring), slots)?;
        let (words, counterpart) = match twin {
            Some(_) => {
                let ring = RingMemory::of(&memory.mapping, &memory.geometry, ring, slots)?;
                (HandOver::to_twin(&view.ring, &ring), Some(ring))
            }
            None => (HandOver::to_core(&view.ring), None),
        };
        let (head, core) = (words.ours.own(), words.theirs.observe());
        let queue = Self {
            view,
            counterpart,
            words,
            head,
            published: head,
            core,
            answered: 0,
            fault: None,
        };
        (head < slots && core < slots).then_some(queue)
    }

    /// With `far`, another core reads the filled slots: see [`Outgoing::fill`].
    pub(crate) fn read_by_another_core(self, far: bool) -> Self {
        Self { view: View { far, ..self.view }, ..self }
    }

    /// Returns to the positions of a new ring.
    pub(crate) fn restart(&mut self) {
        (self.head, self.published, self.core, self.fault) = (0, 0, 0, None);
    }

    /// The number of free slots, as of the last look at the peer's position.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        self.view.slots - 1 - distance(self.core, self.head, self.view.slots)
    }

    /// Lends up to `max` free slots. Reads the peer's position only if fewer are known.
    #[inline]
    pub(crate) fn lend(&mut self, max: usize) -> Outgoing<'_> {
        let max = max.min(self.view.slots as usize) as u32;
        if self.room() < max {
            self.refresh();
        }
        let left = if self.fault.is_none() { self.room().min(max) } else { 0 };
        Outgoing::new(&self.view, &mut self.head, &mut self.fault, left)
    }

    /// Reads which slots the peer is done with.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let to = self.words.theirs.observe();
        if self.view.is_within(to, self.core, self.published) {
            self.core = to;
        } else {
            self.fault = Some(Fault::BadHead);
        }
    }

    /// Where the last complete frame ends. Incomplete frames are not published.
    fn end(&self) -> u32 {
        let mut end = self.head;
        while end != self.published
            && self.view.load(previous(end, self.view.slots)).flags & slot_flags::MOREFRAG != 0
        {
            end = previous(end, self.view.slots);
        }
        end
    }

    /// Publishes filled slots. Returns true if there were any: then check
    /// [`must_kick`](Self::must_kick) after a full fence.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.head == self.published {
            return false;
        }
        let end = self.end();
        let moved = end != self.published;
        self.published = end;
        self.words.ours.publish(end);
        show(&self.words.shown, end, previous(self.core, self.view.slots));
        moved
    }

    /// Pipes: updates the send ring's slots, for an owner that uses netmap's layout.
    pub(crate) fn settle(&mut self) {
        let Some(ring) = &self.counterpart else { return };
        for (slot, twin) in ring.slots.iter().zip(&self.view.ring.slots[..]) {
            slot.store(twin.load());
        }
        ring.control.owner.0.publish(self.published);
        ring.control.core.0.publish(self.core);
    }

    /// True if the peer sleeps and has not been kicked yet. The caller must have fenced.
    #[inline]
    pub(crate) fn must_kick(&mut self) -> bool {
        self.words.their_wake.must_kick_fenced(&mut self.answered)
    }

    /// Asks to be woken when slots return, or cancels that.
    pub(crate) fn set_wake(&self, armed: bool) {
        let wake = &self.words.our_wake;
        if armed { wake.arm() } else { wake.disarm() }
    }

    /// Copies the bytes that indirect slots point to into their buffers.
    ///
    /// # Safety
    /// Every slot that was filled since the last publish and is marked indirect must have the
    /// address of that many readable bytes, and nobody else may be able to change it meanwhile.
    pub(crate) unsafe fn resolve_indirect(&mut self) {
        let mut at = self.published;
        while at != self.head {
            let mut word = self.view.load(at);
            if word.flags & slot_flags::INDIRECT != 0 {
                let address = self.view.ring.slots[at as usize].ptr.load(Relaxed);
                let from = std::ptr::with_exposed_provenance_mut(address as usize);
                // SAFETY: the caller keeps the contract.
                let from = unsafe { Bytes::from_raw(from, usize::from(word.len)) };
                let to = self.view.buffer(word.buf, u32::from(self.view.usable));
                word.len = to.map_or(0, |to| from.copy_to(to)) as u16;
                word.flags &= !slot_flags::INDIRECT;
                self.view.store(at, word);
            }
            at = next(at, self.view.slots);
        }
    }
}

/// A receive ring.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) view: View,
    pub(crate) head: u32,
    published: u32,
    core: u32,
    /// The peer's last wake-up request that was answered.
    answered: u32,
    pub(crate) fault: Option<Fault>,
}

impl ReceiveQueue {
    /// The receive ring `ring`, at the positions in its memory. `None` if they or the ring are out
    /// of range.
    pub(crate) fn new(memory: &Memory, ring: u32, slots: u32) -> Option<Self> {
        let view = memory.view(ring, slots)?;
        let head = view.ring.control.owner.0.own();
        // Frames that arrived in the meantime are found at the first look.
        let good = head < slots;
        let queue = Self { view, head, published: head, core: head, answered: 0, fault: None };
        good.then_some(queue)
    }

    /// Returns to the positions of a new ring.
    pub(crate) fn restart(&mut self) {
        (self.head, self.published, self.core, self.fault) = (0, 0, 0, None);
    }

    /// The number of received slots, as of the last look at the peer's position.
    #[inline(always)]
    pub(crate) fn received(&self) -> u32 {
        distance(self.head, self.core, self.view.slots)
    }

    /// Lends up to `max` received frames. Reads the peer's position only if fewer slots are known.
    #[inline]
    pub(crate) fn lend(&mut self, max: usize) -> Incoming<'_> {
        if (self.received() as usize) < max {
            self.refresh();
        }
        let end = if self.fault.is_none() { self.core } else { self.head };
        Incoming::new(&self.view, &mut self.head, &mut self.fault, end, max)
    }

    /// Reads which slots the peer has filled.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let to = self.view.ring.control.core.0.observe();
        if self.view.is_within(to, self.core, previous(self.published, self.view.slots)) {
            self.core = to;
        } else {
            self.fault = Some(Fault::BadHead);
        }
    }

    /// Releases slots that were read. Returns true if there were any.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.head == self.published {
            return false;
        }
        self.published = self.head;
        self.view.ring.control.owner.0.publish(self.head);
        show(&self.view.ring.header, self.head, self.core);
        true
    }

    /// True if the peer sleeps and was not kicked since it asked. The caller must have fenced.
    #[inline]
    pub(crate) fn must_kick(&mut self) -> bool {
        self.view.ring.control.core_flags.0.wake.must_kick_fenced(&mut self.answered)
    }

    /// Asks to be woken when frames arrive, or withdraws that request.
    pub(crate) fn set_wake(&self, armed: bool) {
        let wake = &self.view.ring.control.owner_flags.0.wake;
        if armed { wake.arm() } else { wake.disarm() }
    }
}

/// Keeps the ring header as netmap programs know it.
#[inline(always)]
fn show(header: &RingHeader, head: u32, tail: u32) {
    header.head.store(head, Relaxed);
    header.cur.store(head, Relaxed);
    header.tail.store(tail, Relaxed);
}
