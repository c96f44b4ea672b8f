//! A client's rings, seen from the switch.
//!
//! ```text
//!   send ring:     done .... taken ........ head            receive ring:  released ... published ... (room)
//!                  | lent to the switch | to be gathered |                 | the client's       | spare buffers
//! ```
//!
//! Everything in the region is the client's to scribble on. A head or a slot is read once and the
//! snapshot checked; what we believe are our own cursors, in the state memory that no client sees. A
//! client that breaks the rules finds its port in the error state, with a [`Fault`] in its control
//! block, until it asks for a reset; nobody else notices.
//!
//! Crash consistency: storing `taken` is what takes frames (before they are delivered, so none is
//! delivered twice); storing `published` is what delivers frames; storing `released` is what takes
//! buffers back. The number of spare buffers follows from the cursors and is not stored.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::ring::layout::{
    Control, Fault, MAX_FRAGS, RESERVED_BUFFERS, RingMemory, Slot, SlotWord, advance, distance,
    next, previous, slot_flags,
};
use port::{
    Batch, Counter, Delivered, DropReason, Effects, Egress, FrameIdx, Ingress, IngressCounters,
    Limits, Nanos, Scratch,
};
use shmem::{Mapping, Memfd, Pool, Shared, SharedSlice};

use super::{AttachError, Attached, Source};
use crate::config::RingAttach;
use crate::state::{PortState, ReceiveState, SendState};

/// Spare buffers are fetched back from the client when more than this many are out: few, so that the
/// same warm ones go round; not every time, so that the client's head is read once for many frames.
const RECLAIM_AT: u32 = 32;

/// Attaches a client's rings.
///
/// # Errors
/// [`AttachError`] when the region is not what the client said it was.
pub fn attach(
    memory: OwnedFd,
    token: OwnedFd,
    rings: &RingAttach,
    state: &PortState,
    resume: bool,
) -> Result<Attached, AttachError> {
    let memory = Memfd::adopt(memory)?;
    rings.geometry.check(memory.len())?;
    attach_mapped(&memory.map()?, Some(token), rings, state, resume)
}

/// Attaches rings that are mapped already: for switches in the client's own process, which need no
/// token.
///
/// # Errors
/// [`AttachError`] when the rings do not lie within the mapping.
pub fn attach_mapped(
    map: &Arc<Mapping>,
    token: Option<OwnedFd>,
    rings: &RingAttach,
    state: &PortState,
    resume: bool,
) -> Result<Attached, AttachError> {
    let geometry = &rings.geometry;
    geometry.check(map.len())?;
    rings.tx.check(geometry)?;
    rings.rx.check(geometry)?;
    let missing = || AttachError::Descriptors { expected: "a region of the size that was said" };
    let reserved = RESERVED_BUFFERS * geometry.buf_size;
    let at = geometry.buf_offset() as usize + reserved as usize;
    let buffers = geometry.buf_num - RESERVED_BUFFERS;
    let pool = Pool::new(map, at, geometry.buf_size, buffers).ok_or_else(missing)?;
    let fault = Arc::new(AtomicU32::new(0));
    let ring = |first: u32, i: u32, slots: u32| {
        RingMemory::of(map, geometry, first + i, slots).ok_or_else(missing)
    };
    let mut senders = Vec::new();
    for i in 0..rings.tx.rings {
        let memory = ring(rings.tx.first, i, rings.tx.slots)?;
        let state = (state.send(i as usize).zip(state.ingress())).ok_or_else(missing)?;
        senders.push(SendRing::new(memory, pool.clone(), state, Arc::clone(&fault), resume));
    }
    let mut receivers = Vec::new();
    for i in 0..rings.rx.rings {
        let memory = ring(rings.rx.first, i, rings.rx.slots)?;
        let spares = state.spares(i as usize).ok_or_else(missing)?;
        let state = state.receive(i as usize).ok_or_else(missing)?;
        let usable = rings.buf_usable.clamp(64, geometry.buf_size);
        let parts = ReceiveParts { memory, pool: pool.clone(), state, spares, usable };
        receivers.push(Arc::new(ReceiveQueue::new(parts, Arc::clone(&fault), resume)));
    }
    let egresses = receivers.iter().map(|q| Arc::clone(q) as Arc<dyn Egress>).collect();
    let token = token.map(Arc::new);
    let source = Box::new(RingPort { senders, receivers, token: token.clone(), fault });
    Ok(Attached { source, egresses, token })
}

