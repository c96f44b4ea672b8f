//! One ring as its owner sees it: positions of its own, and the peer's as last observed.
//!
//! ```text
//!   send ring       core .......... published ........ head ............ (core - 1)
//!                   with the core   filled, private    free: lent to Outgoing
//!   receive ring    published ..... head ............. core ............ (published - 1)
//!                   read, private   lent to Incoming   with the core
//! ```
//!
//! A pipe has no core: the sender copies the words of its slots to the twin (the other end's receive
//! ring), publishes the twin's `core`, and takes back what the reader released, all at its own calls.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use shmem::{Bytes, Mapping, Memfd, Pool};

use crate::layout::{
    Fault, Geometry, RESERVED_BUFFERS, RingHeader, RingMemory, SlotWord, distance, next, previous,
    slot_flags,
};
use crate::region::{Region, pool_of};
use crate::{Incoming, Outgoing};

/// A ring's memory and what is needed to find its buffers.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) ring: RingMemory,
    pub(crate) slots: u32,
    /// Bytes of a buffer that we fill.
    pub(crate) usable: u16,
    pool: Pool,
    region: Option<Arc<Region>>,
}

/// The memory that the queues of a port lie in.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) geometry: Geometry,
    pub(crate) usable: u32,
    /// Who keeps the books, if that is this process.
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

    /// Ring object `ring`; `None` if it does not lie within the mapping.
    fn view(&self, ring: u32, slots: u32) -> Option<View> {
        Some(View {
            ring: RingMemory::of(&self.mapping, &self.geometry, ring, slots)?,
            slots,
            usable: u16::try_from(self.usable).unwrap_or(u16::MAX),
            pool: pool_of(&self.mapping, &self.geometry)?,
            region: self.region.clone(),
        })
    }
}

impl View {
    /// The first `len` bytes of a buffer; `None` if a number or length that somebody else wrote is
    /// out of range.
    #[inline(always)]
    pub(crate) fn buffer(&self, number: u32, len: u32) -> Option<Bytes<'_>> {
        self.pool.get(number.wrapping_sub(RESERVED_BUFFERS), len)
    }

    /// What a slot holds at this moment.
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

    /// Two buffers have changed places: tells the one who keeps the books.
    #[inline]
    pub(crate) fn exchanged(&self, a: u32, b: u32) {
        if let Some(region) = &self.region {
            region.exchanged(a, b);
        }
    }

    /// True if a position that somebody else wrote lies in `from ..= limit`.
    #[inline(always)]
    fn is_within(&self, at: u32, from: u32, limit: u32) -> bool {
        at < self.slots && distance(from, at, self.slots) <= distance(from, limit, self.slots)
    }

    fn show(&self, head: u32, tail: u32) {
        let header: &RingHeader = &self.ring.header;
        header.head.store(head, Relaxed);
        header.cur.store(head, Relaxed);
        header.tail.store(tail, Relaxed);
    }
}

/// A send ring.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) view: View,
    /// Pipes: the other end's receive ring.
    twin: Option<RingMemory>,
    pub(crate) head: u32,
    published: u32,
    core: u32,
    /// The arming of the peer that was answered last.
    answered: u32,
    pub(crate) fault: Option<Fault>,
}

impl SendQueue {
    /// The send ring `ring`, at the positions its memory has; `None` if they or the ring are out of
    /// range.
    pub(crate) fn new(memory: &Memory, ring: u32, twin: Option<u32>, slots: u32) -> Option<Self> {
        let view = memory.view(ring, slots)?;
        let twin = match twin {
            Some(twin) => Some(RingMemory::of(&memory.mapping, &memory.geometry, twin, slots)?),
            None => None,
        };
        let (head, core) = (view.ring.control.owner.0.own(), view.ring.control.core.0.observe());
        let good = head < slots && core < slots;
        good.then_some(Self { view, twin, head, published: head, core, answered: 0, fault: None })
    }

    /// Back to the positions of a new ring.
    pub(crate) fn restart(&mut self) {
        (self.head, self.published, self.core, self.fault) = (0, 0, 0, None);
    }

