//! A receive ring, where the switch hands out frames to the ring's owner.

mod special;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

use netring::layout::{
    Control, Fault, Format, RingMemory, RingSpec, Slot, SlotWord, advance, carried, distance, next,
};
use port::stamp::{self, Stage};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, FrameIdx, Limits, Nanos, OffloadSet, Picked,
    Software, SoleWorker,
};
use shmem::{Buffers, Pool, Shared, SharedSlice, Windows};
use spin::mutex::SpinMutex;

use self::special::How;
use super::shares::{Fill, Shares};
use super::{Health, buffer, window};
use crate::state::ReceiveState;

/// How many buffers single frames use before the client's `head` is read again. That cache line
/// comes from another core, so one read should serve several buffers.
const WARM: u32 = 16;

/// A receive ring. All workers share it. It takes two cache lines, and has all that is needed to
/// prefetch the rest of what a delivery touches.
#[repr(align(64))]
pub(in crate::attach) struct ReceiveQueue {
    /// The lock of the cursors. It is released by a plain store. A mutex with sleeping waiters
    /// would need an exchange, which waits for all earlier stores.
    ///
    /// # Protocol: a receive ring's lock (`ReceiveQueue.filling`)
    /// - Writer: workers
    /// - Reader: workers
    /// - Ordering: spinning mutex (crate `spin`, yields to its holder): acquire / release
    /// - Partner: the cursors and counters in `ReceiveState`
    /// - Without it: two workers fill one slot
    /// - Shown by: `worker` test `two_workers_fill_one_ring_by_turns`
    filling: SpinMutex<(), spin::Yield>,
    /// The same number for this ring: [`WARM`], or less if the ring is small; 0 if its slots hold
    /// more than frames, so that none is delivered singly.
    ///
    /// # Protocol: `ReceiveQueue.warm`
    /// - Writer: who attaches or refreshes the ring; the control thread, when the format changes
    /// - Reader: workers
    /// - Ordering: relaxed
    /// - Partner: `owner_flags.format`
    /// - Without it: a frame is delivered without its header
    /// - Shown by: `netmap` test `port_headers`
    warm: AtomicU8,
    /// Usable bytes of a buffer.
    usable: u16,
    /// The next slot to fill: a copy of `published`, which `state` keeps for a successor.
    ///
    /// # Protocol: `ReceiveQueue.at`, `out`, `spare` (the cursors and next spare buffer again)
    /// - Writer: holder of the egress lock; the switch's only worker without it
    /// - Reader: the next holder; the worker that fetches ahead
    /// - Ordering: relaxed: the lock, or the only thread, orders them
    /// - Partner: `ReceiveState`, from which a successor makes them
    /// - Without it: what is fetched ahead is not what is used
    /// - Shown by: `faults`, `daemon_survival` tests
    at: AtomicU16,
    /// Slots that the client holds, from `released` to `published`; [`UNKNOWN`] before the spare
    /// buffers are read.
    out: AtomicU16,
    /// The buffer for the next slot.
    spare: AtomicU32,
    /// The last wake-up request that was answered.
    answered: AtomicU32,
    slots: SharedSlice<Slot>,
    pub(super) control: Shared<Control>,
    pool: Pool,
    state: Shared<ReceiveState>,
    /// The buffers that are not handed out, from index [`out`](Self::out) to the ring's size; the
    /// one that returned last comes first.
    spares: SharedSlice<AtomicU32>,
    health: Box<Own>,
}

/// What else a ring has, beside the health of its port.
struct Own {
    port: Arc<Health>,
    shares: Shares,
}

impl Deref for Own {
    type Target = Health;

    fn deref(&self) -> &Health {
        &self.port
    }
}

const _: () = assert!(size_of::<ReceiveQueue>() == 128);

/// Stands for a number that is not known: more slots than any ring has.
const UNKNOWN: u32 = u16::MAX as u32;