/// A client's port: its send rings, and what its two directions share.
struct RingPort {
    senders: Vec<SendRing>,
    receivers: Vec<Arc<ReceiveQueue>>,
    token: Option<Arc<OwnedFd>>,
    /// The [`Fault`] that put the port into its error state, or 0.
    fault: Arc<AtomicU32>,
}

impl Source for RingPort {
    fn queues(&self) -> usize {
        self.senders.len()
    }

    fn queue(&mut self, queue: usize) -> &mut dyn Ingress {
        &mut self.senders[queue]
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.token.as_ref().map(|token| token.as_fd())
    }

    fn arm(&mut self) -> bool {
        if self.fault.load(Ordering::Relaxed) != 0 {
            self.reset_if_wanted();
        }
        self.senders.iter_mut().for_each(SendRing::check_memory);
        self.controls().for_each(|control| control.core_flags.0.wake.arm());
        let work = self.senders.iter().any(SendRing::has_work) || self.reset_is_wanted();
        if work {
            self.disarm();
        }
        work
    }

    fn disarm(&mut self) {
        self.senders.iter().for_each(|ring| ring.control.core_flags.0.wake.disarm());
        if let Some(token) = &self.token {
            // Bytes on a token mean nothing but "look".
            let mut bytes = [0u8; 64];
            let _ = rustix::net::recv(token, &mut bytes, rustix::net::RecvFlags::DONTWAIT);
        }
        if self.fault.load(Ordering::Relaxed) != 0 {
            self.reset_if_wanted();
        }
    }
}

impl RingPort {
    fn controls(&self) -> impl Iterator<Item = &Control> {
        self.senders.iter().map(|ring| &*ring.control)
    }

    /// The control block in which the client asks for a reset.
    fn reset_control(&self) -> Option<Shared<Control>> {
        let sender = self.senders.first().map(|ring| ring.control.clone());
        sender.or_else(|| self.receivers.first().map(|queue| queue.control.clone()))
    }

    fn reset_is_wanted(&self) -> bool {
        self.fault.load(Ordering::Relaxed) != 0
            && self.reset_control().is_some_and(|control| {
                let wanted = control.owner_flags.0.reset_wanted.load(Ordering::Acquire);
                wanted != control.core_flags.0.reset_done.load(Ordering::Relaxed)
            })
    }

    /// Takes the port out of its error state, all rings as new, if the client has asked for it.
    fn reset_if_wanted(&mut self) {
        let Some(control) = self.reset_control().filter(|_| self.reset_is_wanted()) else { return };
        // Memory that has failed stays failed: the client reads so again.
        if !control.mapping().has_failed() {
            self.start_anew();
        }
        let wanted = control.owner_flags.0.reset_wanted.load(Ordering::Acquire);
        control.core_flags.0.reset_done.store(wanted, Ordering::Release);
        if let Some(token) = &self.token {
            crate::kick(token.as_fd());
        }
    }

    fn start_anew(&mut self) {
        self.senders.iter_mut().for_each(SendRing::start_anew);
        self.receivers.iter().for_each(|queue| queue.lock().start_anew());
        for control in self.controls().chain(self.receivers.iter().map(|queue| &*queue.control)) {
            control.core_flags.0.fault.store(0, Ordering::Relaxed);
        }
        self.fault.store(0, Ordering::Relaxed);
    }
}

/// Notices when a region's memory has failed (see [`shmem::guard`]): one load as long as none has.
struct Watch {
    map: Arc<Mapping>,
    /// Faults in all memory when it was looked at last.
    seen: u64,
}

