//! A send ring, where the owner hands in frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use frame::OFFLOAD_HEADER;
use netring::layout::{
    Control, Fault, Format, MAX_FRAGS, RingMemory, Slot, SlotWord, advance, distance, next,
    previous, slot_flags,
};
use port::{Effects, Ingress, IngressCounters, Nanos, Offload, OffloadSet, Scratch};
use shmem::{Buffers, Bytes, Pool, Shared, SharedSlice};

use super::{Health, buffer, buffer_at};
use crate::state::SendState;

/// The flags of slots that are not one plain frame.
const SPECIAL: u16 = slot_flags::MOREFRAG | slot_flags::INDIRECT | slot_flags::OFFLOAD;

/// The request of a frame whose header makes none that can be met. The switch drops such frames,
/// and counts them.
const UNKNOWN: Offload = Offload { gso_type: u8::MAX, ..Offload::NONE };

/// A send ring, where the owner hands in frames.
pub(super) struct SendRing {
    slots: SharedSlice<Slot>,
    pub(super) control: Shared<Control>,
    pool: Pool,
    state: Shared<SendState>,
    counters: Shared<IngressCounters>,
    health: Arc<Health>,
    /// The first slot that was not gathered yet.
    taken: u32,
    /// The first slot that was not returned yet.
    done: u32,
    /// The number of slots of each frame that is gathered and not completed, oldest first. Empty if
    /// all have one slot.
    sizes: Vec<u8>,
    /// How many frames of the last batch were completed.
    completed: usize,
    /// The last wake-up request that was answered.
    answered: u32,
}

impl SendRing {
    pub(super) fn new(
        memory: RingMemory,
        pool: Pool,
        (state, counters): (Shared<SendState>, Shared<IngressCounters>),
        health: Arc<Health>,
        resume: bool,
    ) -> Self {
        let slots = memory.slots.len() as u32;
        let taken = if resume { state.taken.own().min(slots - 1) } else { 0 };
        state.taken.publish(taken);
        // Frames that were in flight when a predecessor died are lost; their slots return to the
        // client.
        memory.control.core.0.publish(taken);
        Self {
            slots: memory.slots,
            control: memory.control,
            pool,
            state,
            counters,
            health,
            taken,
            done: taken,
            sizes: Vec::with_capacity(1024),
            completed: 0,
            answered: 0,
        }
    }

    fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(super) fn has_work(&self) -> bool {
        !self.health.failed() && self.control.owner.0.observe() != self.taken
    }

    /// True if the client has handed in all slots that it may.
    pub(super) fn is_full(&self) -> bool {
        self.control.owner.0.observe() == previous(self.done, self.slots())
    }

    /// True while there are gathered frames that are not completed.
    pub(super) fn lends(&self) -> bool {
        self.done != self.taken
    }

    /// Checks that the memory of an idle ring can still be read.
    pub(super) fn check_memory(&mut self) {
        if self.memory_has_failed() && !self.health.failed() {
            self.health.fail(Fault::Memory, &self.control, &self.counters.faults);
        }
    }

    #[inline(always)]
    fn memory_has_failed(&self) -> bool {
        self.control.mapping().has_failed()
    }

    /// Continues where another process has stopped: as after a restart, frames in flight are lost.
    pub(super) fn refresh(&mut self) {
        let taken = self.state.taken.own().min(self.slots() - 1);
        (self.taken, self.done, self.completed) = (taken, taken, 0);
        self.sizes.clear();
        if self.control.core.0.own() != taken {
            self.control.core.0.publish(taken);
        }
    }

    pub(super) fn restart(&mut self) {
        (self.taken, self.done, self.completed) = (0, 0, 0);
        self.sizes.clear();
        self.state.taken.publish(0);
        self.control.core.0.publish(0);
    }

    /// The client's head, if it is valid: between our position and the slot before the oldest one
    /// that we hold.
    #[inline(always)]
    fn head(&self) -> Result<u32, Fault> {
        let (head, slots) = (self.control.owner.0.observe(), self.slots());
        let end = previous(self.done, slots);
        let good =
            head < slots && distance(self.taken, head, slots) <= distance(self.taken, end, slots);
        if good { Ok(head) } else { Err(Fault::BadHead) }
    }

    /// Gathers frames up to `head`. On a fault, the frames before it stay gathered.
    #[inline(always)]
    fn collect(&mut self, scratch: &mut Scratch, max: usize, head: u32) -> Result<(), Fault> {
        let format = self.control.owner_flags.0.format();
        while self.taken != head && scratch.len() < max && scratch.has_room() {
            let before = scratch.len();
            if format == Format::PLAIN {
                self.collect_singles(scratch, max, head);
            }
            if scratch.len() == before {
                self.collect_special(scratch, head, format)?;
            } else if !self.sizes.is_empty() {
                self.sizes.resize(scratch.len(), 1);
            }
        }
        Ok(())
    }

    /// Gathers frames of one slot each, up to the ring's end.
    #[inline(always)]
    fn collect_singles(&mut self, scratch: &mut Scratch, max: usize, head: u32) {
        let end = if head >= self.taken { head } else { self.slots() };
        let (before, pool) = (scratch.len(), self.pool.buffers());
        scratch.push_all(max, &self.slots[self.taken as usize..end as usize], |slot| {
            let word = slot.load();
            let single = word.flags & SPECIAL == 0;
            buffer(pool, word).filter(|_| single)
        });
        let at = self.taken + (scratch.len() - before) as u32;
        self.taken = if at == self.slots() { 0 } else { at };
    }