    /// Free slots, as far as is known.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        self.view.slots - 1 - distance(self.core, self.head, self.view.slots)
    }

    /// Up to `max` free slots. Looks at the peer's position only if those known of are fewer.
    #[inline]
    pub(crate) fn lend(&mut self, max: usize) -> Outgoing<'_> {
        let max = max.min(self.view.slots as usize) as u32;
        if self.room() < max {
            self.refresh();
        }
        let left = if self.fault.is_none() { self.room().min(max) } else { 0 };
        Outgoing::new(&self.view, &mut self.head, left)
    }

    /// Takes back what the peer is done with.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let cursor = match &self.twin {
            None => &self.view.ring.control.core,
            Some(twin) => &twin.control.owner,
        };
        let to = cursor.0.observe();
        if to == self.core {
            return;
        }
        if !self.view.is_within(to, self.core, self.published) {
            self.fault = Some(Fault::BadHead);
        } else if self.twin.is_none() || self.take_back(to) {
            self.core = to;
        }
    }

    /// Pipes: brings the buffers of slots that the reader released back from the twin. False if one
    /// is no buffer.
    fn take_back(&mut self, to: u32) -> bool {
        let Some(twin) = &self.twin else { return true };
        for (from, end) in runs(self.core, to, self.view.slots) {
            let ours = &self.view.ring.slots[from..end];
            for (slot, twin) in ours.iter().zip(&twin.slots[from..end]) {
                let (own, buf) = (slot.load(), twin.load().buf);
                if own.buf != buf {
                    if self.view.buffer(buf, 0).is_none() {
                        self.fault = Some(Fault::BadBuffer);
                        return false;
                    }
                    slot.store(SlotWord { buf, len: own.len, flags: slot_flags::BUF_CHANGED });
                }
            }
        }
        self.view.ring.control.core.0.publish(to);
        true
    }

    /// Where the last complete frame ends. A frame that is not complete is not published.
    fn end(&self) -> u32 {
        let mut end = self.head;
        while end != self.published
            && self.view.load(previous(end, self.view.slots)).flags & slot_flags::MOREFRAG != 0
        {
            end = previous(end, self.view.slots);
        }
        end
    }

    /// Makes filled slots visible. True if there were any: look at [`must_kick`](Self::must_kick)
    /// after a full fence.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.head == self.published {
            return false;
        }
        let end = self.end();
        if let Some(twin) = &self.twin {
            for (from, end) in runs(self.published, end, self.view.slots) {
                let ours = &self.view.ring.slots[from..end];
                for (slot, twin) in ours.iter().zip(&twin.slots[from..end]) {
                    twin.store(slot.load());
                }
            }
            twin.control.core.0.publish(end);
        }
        self.view.ring.control.owner.0.publish(end);
        self.view.show(end, previous(self.core, self.view.slots));
        let moved = end != self.published;
        self.published = end;
        moved
    }

    /// True if the peer sleeps and has not been kicked for it yet. The caller has fenced.
    #[inline]
    pub(crate) fn must_kick(&mut self) -> bool {
        let wake = match &self.twin {
            None => &self.view.ring.control.core_flags.0.wake,
            Some(twin) => &twin.control.owner_flags.0.wake,
        };
        wake.must_kick_fenced(&mut self.answered)
    }

    /// Asks to be woken when slots come back, or takes that back.
    pub(crate) fn set_wake(&self, armed: bool) {
        let wake = match &self.twin {
            None => &self.view.ring.control.owner_flags.0.wake,
            Some(twin) => &twin.control.core_flags.0.wake,
        };
        if armed { wake.arm() } else { wake.disarm() }
    }

    /// Copies the bytes that indirect slots point to into their buffers.
    ///
    /// # Safety
    /// Every slot that was filled since the last publish and is marked indirect must have the address
    /// of that many readable bytes, and nobody else may be able to change it meanwhile.
    pub(crate) unsafe fn resolve_indirect(&mut self) {
        let mut at = self.published;
        while at != self.head {
            let mut word = self.view.load(at);
            if word.flags & slot_flags::INDIRECT != 0 {
                let address = self.view.ring.slots[at as usize].ptr.load(Relaxed);
                let from = std::ptr::with_exposed_provenance_mut(address as usize);
                // SAFETY: the caller's.
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
    /// The arming of the peer that was answered last.
    answered: u32,
    pub(crate) fault: Option<Fault>,
}

impl ReceiveQueue {
    /// The receive ring `ring`, at the positions its memory has; `None` if they or the ring are out
    /// of range.
    pub(crate) fn new(memory: &Memory, ring: u32, slots: u32) -> Option<Self> {
        let view = memory.view(ring, slots)?;
        let head = view.ring.control.owner.0.own();
        // What has been received meanwhile is found at the first look.
        let good = head < slots;
        let queue = Self { view, head, published: head, core: head, answered: 0, fault: None };
        good.then_some(queue)
    }

    /// Back to the positions of a new ring.
    pub(crate) fn restart(&mut self) {
        (self.head, self.published, self.core, self.fault) = (0, 0, 0, None);
    }

    /// Slots received, as far as is known.
    #[inline(always)]
    pub(crate) fn received(&self) -> u32 {
        distance(self.head, self.core, self.view.slots)
    }

    /// Up to `max` received frames. Looks at the peer's position only if fewer slots are known of.
    #[inline]
    pub(crate) fn lend(&mut self, max: usize) -> Incoming<'_> {
        if (self.received() as usize) < max {
            self.refresh();
        }
        let end = if self.fault.is_none() { self.core } else { self.head };
        Incoming::new(&self.view, &mut self.head, &mut self.fault, end, max)
    }

    /// Looks what the peer has filled.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let to = self.view.ring.control.core.0.observe();
        if to == self.core {
            return;
        }
        if self.view.is_within(to, self.core, previous(self.published, self.view.slots)) {
            self.core = to;
        } else {
            self.fault = Some(Fault::BadHead);
        }
    }

    /// Gives slots that were read back. True if there were any.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.head == self.published {
            return false;
        }
        self.published = self.head;
        self.view.ring.control.owner.0.publish(self.head);
        self.view.show(self.head, self.core);
        true
    }

    /// True if the peer sleeps and has not been kicked for it yet. The caller has fenced.
    #[inline]
    pub(crate) fn must_kick(&mut self) -> bool {
        self.view.ring.control.core_flags.0.wake.must_kick_fenced(&mut self.answered)
    }

    /// Asks to be woken when frames come, or takes that back.
    pub(crate) fn set_wake(&self, armed: bool) {
        let wake = &self.view.ring.control.owner_flags.0.wake;
        if armed { wake.arm() } else { wake.disarm() }
    }
}

/// The slots from `from` up to `to` as one or two runs of slot numbers.
#[inline]
fn runs(from: u32, to: u32, slots: u32) -> [(usize, usize); 2] {
    let (from, to, slots) = (from as usize, to as usize, slots as usize);
    if from <= to { [(from, to), (0, 0)] } else { [(from, slots), (0, to)] }
}