impl Watch {
    #[inline(always)]
    fn check(&mut self) -> Result<(), Fault> {
        let faults = shmem::guard::faults();
        if faults == self.seen {
            return Ok(());
        }
        self.seen = faults;
        if self.map.has_failed() { Err(Fault::Memory) } else { Ok(()) }
    }
}

/// A send ring: frames its owner hands in.
struct SendRing {
    slots: SharedSlice<Slot>,
    control: Shared<Control>,
    pool: Pool,
    state: Shared<SendState>,
    counters: Shared<IngressCounters>,
    fault: Arc<AtomicU32>,
    memory: Watch,
    /// First slot that was not gathered.
    taken: u32,
    /// First slot that was not given back.
    done: u32,
    /// Slots of each gathered frame that was not completed, oldest first, if any has several.
    sizes: Vec<u8>,
    /// Frames of the last gathering that were completed.
    completed: usize,
    /// The wake-up that was answered last.
    answered: u32,
}

impl SendRing {
    fn new(
        memory: RingMemory,
        pool: Pool,
        (state, counters): (Shared<SendState>, Shared<IngressCounters>),
        fault: Arc<AtomicU32>,
        resume: bool,
    ) -> Self {
        let slots = memory.slots.len() as u32;
        let taken = if resume { state.taken.own().min(slots - 1) } else { 0 };
        state.taken.publish(taken);
        // What was in flight when a predecessor died is lost, and goes back to the client.
        memory.control.core.0.publish(taken);
        Self {
            memory: Watch { map: Arc::clone(memory.control.mapping()), seen: 0 },
            slots: memory.slots,
            control: memory.control,
            pool,
            state,
            counters,
            fault,
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

    fn has_work(&self) -> bool {
        self.fault.load(Ordering::Relaxed) == 0 && self.control.owner.0.observe() != self.taken
    }

    /// An idle ring may be one whose head is not there any more.
    fn check_memory(&mut self) {
        if let Err(fault) = self.memory.check()
            && self.fault.load(Ordering::Relaxed) == 0
        {
            fail(&self.fault, fault, &self.control, &self.counters.faults);
        }
    }

    fn start_anew(&mut self) {
        (self.taken, self.done, self.completed) = (0, 0, 0);
        self.sizes.clear();
        self.state.taken.publish(0);
        self.control.core.0.publish(0);
    }

    /// The client's head, if it may stand there: from our position up to the slot before the oldest
    /// one we hold.
    #[inline(always)]
    fn head(&self) -> Result<u32, Fault> {
        let (head, slots) = (self.control.owner.0.observe(), self.slots());
        let end = previous(self.done, slots);
        let good =
            head < slots && distance(self.taken, head, slots) <= distance(self.taken, end, slots);
        if good { Ok(head) } else { Err(Fault::BadHead) }
    }

    /// Gathers frames up to `head`. On a fault, the frames before it stand.
    #[inline(always)]
    fn collect(&mut self, scratch: &mut Scratch, max: usize, head: u32) -> Result<(), Fault> {
        while self.taken != head && scratch.len() < max && scratch.has_room() {
            let before = scratch.len();
            self.collect_singles(scratch, max, head);
            if scratch.len() == before {
                self.collect_special(scratch, head)?;
            } else if !self.sizes.is_empty() {
                self.sizes.resize(scratch.len(), 1);
            }
        }
        Ok(())
    }

    /// Gathers frames of one slot each, as far as there are any without the ring's end between them.
    #[inline(always)]
    fn collect_singles(&mut self, scratch: &mut Scratch, max: usize, head: u32) {
        let end = if head >= self.taken { head } else { self.slots() };
        let mut left = self.slots[self.taken as usize..end as usize].iter();
        scratch.push_all(max, || {
            let word = left.as_slice().first()?.load();
            if word.flags & (slot_flags::MOREFRAG | slot_flags::INDIRECT) != 0 {
                return None;
            }
            let bytes = buffer(&self.pool, word)?;
            left.next();
            Some(bytes)
        });
        let at = end - left.len() as u32;
        self.taken = if at == self.slots() { 0 } else { at };
    }

    /// Gathers one frame of several slots, or finds the fault.
    #[cold]
    fn collect_special(&mut self, scratch: &mut Scratch, head: u32) -> Result<(), Fault> {
        let before = scratch.len();
        let mut at = self.taken;
        let (count, len) = self.collect_slots(scratch, &mut at, head)?;
        scratch.end_frame(usize::from(count), len);
        self.sizes.resize(before, 1);
        self.sizes.push(count);
        self.taken = at;
        Ok(())
    }

    /// Gathers the slots of a frame; one that is not finished at `head` ends there.
    fn collect_slots(
        &self,
        scratch: &mut Scratch,
        at: &mut u32,
        head: u32,
    ) -> Result<(u8, usize), Fault> {
        let (mut count, mut len) = (0, 0);
        while *at != head {
            let word = self.slots[*at as usize].load();
            let bytes = match check(&self.pool, word) {
                Ok(_) if count == MAX_FRAGS => Err(Fault::EndlessFrame),
                checked => checked,
            };
            let bytes = bytes.inspect_err(|_| scratch.abandon_segments(count))?;
            scratch.push_segment(bytes.span());
            *at = next(*at, self.slots());
            (count, len) = (count + 1, len + bytes.len());
            if word.flags & slot_flags::MOREFRAG == 0 {
                break;
            }
        }
        Ok((count as u8, len))
    }
}

/// The bytes of a slot; `pool` starts after the reserved buffers.
#[inline(always)]
fn buffer(pool: &Pool, word: SlotWord) -> Option<shmem::Bytes<'_>> {
    pool.get(word.buf.wrapping_sub(RESERVED_BUFFERS), u32::from(word.len))
}

/// The bytes of a slot, or what is wrong with it.
fn check(pool: &Pool, word: SlotWord) -> Result<shmem::Bytes<'_>, Fault> {
    if word.flags & slot_flags::INDIRECT != 0 {
        return Err(Fault::Indirect);
    }
    let known = buffer(pool, SlotWord { len: 0, ..word }).is_some();
    let fault = if known { Fault::BadLength } else { Fault::BadBuffer };
    buffer(pool, word).ok_or(fault)
}