/// The parts of a receive ring.
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
            warm: AtomicU8::new(0),
            usable: usable as u16,
            at: AtomicU16::new(0),
            out: AtomicU16::new(0),
            spare: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            slots: memory.slots,
            control: memory.control,
            pool,
            state,
            spares,
            health: Box::new(Own { port: health, shares: Shares::default() }),
        };
        if resume && queue.state.primed.load(Ordering::Relaxed) != 0 {
            for cursor in [&queue.state.published, &queue.state.released] {
                cursor.publish(cursor.own().min(slots - 1));
            }
            queue.refresh();
        } else {
            queue.restart();
        }
        queue.read_format();
        queue
    }

    /// Reads what the ring's slots hold besides frames.
    pub(in crate::attach) fn read_format(&self) {
        let plain = self.format() == Format::PLAIN;
        let warm = if plain { WARM.min(self.slot_count() / 2) } else { 0 };
        self.warm.store(warm as u8, Ordering::Relaxed);
    }

    fn format(&self) -> Format {
        self.control.owner_flags.0.format()
    }

    #[inline]
    fn warm(&self) -> u32 {
        self.warm.load(Ordering::Relaxed).into()
    }

    /// Continues where a predecessor or another process has stopped.
    pub(super) fn refresh(&self) {
        self.read_format();
        let (last, state) = (self.slot_count() - 1, &self.state);
        let published = state.published.own().min(last);
        if state.primed.load(Ordering::Relaxed) == 0 {
            return self.stand(published, UNKNOWN);
        }
        self.stand(published, distance(self.released(), published, self.slot_count()));
        // The other may have died after it delivered frames and before it published them.
        if self.control.core.0.own() != published {
            self.control.core.0.publish(published);
        }
    }

    /// Takes all buffers back, and moves all positions to the start.
    pub(super) fn restart(&self) {
        let _filling = self.filling.lock();
        self.state.published.publish(0);
        self.state.released.publish(0);
        self.state.primed.store(0, Ordering::Relaxed);
        self.stand(0, UNKNOWN);
        self.control.core.0.publish(0);
    }

    /// Puts each spare buffer into a slot that is not handed out. In a ring that was never filled
    /// they are there already.
    pub(in crate::attach) fn return_buffers(&self) {
        let _filling = self.filling.lock();
        let (at, out) = (self.at(), self.out());
        let spares = self.spares.get(out as usize..).filter(|_| (out as usize) < self.slots.len());
        let Some(spares) = spares else { return };
        for (n, spare) in spares.iter().take(self.slots.len() - out as usize).enumerate() {
            let slot = &self.slots[advance(at, n as u32, self.slot_count()) as usize];
            let word = SlotWord { buf: spare.load(Ordering::Relaxed), len: 0, flags: 0 };
            slot.store(word);
        }
    }

    /// Stores the next slot to fill, and the number of slots before it that the client holds.
    #[inline(always)]
    fn stand(&self, at: u32, out: u32) {
        self.at.store(at as u16, Ordering::Relaxed);
        self.out.store(out as u16, Ordering::Relaxed);
        let spare = self.spares.get(out as usize).map_or(0, |spare| spare.load(Ordering::Relaxed));
        self.spare.store(spare, Ordering::Relaxed);
    }

    /// The next slot to fill.
    #[inline(always)]
    fn at(&self) -> u32 {
        self.at.load(Ordering::Relaxed).into()
    }

    #[inline(always)]
    fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The first slot that is not taken back. A peer of a trusted switch can write it at any time.
    #[inline(always)]
    fn released(&self) -> u32 {
        self.state.released.own().min(self.slot_count() - 1)
    }

    /// The number of slots that the client holds.
    #[inline(always)]
    fn out(&self) -> u32 {
        self.out.load(Ordering::Relaxed).into()
    }

    #[inline(never)]
    fn deliver_all(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> usize {
        if let Err(fault) = self.make_room() {
            return self.refuse(fault, list.len());
        }
        let most = limits.max_frame.min(self.usable.into());
        let mut filled = Filled { at: self.at(), spare: self.out(), ..EMPTY };
        let plain = How { limits, format: Format::PLAIN, copies: None };
        let all = list.len();
        let mut left = self.admitted(batch, list, (limits, Format::PLAIN));
        while !left.is_empty() {
            let before = left.len();
            left = match batch.consecutive(left) {
                Some(frames) => &left[self.fill_singles(&mut filled, batch, frames, most)..],
                None => {
                    let frames = left.iter().map(|i| batch.pick(*i));
                    &left[self.fill_singles(&mut filled, batch, frames, most)..]
                }
            };
            if left.len() == before && !self.fill_special(&mut filled, batch, left[0], plain) {
                break;
            }
            left = if left.len() == before { &left[1..] } else { left };
        }
        self.publish(&filled);
        if !left.is_empty() && !limits.lossless {
            self.overflow(left.len());
            left = &[];
        }
        all - left.len()
    }

    /// The frames of a list that are within their sender's share. Others are dropped.
    #[inline(always)]
    fn admitted<'l>(
        &self,
        batch: &Batch<'_>,
        list: &'l [FrameIdx],
        (limits, format): (Limits, Format),
    ) -> &'l [FrameIdx] {
        match self.health.shares.flooded() && !limits.lossless {
            false => list,
            true => self.admit(batch, list, format),
        }
    }

    #[cold]
    #[inline(never)]
    fn admit<'l>(&self, batch: &Batch<'_>, list: &'l [FrameIdx], format: Format) -> &'l [FrameIdx] {
        let (mut at, header) = (self.at(), format.header());
        let slots = list.iter().map(|i| {
            // A frame of too many slots takes none.
            let total = header + batch.pick(*i).len();
            let slots = self.slots_for(at, header, total, format).unwrap_or(0);
            at = (at + slots) % self.slot_count();
            slots
        });
        let admitted = self.health.shares.admit(batch.sender(), slots, self.fill());
        let refused = (list.len() - admitted) as u64;
        if refused > 0 {
            self.state.counters.drop_frames(DropReason::Full, refused);
        }
        &list[..admitted]
    }

    fn fill(&self) -> Fill {
        Fill { slots: self.slot_count(), out: self.out(), released: self.released() }
    }

    /// Drops frames that found no room. From now on, senders have shares.
    #[cold]
    #[inline(never)]
    fn overflow(&self, frames: usize) {
        self.state.counters.drop_frames(DropReason::Full, frames as u64);
        self.health.shares.overflowed(self.fill());
    }

    /// Drops frames because the client is at fault; returns how many.
    #[cold]
    fn refuse(&self, fault: Fault, frames: usize) -> usize {
        if !self.health.failed() {
            self.health.fail(fault, &self.control, &self.state.counters.faults);
        }
        self.state.counters.drop_frames(DropReason::Down, frames as u64);
        frames
    }

    /// Takes back the buffers that the client has released; true if they suffice for single frames.
    #[inline(never)]
    fn has_warm_buffers(&self) -> bool {
        self.make_room().is_ok() && self.out() < self.warm()
    }

    /// Copies frames of at most `most` bytes into one spare buffer each, up to the ring's end;
    /// returns how many.
    #[inline(always)]
    fn fill_singles<'b>(
        &self,
        to: &mut Filled,
        batch: &'b Batch<'_>,
        list: impl ExactSizeIterator<Item = Picked<'b>> + Clone,
        most: u32,
    ) -> usize {
        let Some(buffers) = self.pool.buffers().windows(most) else { return 0 };
        let room = Room {
            slots: &self.slots[to.at as usize..],
            // The last spare buffer belongs to the slot that stays empty.
            spares: &self.spares[to.spare as usize..self.slots.len() - 1],
            buffers,
        };
        let (frames, bytes) = match batch.is_long() {
            true => fill::<true>(list, &room),
            false => fill::<false>(list, &room),
        };
        to.spare += frames as u32;
        to.at = advance(to.at, frames as u32, self.slot_count());
        to.frames += frames;
        to.bytes += bytes;
        frames as usize
    }

    /// Publishes the filled slots with a single store.
    #[inline(always)]
    fn publish(&self, filled: &Filled) {
        let _scope = stamp::scope(Stage::Publish);
        let counters = &self.state.counters;
        if filled.frames > 0 {
            counters.frames.add(filled.frames);
            counters.bytes.add(filled.bytes);
            self.state.published.publish(filled.at);
            self.control.core.0.publish(filled.at);
            self.stand(filled.at, filled.spare);
        }
        if filled.too_long > 0 {
            counters.drop_frames(DropReason::TooLong, filled.too_long);
        }
    }

    /// Takes back released buffers, so that the same few cache-warm buffers are used again.
    #[inline(always)]
    fn make_room(&self) -> Result<(), Fault> {
        self.health()?;
        if self.out() == UNKNOWN { self.prime() } else { self.reclaim() }
    }

    /// Checks that the ring may be filled.
    #[inline(always)]
    fn health(&self) -> Result<(), Fault> {
        let fault = self.health.fault.load(Ordering::Relaxed);
        if fault != 0 {
            return Err(Fault::from_number(fault).unwrap_or(Fault::Memory));
        }
        if self.control.mapping().has_failed() { Err(Fault::Memory) } else { Ok(()) }
    }

    /// Takes back the buffers of released slots.
    #[inline(always)]
    fn reclaim(&self) -> Result<(), Fault> {
        let (head, slots) = (self.control.owner.0.observe(), self.slot_count());
        let (released, out) = (self.released(), self.out());
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
        self.stand(self.at(), distance(head, self.at(), slots));
        Ok(())
    }

    /// Reads the buffers that the client has put into the ring.
    #[cold]
    fn prime(&self) -> Result<(), Fault> {
        for (slot, spare) in self.slots.iter().zip(self.spares.iter()) {
            spare.store(checked(self.pool.buffers(), slot)?, Ordering::Relaxed);
        }
        self.state.primed.store(1, Ordering::Relaxed);
        self.stand(0, 0);
        Ok(())
    }
}

