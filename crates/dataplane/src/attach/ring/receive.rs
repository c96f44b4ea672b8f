//! A receive ring: where frames are handed out to its owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ::ring::layout::{
    Control, Fault, MAX_FRAGS, RingMemory, Slot, SlotWord, advance, distance, next, slot_flags,
};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, FrameIdx, Limits, Nanos, Picked, Software,
};
use shmem::{Buffers, Pool, Shared, SharedSlice};
use spin::mutex::SpinMutex;

use super::{Health, buffer};
use crate::state::ReceiveState;

/// Frames that come alone use so many buffers before it is looked at what the client has released: its head comes
/// over from another core, for several of them at once then.
const WARM: u32 = 16;

/// A receive ring: where frames are handed out to its owner. Shared by all workers.
#[repr(align(64))]
pub(super) struct ReceiveQueue {
    /// Who fills the ring: whoever holds it may move the cursors in `state`. It is given back by a plain
    /// store, where a mutex that sleepers wait for needs an exchange, which waits for all stores before it.
    filling: SpinMutex<(), spin::Yield>,
    slots: SharedSlice<Slot>,
    pub(super) control: Shared<Control>,
    pool: Pool,
    state: Shared<ReceiveState>,
    /// Buffers not handed out: from number [`out`](Self::out) to the ring's size, the one that came
    /// back last first.
    spares: SharedSlice<AtomicU32>,
    health: Arc<Health>,
    /// Bytes of a buffer that are filled.
    usable: u32,
    /// [`WARM`], or less in a small ring.
    warm: u32,
    /// The wake-up that was answered last.
    answered: AtomicU32,
}

/// What a receive ring is made of.
pub(super) struct Parts {
    pub memory: RingMemory,
    pub pool: Pool,
    pub state: Shared<ReceiveState>,
    pub spares: SharedSlice<AtomicU32>,
    pub usable: u32,
}

impl ReceiveQueue {
    pub(super) fn new(parts: Parts, health: Arc<Health>, resume: bool) -> Self {
        let Parts { memory, pool, state, spares, usable } = parts;
        let slots = memory.slots.len() as u32;
        let queue = Self {
            filling: SpinMutex::new(()),
            slots: memory.slots,
            control: memory.control,
            pool,
            state,
            spares,
            health,
            usable,
            warm: WARM.min(slots / 2),
            answered: AtomicU32::new(0),
        };
        if resume {
            let last = queue.slot_count() - 1;
            for cursor in [&queue.state.published, &queue.state.released] {
                cursor.publish(cursor.own().min(last));
            }
            // The predecessor may have died between delivering and saying so.
            queue.control.core.0.publish(queue.state.published.own());
        } else {
            queue.start_anew();
        }
        queue
    }

    /// All buffers back, all positions at the start.
    pub(super) fn start_anew(&self) {
        let _filling = self.filling.lock();
        self.state.published.publish(0);
        self.state.released.publish(0);
        self.state.primed.store(0, Ordering::Relaxed);
        self.control.core.0.publish(0);
    }

    #[inline(always)]
    fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slots in the client's hands.
    #[inline(always)]
    fn out(&self) -> u32 {
        distance(self.state.released.own(), self.state.published.own(), self.slot_count())
    }