impl Ingress for SendRing {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, _now: Nanos) -> usize {
        if self.control.owner.0.observe() == self.taken || self.fault.load(Ordering::Relaxed) != 0 {
            return 0;
        }
        self.sizes.clear();
        self.completed = 0;
        let head = self.memory.check().and_then(|()| self.head());
        let collected = head.and_then(|head| self.collect(scratch, max, head));
        if let Err(fault) = collected {
            fail(&self.fault, fault, &self.control, &self.counters.faults);
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
        Effects { kick, deadline: None }
    }
}

/// Puts a port into its error state.
#[cold]
fn fail(state: &AtomicU32, fault: Fault, control: &Control, count: &Counter) {
    state.store(fault as u32, Ordering::Relaxed);
    control.core_flags.0.fault.store(fault as u32, Ordering::Release);
    count.add(1);
}

/// A receive ring, as the egress that all workers share.
struct ReceiveQueue {
    ring: Mutex<ReceiveRing>,
    control: Shared<Control>,
    state: Shared<ReceiveState>,
    answered: AtomicU32,
}

struct ReceiveParts {
    memory: RingMemory,
    pool: Pool,
    state: Shared<ReceiveState>,
    spares: SharedSlice<AtomicU32>,
    usable: u32,
}

impl ReceiveQueue {
    fn new(parts: ReceiveParts, fault: Arc<AtomicU32>, resume: bool) -> Self {
        let (control, state) = (parts.memory.control.clone(), parts.state.clone());
        Self {
            ring: Mutex::new(ReceiveRing::new(parts, fault, resume)),
            control,
            state,
            answered: AtomicU32::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReceiveRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Egress for ReceiveQueue {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        Delivered { finished: self.lock().deliver(batch, list, limits) }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        let mut answered = self.answered.load(Ordering::Relaxed);
        let kick = self.control.owner_flags.0.wake.must_kick_fenced(&mut answered);
        if kick {
            self.answered.store(answered, Ordering::Relaxed);
            self.state.counters.kicks.add_shared(1);
        }
        Effects { kick, deadline: None }
    }

    fn prefetch(&self) {
        shmem::prefetch(std::ptr::from_ref(&self.ring).cast());
        shmem::prefetch(std::ptr::from_ref(&*self.state).cast());
    }
}

/// A receive ring: where frames are handed out to its owner.
struct ReceiveRing {
    slots: SharedSlice<Slot>,
    control: Shared<Control>,
    pool: Pool,
    state: Shared<ReceiveState>,
    /// Buffers not handed out, the one that came back last at the end; as many as the cursors say.
    spares: SharedSlice<AtomicU32>,
    fault: Arc<AtomicU32>,
    memory: Watch,
    /// Bytes of a buffer that are filled.
    usable: u32,
    /// First slot not yet filled.
    published: u32,
    /// First slot not yet taken back.
    released: u32,
    primed: bool,
}

impl ReceiveRing {
    fn new(parts: ReceiveParts, fault: Arc<AtomicU32>, resume: bool) -> Self {
        let ReceiveParts { memory, pool, state, spares, usable } = parts;
        let slots = memory.slots.len() as u32;
        let mut ring = Self {
            published: state.published.own().min(slots - 1),
            released: state.released.own().min(slots - 1),
            primed: state.primed.load(Ordering::Relaxed) == 1,
            memory: Watch { map: Arc::clone(memory.control.mapping()), seen: 0 },
            slots: memory.slots,
            control: memory.control,
            pool,
            state,
            spares,
            fault,
            usable,
        };
        if resume {
            // The predecessor may have died between delivering and saying so.
            ring.control.core.0.publish(ring.published);
        } else {
            ring.start_anew();
        }
        ring
    }

    fn start_anew(&mut self) {
        (self.published, self.released, self.primed) = (0, 0, false);
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
        distance(self.released, self.published, self.slot_count())
    }

    /// Slots that can be filled.
    #[inline(always)]
    fn room(&self) -> u32 {
        self.slot_count() - 1 - self.out()
    }

    #[inline(always)]
    fn deliver(&mut self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> usize {
        if let Err(fault) = self.make_room(list.len() as u32) {
            if self.fault.load(Ordering::Relaxed) == 0 {
                fail(&self.fault, fault, &self.control, &self.state.counters.faults);
            }
            self.state.counters.drop_frames(DropReason::Down, list.len() as u64);
            return list.len();
        }
        let most = limits.max_frame.min(self.usable);
        let mut filled =
            Filled { at: self.published, spare: self.slot_count() - self.out(), ..EMPTY };
        let mut left = list;
        while !left.is_empty() {
            let before = left.len();
            left = self.fill_singles(&mut filled, batch, left, most);
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

    /// Copies frames of at most `most` bytes into one spare buffer each, as far as there are any
    /// without the ring's end between them; returns the others.
    #[inline(always)]
    fn fill_singles<'l>(
        &self,
        to: &mut Filled,
        batch: &Batch<'_>,
        list: &'l [FrameIdx],
        most: u32,
    ) -> &'l [FrameIdx] {
        let slots = self.slots[to.at as usize..].iter();
        // The first spare belongs to the slot that stays empty.
        let spares = self.spares[1..to.spare as usize].iter().rev();
        let (mut frames, mut bytes) = (0, 0);
        for ((i, slot), spare) in list.iter().zip(slots).zip(spares) {
            let frame = batch.pick(*i);
            let (len, buf) = (frame.len() as u32, spare.load(Ordering::Relaxed));
            if len > most {
                break;
            }
            let word = SlotWord { buf, len: len as u16, flags: 1 << 8 };
            if let Some(bytes) = buffer(&self.pool, word) {
                frame.copy_to(bytes);
            }
            slot.store(word);
            frames += 1;
            bytes += u64::from(len);
        }
        to.spare -= frames;
        to.at = advance(to.at, frames, self.slot_count());
        to.frames += u64::from(frames);
        to.bytes += bytes;
        &list[frames as usize..]
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
        if len > max_frame {
            to.too_long += 1;
            return true;
        }
        let count = len.div_ceil(self.usable).max(1);
        if to.spare <= count {
            return false;
        }
        for number in 0..count {
            let from = number * self.usable;
            let piece = self.usable.min(len - from);
            to.spare -= 1;
            let buf = self.spares[to.spare as usize].load(Ordering::Relaxed);
            let more = if number + 1 < count { slot_flags::MOREFRAG } else { 0 };
            let word = SlotWord { buf, len: piece as u16, flags: (count as u16) << 8 | more };
            if let Some(bytes) = buffer(&self.pool, word) {
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
    fn publish(&mut self, filled: &Filled) {
        let counters = &self.state.counters;
        if filled.frames > 0 {
            counters.frames.add(filled.frames);
            counters.bytes.add(filled.bytes);
            self.published = filled.at;
            self.state.published.publish(filled.at);
            self.control.core.0.publish(filled.at);
        }
        if filled.too_long > 0 {
            counters.drop_frames(DropReason::TooLong, filled.too_long);
        }
    }

    /// Takes buffers back if few are left or many are out.
    #[inline(always)]
    fn make_room(&mut self, frames: u32) -> Result<(), Fault> {
        let fault = self.fault.load(Ordering::Relaxed);
        if fault != 0 {
            return Err(Fault::from_number(fault).unwrap_or(Fault::Memory));
        }
        self.memory.check()?;
        if !self.primed {
            self.prime()?;
        }
        if self.out() > RECLAIM_AT || self.room() < frames { self.reclaim() } else { Ok(()) }
    }

    /// Takes back the buffers of slots that the client has released.
    #[inline(always)]
    fn reclaim(&mut self) -> Result<(), Fault> {
        let (head, slots) = (self.control.owner.0.observe(), self.slot_count());
        if head >= slots || distance(self.released, head, slots) > self.out() {
            return Err(Fault::BadHead);
        }
        let mut spares = self.spares[(slots - self.out()) as usize..].iter();
        let (from, to, end) = (self.released as usize, head as usize, slots as usize);
        let runs = if from <= to { [from..to, 0..0] } else { [from..end, 0..to] };
        for run in runs {
            for (slot, spare) in self.slots[run].iter().zip(&mut spares) {
                spare.store(self.checked(slot)?, Ordering::Relaxed);
            }
        }
        self.released = head;
        self.state.released.publish(head);
        Ok(())
    }

    /// The buffer that the client left in a slot.
    #[inline(always)]
    fn checked(&self, slot: &Slot) -> Result<u32, Fault> {
        let word = slot.load();
        let known = buffer(&self.pool, SlotWord { len: 0, ..word }).is_some();
        if known { Ok(word.buf) } else { Err(Fault::BadBuffer) }
    }

    /// Reads which buffers the client has put into the ring.
    #[cold]
    fn prime(&mut self) -> Result<(), Fault> {
        for (slot, spare) in self.slots.iter().rev().zip(self.spares.iter()) {
            spare.store(self.checked(slot)?, Ordering::Relaxed);
        }
        self.primed = true;
        self.state.primed.store(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A receive ring's position while a batch is filled in.
struct Filled {
    at: u32,
    spare: u32,
    frames: u64,
    bytes: u64,
    too_long: u64,
}

const EMPTY: Filled = Filled { at: 0, spare: 0, frames: 0, bytes: 0, too_long: 0 };