    /// Gathers one frame with several slots, an offload request, or slots that hold more than
    /// frames; or returns its fault.
    #[inline(never)]
    fn collect_special(
        &mut self,
        scratch: &mut Scratch,
        head: u32,
        format: Format,
    ) -> Result<(), Fault> {
        let before = scratch.len();
        let mut at = self.taken;
        let Chain { count, pieces, len, offload } =
            self.collect_slots(scratch, &mut at, head, format)?;
        scratch.end_frame(usize::from(pieces), len);
        if offload != Offload::NONE {
            scratch.set_offload(offload);
        }
        self.sizes.resize(before, 1);
        self.sizes.push(count);
        self.taken = at;
        Ok(())
    }

    /// Gathers the slots of a frame. A frame that is incomplete at `head` ends there.
    fn collect_slots(
        &self,
        scratch: &mut Scratch,
        at: &mut u32,
        head: u32,
        format: Format,
    ) -> Result<Chain, Fault> {
        let mut chain = Chain { count: 0, pieces: 0, len: 0, offload: Offload::NONE };
        while *at != head {
            let slot = &self.slots[*at as usize];
            let word = slot.load();
            let bytes = check(self.pool.buffers(), word, slot.offset(format));
            let bytes =
                bytes.and_then(|bytes| self.look_into(bytes, (*at, word), format, &mut chain));
            let bytes = bytes.inspect_err(|_| scratch.abandon_segments(chain.pieces.into()))?;
            // The first slot may hold the header alone.
            if !bytes.is_empty() || chain.count > 0 || format.header() == 0 {
                scratch.push_segment(bytes.span());
                chain.pieces += 1;
            }
            *at = next(*at, self.slots());
            chain.count += 1;
            chain.len += bytes.len();
            if word.flags & slot_flags::MOREFRAG == 0 {
                break;
            }
        }
        Ok(chain)
    }

    /// Reads the request of a slot of a frame. Returns the frame's bytes in the slot.
    fn look_into<'b>(
        &self,
        bytes: Bytes<'b>,
        (at, word): (u32, SlotWord),
        format: Format,
        chain: &mut Chain,
    ) -> Result<Bytes<'b>, Fault> {
        if usize::from(chain.count) == MAX_FRAGS {
            return Err(Fault::EndlessFrame);
        }
        if word.flags & slot_flags::OFFLOAD != 0 && format == Format::PLAIN {
            self.request(at, chain)?;
        }
        if chain.count > 0 || format.header() == 0 {
            return Ok(bytes);
        }
        chain.offload = request_in(bytes, format.header());
        Ok(bytes.suffix(format.header()))
    }

    /// Reads the request in a frame's first slot, once. The frame's headers are validated after
    /// they are copied.
    fn request(&self, at: u32, chain: &mut Chain) -> Result<(), Fault> {
        let offloads = self.health.offloads;
        if chain.count > 0 || !offloads.checksum {
            return Err(Fault::Offload);
        }
        let asked = Offload::from_word(self.slots[at as usize].ptr.load(Ordering::Relaxed));
        chain.offload = asked.from_sender(&offloads).ok_or(Fault::Offload)?;
        Ok(())
    }
}

/// The slots of a frame.
struct Chain {
    count: u8,
    /// How many of them have bytes of the frame.
    pieces: u8,
    len: usize,
    offload: Offload,
}

/// Reads the virtio-net header of `len` bytes at the start of a frame's first slot, once. A header
/// that is not whole, or makes a request that no port may make, gets one that is refused.
fn request_in(slot: Bytes<'_>, len: usize) -> Offload {
    let header = slot.get(0, len).and_then(|header| header.read::<[u8; OFFLOAD_HEADER]>(0));
    let asked =
        header.and_then(|header| Offload::from_header(&header).from_sender(&OffloadSet::ALL));
    asked.unwrap_or(UNKNOWN)
}

/// The bytes of a slot, or its fault.
fn check(pool: Buffers<'_>, word: SlotWord, offset: u64) -> Result<Bytes<'_>, Fault> {
    if word.flags & slot_flags::INDIRECT != 0 {
        return Err(Fault::Indirect);
    }
    let known = buffer(pool, SlotWord { len: 0, ..word }).is_some();
    let fault = if known { Fault::BadLength } else { Fault::BadBuffer };
    buffer_at(pool, word, offset).ok_or(fault)
}

impl Ingress for SendRing {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, _now: Nanos) -> usize {
        if self.control.owner.0.observe() == self.taken || self.health.failed() {
            return 0;
        }
        self.sizes.clear();
        self.completed = 0;
        let head = if self.memory_has_failed() { Err(Fault::Memory) } else { self.head() };
        let collected = head.and_then(|head| self.collect(scratch, max, head));
        if let Err(fault) = collected {
            self.health.fail(fault, &self.control, &self.counters.faults);
        }
        self.counters.frames.add(scratch.len() as u64);
        self.counters.bytes.add(scratch.bytes());
        self.state.taken.publish(self.taken);
        scratch.len()
    }

    fn complete(&mut self, frames: usize) {
        let from = self.completed;
        let slots = match self.sizes.get(from..from + frames) {
            Some(sizes) => sizes.iter().map(|size| u32::from(*size)).sum(),
            None => frames as u32,
        };
        self.completed += frames;
        self.done = advance(self.done, slots, self.slots());
        self.control.core.0.publish(self.done);
    }

    fn settle(&mut self, _now: Nanos) -> Effects {
        let kick = self.control.owner_flags.0.wake.must_kick_fenced(&mut self.answered);
        self.counters.kicks.add(u64::from(kick));
        Effects { kick }
    }
}