    #[inline(always)]
    fn deliver_all(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> usize {
        if let Err(fault) = self.make_room() {
            if !self.health.failed() {
                self.health.fail(fault, &self.control, &self.state.counters.faults);
            }
            self.state.counters.drop_frames(DropReason::Down, list.len() as u64);
            return list.len();
        }
        let most = limits.max_frame.min(self.usable);
        let mut filled = Filled { at: self.state.published.own(), spare: self.out(), ..EMPTY };
        let mut left = list;
        while !left.is_empty() {
            let before = left.len();
            left = match batch.consecutive(left) {
                Some(frames) => &left[self.fill_singles(&mut filled, batch, frames, most)..],
                None => {
                    let frames = left.iter().map(|i| batch.pick(*i));
                    &left[self.fill_singles(&mut filled, batch, frames, most)..]
                }
            };
            if left.len() == before
                && !self.fill_special(&mut filled, batch, left[0], limits.max_frame)
            {
                break;
            }
            left = if left.len() == before { &left[1..] } else { left };
        }
        self.publish(&filled);
        if !left.is_empty() && !limits.lossless {
            self.state.counters.drop_frames(DropReason::Full, left.len() as u64);
            left = &[];
        }
        list.len() - left.len()
    }

    /// As [`deliver_all`](Self::deliver_all) for a frame alone, of which traffic to many receivers is made;
    /// false, with nothing done, if it is not as simple as it should be or it is time to take buffers back.
    #[inline(always)]
    fn deliver_one(&self, frame: Picked<'_>, limits: Limits) -> bool {
        let len = frame.len() as u32;
        let (published, out) = (self.state.published.own(), self.out());
        if self.ready().is_err() || out >= self.warm || len > limits.max_frame.min(self.usable) {
            return false;
        }
        let (slot, spare) = (self.slots.get(published as usize), self.spares.get(out as usize));
        let (Some(slot), Some(spare)) = (slot, spare) else { return false };
        let word = SlotWord { buf: spare.load(Ordering::Relaxed), len: len as u16, flags: 1 << 8 };
        let Some(bytes) = buffer(self.pool.buffers(), word) else { return false };
        frame.copy_to(bytes);
        slot.store(word);
        let at = next(published, self.slot_count());
        self.publish(&Filled { at, frames: 1, bytes: u64::from(len), ..EMPTY });
        true
    }

    /// Copies frames of at most `most` bytes into one spare buffer each, as far as there are any
    /// without the ring's end between them; returns how many.
    #[inline(always)]
    fn fill_singles<'b>(
        &self,
        to: &mut Filled,
        batch: &'b Batch<'_>,
        list: impl ExactSizeIterator<Item = Picked<'b>> + Clone,
        most: u32,
    ) -> usize {
        let slots = self.slots[to.at as usize..].iter();
        // The last spare belongs to the slot that stays empty.
        let spares = self.spares[to.spare as usize..self.slots.len() - 1].iter();
        let pool = self.pool.buffers();
        let (mut frames, mut bytes) = (0, 0);
        let mut ahead = list.clone();
        ahead.next();
        for ((frame, slot), spare) in list.zip(slots).zip(spares) {
            if batch.is_long()
                && let Some(next) = ahead.next()
            {
                next.prefetch_payload();
            }
            let (len, buf) = (frame.len() as u32, spare.load(Ordering::Relaxed));
            if len > most {
                break;
            }
            let word = SlotWord { buf, len: len as u16, flags: 1 << 8 };
            if let Some(bytes) = buffer(pool, word) {
                frame.copy_to(bytes);
            }
            slot.store(word);
            frames += 1;
            bytes += u64::from(len);
        }
        to.spare += frames;
        to.at = advance(to.at, frames, self.slot_count());
        to.frames += u64::from(frames);
        to.bytes += bytes;
        frames as usize
    }

    /// Drops a frame that is too long, or spreads one over several slots, each with their number in
    /// its flags; false if there is no room.
    #[cold]
    fn fill_special(
        &self,
        to: &mut Filled,
        batch: &Batch<'_>,
        i: FrameIdx,
        max_frame: u32,
    ) -> bool {
        let frame = batch.pick(i);
        let len = frame.len() as u32;
        let count = len.div_ceil(self.usable).max(1);
        if len > max_frame || count as usize > MAX_FRAGS {
            to.too_long += 1;
            return true;
        }
        if to.spare + count >= self.slot_count() {
            return false;
        }
        for number in 0..count {
            let from = number * self.usable;
            let piece = self.usable.min(len - from);
            let buf = self.spares[to.spare as usize].load(Ordering::Relaxed);
            to.spare += 1;
            let more = if number + 1 < count { slot_flags::MOREFRAG } else { 0 };
            let word = SlotWord { buf, len: piece as u16, flags: (count as u16) << 8 | more };
            if let Some(bytes) = buffer(self.pool.buffers(), word) {
                frame.copy_range(from as usize, bytes);
            }
            self.slots[to.at as usize].store(word);
            to.at = next(to.at, self.slot_count());
        }
        to.frames += 1;
        to.bytes += u64::from(len);
        true
    }

    /// Hands the filled slots out: one publish.
    #[inline(always)]
    fn publish(&self, filled: &Filled) {
        let counters = &self.state.counters;
        if filled.frames > 0 {
            counters.frames.add(filled.frames);
            counters.bytes.add(filled.bytes);
            self.state.published.publish(filled.at);
            self.control.core.0.publish(filled.at);
        }
        if filled.too_long > 0 {
            counters.drop_frames(DropReason::TooLong, filled.too_long);
        }
    }