impl Egress for ReceiveQueue {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let _filling = self.filling.lock();
        let format = self.format();
        if format != Format::PLAIN || batch.any_offload() && self.health.offloads.checksum {
            let how = How { limits, format, copies: None };
            return Delivered { finished: self.deliver_specially(batch, list, how) };
        }
        Delivered { finished: self.deliver_all(batch, list, limits) }
    }

    fn deliver_copies(
        &self,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
        sent: bool,
    ) -> Delivered {
        let _filling = self.filling.lock();
        let how = How { limits, format: self.format(), copies: Some(sent) };
        Delivered { finished: self.deliver_specially(batch, list, how) }
    }

    /// A fault of another ring, or of the port's memory, shows when buffers are taken back.
    #[inline(always)]
    fn deliver_one(&self, frame: Picked<'_>, limits: Limits, sole: Option<&SoleWorker>) -> bool {
        let _filling = sole.is_none().then(|| self.filling.lock());
        if self.out() >= self.warm() && !self.has_warm_buffers() {
            return false;
        }
        let most = limits.max_frame.min(self.usable.into());
        let (at, out, buf) = (self.at(), self.out(), self.spare.load(Ordering::Relaxed));
        let slots = &self.slots[..];
        let (state, control) = (&*self.state, &*self.control);
        let windows = self.pool.buffers().windows(most);
        let window = windows.and_then(|windows| window(windows, buf));
        let (Some(slot), Some(window)) = (slots.get(at as usize), window) else {
            return false;
        };
        let len = frame.len();
        if len > window.len() {
            return false;
        }
        frame.copy_to(window);
        let _scope = stamp::scope(Stage::Publish);
        slot.store(SlotWord { buf, len: len as u16, flags: 1 << 8 });
        let at = next(at, slots.len() as u32);
        state.counters.frames.add(1);
        state.counters.bytes.add(len as u64);
        state.published.publish(at);
        control.core.0.publish(at);
        self.stand(at, out + 1);
        true
    }

    #[inline(always)]
    fn settle(&self, _now: Nanos) -> Effects {
        let mut answered = self.answered.load(Ordering::Relaxed);
        let kick = self.control.owner_flags.0.wake.must_kick_fenced(&mut answered);
        if kick {
            self.answered.store(answered, Ordering::Relaxed);
            self.state.counters.kicks.add_shared(1);
        }
        Effects { kick }
    }

    fn takes(&self) -> OffloadSet {
        if self.format().header() == 0 {
            return self.health.offloads;
        }
        // Programs know the kinds of requests that netmap knows.
        let known = OffloadSet { uso: false, ..OffloadSet::ALL };
        let ring = RingSpec { first: 0, rings: 1, slots: self.slot_count() };
        carried(known, self.usable.into(), &ring)
    }

    fn count_software(&self, done: Software) {
        self.state.counters.add_software(done);
    }

    #[inline(always)]
    fn prefetch(&self) {
        prefetch(&self.control.owner_flags);
        prefetch_to_write(&self.control.core);
        prefetch_to_write(&*self.state);
        let (at, out) = (self.at(), self.out());
        self.slots.get(at as usize).inspect(|slot| prefetch_to_write(*slot));
        self.spares.get(out as usize + 1).inspect(|spare| prefetch(*spare));
        if out >= self.warm() {
            prefetch(&self.control.owner);
        }
        let word = SlotWord { buf: self.spare.load(Ordering::Relaxed), len: 64, flags: 0 };
        buffer(self.pool.buffers(), word).inspect(|bytes| bytes.prefetch_to_write(0));
    }
}