    /// Takes back what the client has released, so that the same few warm buffers go round.
    #[inline(always)]
    fn make_room(&self) -> Result<(), Fault> {
        self.ready()?;
        self.reclaim()
    }

    /// Whether the ring can be filled: its spare buffers are known.
    #[inline(always)]
    fn ready(&self) -> Result<(), Fault> {
        let fault = self.health.fault.load(Ordering::Relaxed);
        if fault != 0 {
            return Err(Fault::from_number(fault).unwrap_or(Fault::Memory));
        }
        if self.control.mapping().has_failed() {
            return Err(Fault::Memory);
        }
        if self.state.primed.load(Ordering::Relaxed) == 0 { self.prime() } else { Ok(()) }
    }

    /// Takes back the buffers of slots that the client has released.
    #[inline(always)]
    fn reclaim(&self) -> Result<(), Fault> {
        let (head, slots) = (self.control.owner.0.observe(), self.slot_count());
        let (released, out) = (self.state.released.own(), self.out());
        if head == released {
            return Ok(());
        }
        if head >= slots || distance(released, head, slots) > out {
            return Err(Fault::BadHead);
        }
        let pool = self.pool.buffers();
        let mut spares = self.spares[..out as usize].iter().rev();
        let (from, to, end) = (released as usize, head as usize, slots as usize);
        let runs = if from <= to { [from..to, 0..0] } else { [from..end, 0..to] };
        for run in runs {
            for (slot, spare) in self.slots[run].iter().zip(&mut spares) {
                spare.store(checked(pool, slot)?, Ordering::Relaxed);
            }
        }
        self.state.released.publish(head);
        Ok(())
    }

    /// Reads which buffers the client has put into the ring.
    #[cold]
    fn prime(&self) -> Result<(), Fault> {
        for (slot, spare) in self.slots.iter().zip(self.spares.iter()) {
            spare.store(checked(self.pool.buffers(), slot)?, Ordering::Relaxed);
        }
        self.state.primed.store(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Egress for ReceiveQueue {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let _filling = self.filling.lock();
        let finished = match list {
            [frame] if self.deliver_one(batch.pick(*frame), limits) => 1,
            _ => self.deliver_all(batch, list, limits),
        };
        Delivered { finished }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        let mut answered = self.answered.load(Ordering::Relaxed);
        let kick = self.control.owner_flags.0.wake.must_kick_fenced(&mut answered);
        if kick {
            self.answered.store(answered, Ordering::Relaxed);
            self.state.counters.kicks.add_shared(1);
        }
        Effects { kick }
    }

    fn count_software(&self, done: Software) {
        self.state.counters.add_software(done);
    }

    fn prefetch(&self) {
        prefetch(&*self.health);
        prefetch(&self.control.owner_flags);
        prefetch_to_write(&self.control.core);
        let (published, out) = (self.state.published.own(), self.out());
        self.slots.get(published as usize).inspect(|slot| prefetch_to_write(*slot));
        if out >= self.warm {
            prefetch(&self.control.owner);
        }
        let spare = self.spares.get(out as usize).map(|spare| spare.load(Ordering::Relaxed));
        let word = spare.map(|buf| SlotWord { buf, len: 64, flags: 0 });
        let bytes = word.and_then(|word| buffer(self.pool.buffers(), word));
        bytes.inspect(|bytes| bytes.prefetch_to_write(0));
    }
}

/// The buffer that the client left in a slot.
#[inline(always)]
fn checked(pool: Buffers<'_>, slot: &Slot) -> Result<u32, Fault> {
    let word = slot.load();
    let known = buffer(pool, SlotWord { len: 0, ..word }).is_some();
    if known { Ok(word.buf) } else { Err(Fault::BadBuffer) }
}

fn prefetch<T>(value: &T) {
    shmem::prefetch(std::ptr::from_ref(value).cast());
}

fn prefetch_to_write<T>(value: &T) {
    shmem::prefetch_to_write(std::ptr::from_ref(value).cast());
}

/// A receive ring's position while a batch is filled in.
struct Filled {
    at: u32,
    /// The next spare buffer.
    spare: u32,
    frames: u64,
    bytes: u64,
    too_long: u64,
}

const EMPTY: Filled = Filled { at: 0, spare: 0, frames: 0, bytes: 0, too_long: 0 };