/// Consecutive slots to fill, each with the next spare buffer.
struct Room<'r> {
    slots: &'r [Slot],
    spares: &'r [AtomicU32],
    buffers: Windows<'r>,
}

/// Copies frames that fit the buffers' windows, as long as there is room; returns how many, and
/// their bytes. A function of its own, so that the loop's variables stay in registers. `LONG`
/// prefetches each payload while the previous frame is copied.
#[inline(never)]
fn fill<'b, const LONG: bool>(
    list: impl ExactSizeIterator<Item = Picked<'b>> + Clone,
    room: &Room<'_>,
) -> (u64, u64) {
    let Room { slots, spares, buffers } = *room;
    let (mut frames, mut bytes) = (0, 0);
    let mut ahead = list.clone();
    ahead.next();
    for ((frame, slot), spare) in list.zip(slots).zip(spares) {
        if LONG && let Some(next) = ahead.next() {
            next.prefetch_payload();
        }
        let (len, buf) = (frame.len() as u32, spare.load(Ordering::Relaxed));
        if len > buffers.size() {
            break;
        }
        if let Some(window) = window(buffers, buf) {
            frame.copy_to(window);
        }
        slot.store(SlotWord { buf, len: len as u16, flags: 1 << 8 });
        frames += 1;
        bytes += u64::from(len);
    }
    (frames, bytes)
}

/// The buffer in a client's slot, if its number is valid.
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

/// The position in a receive ring while a batch is copied.
struct Filled {
    at: u32,
    /// The next spare buffer.
    spare: u32,
    frames: u64,
    bytes: u64,
    too_long: u64,
}

const EMPTY: Filled = Filled { at: 0, spare: 0, frames: 0, bytes: 0, too_long: 0 };
