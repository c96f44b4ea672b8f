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
    let pool = Pool::new(map, geometry.buf_offset() as usize, geometry.buf_size, geometry.buf_num)
        .ok_or_else(missing)?;
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
        self.senders.iter_mut().for_each(SendRing::start_anew);
        self.receivers.iter().for_each(|queue| queue.lock().start_anew());
        for control in self.controls().chain(self.receivers.iter().map(|queue| &*queue.control)) {
            control.core_flags.0.fault.store(0, Ordering::Relaxed);
        }
        self.fault.store(0, Ordering::Relaxed);
        let wanted = control.owner_flags.0.reset_wanted.load(Ordering::Acquire);
        control.core_flags.0.reset_done.store(wanted, Ordering::Release);
        if let Some(token) = &self.token {
            crate::kick(token.as_fd());
        }
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
        let slots = self.slots();
        let mut at = self.taken;
        while at != head && scratch.len() < max && scratch.has_room() {
            let word = self.slots[at as usize].load();
            let bytes = check(&self.pool, word)?;
            at = next(at, slots);
            if word.flags & slot_flags::MOREFRAG == 0 {
                scratch.push(bytes.span());
                if !self.sizes.is_empty() {
                    self.sizes.push(1);
                }
            } else {
                let before = scratch.len();
                self.sizes.resize(before, 1);
                scratch.push_segment(bytes.span());
                let (count, len) = self.collect_rest(scratch, &mut at, head, bytes.len())?;
                scratch.end_frame(usize::from(count), len);
                self.sizes.push(count);
            }
            self.taken = at;
        }
        Ok(())
    }

    /// Gathers the other slots of a frame; one that is not finished at `head` ends there.
    #[cold]
    fn collect_rest(
        &self,
        scratch: &mut Scratch,
        at: &mut u32,
        head: u32,
        first: usize,
    ) -> Result<(u8, usize), Fault> {
        let (mut count, mut len) = (1, first);
        while *at != head {
            let word = self.slots[*at as usize].load();
            let checked = check(&self.pool, word);
            let bytes = match checked {
                Ok(bytes) if count < MAX_FRAGS => bytes,
                _ => {
                    scratch.abandon_segments(count);
                    return Err(checked.err().unwrap_or(Fault::EndlessFrame));
                }
            };
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

/// The bytes of a slot, if it names any.
#[inline(always)]
fn check(pool: &Pool, word: SlotWord) -> Result<shmem::Bytes<'_>, Fault> {
    match pool.get(word.buf, u32::from(word.len)) {
        Some(bytes) if word.buf >= RESERVED_BUFFERS && word.flags & slot_flags::INDIRECT == 0 => {
            Ok(bytes)
        }
        _ if word.buf < RESERVED_BUFFERS || word.buf >= pool.count() => Err(Fault::BadBuffer),
        None => Err(Fault::BadLength),
        Some(_) => Err(Fault::Indirect),
    }
}

impl Ingress for SendRing {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, _now: Nanos) -> usize {
        if self.control.owner.0.observe() == self.taken || self.fault.load(Ordering::Relaxed) != 0 {
            return 0;
        }
        self.sizes.clear();
        self.completed = 0;
        let collected = self.head().and_then(|head| self.collect(scratch, max, head));
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
        let mut filling = Filling {
            at: self.published,
            spare: self.slot_count() - self.out(),
            frames: 0,
            bytes: 0,
            too_long: 0,
        };
        let mut finished = 0;
        for i in list {
            if !self.fill(&mut filling, batch, *i, limits.max_frame) {
                break;
            }
            finished += 1;
        }
        self.publish(&filling);
        if finished < list.len() && !limits.lossless {
            self.state.counters.drop_frames(DropReason::Full, (list.len() - finished) as u64);
            finished = list.len();
        }
        finished
    }

    /// Copies frame `i` into spare buffers; false if there are not enough.
    #[inline(always)]
    fn fill(&self, to: &mut Filling, batch: &Batch<'_>, i: FrameIdx, max_frame: u32) -> bool {
        let len = batch.frame(i).len() as u32;
        if len > max_frame {
            to.too_long += 1;
            return true;
        }
        if len > self.usable {
            return self.fill_several(to, batch, i, len);
        }
        // One spare belongs to the slot that stays empty.
        if to.spare <= 1 {
            return false;
        }
        let buf = self.take_spare(to);
        if let Some(bytes) = self.pool.get(buf, len) {
            batch.copy_frame(i, bytes);
        }
        self.slots[to.at as usize].store(SlotWord { buf, len: len as u16, flags: 1 << 8 });
        to.at = next(to.at, self.slot_count());
        to.frames += 1;
        to.bytes += u64::from(len);
        true
    }

    /// Spreads a frame over several slots; each carries their number in its flags.
    #[cold]
    fn fill_several(&self, to: &mut Filling, batch: &Batch<'_>, i: FrameIdx, len: u32) -> bool {
        let count = len.div_ceil(self.usable);
        if to.spare <= count {
            return false;
        }
        let mut from = 0;
        while from < len {
            let buf = self.take_spare(to);
            let piece = self.usable.min(len - from);
            if let Some(bytes) = self.pool.get(buf, piece) {
                batch.copy_range(i, from as usize, bytes);
            }
            from += piece;
            let more = if from < len { slot_flags::MOREFRAG } else { 0 };
            let flags = (count as u16) << 8 | more;
            self.slots[to.at as usize].store(SlotWord { buf, len: piece as u16, flags });
            to.at = next(to.at, self.slot_count());
        }
        to.frames += 1;
        to.bytes += u64::from(len);
        true
    }

    #[inline(always)]
    fn take_spare(&self, to: &mut Filling) -> u32 {
        to.spare -= 1;
        self.spares[to.spare as usize].load(Ordering::Relaxed)
    }

    /// Hands the filled slots out: one publish.
    #[inline(always)]
    fn publish(&mut self, filled: &Filling) {
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
        let mut spare = slots - self.out();
        let mut at = self.released;
        while at != head {
            let buf = self.slots[at as usize].load().buf;
            if buf < RESERVED_BUFFERS || buf >= self.pool.count() {
                return Err(Fault::BadBuffer);
            }
            self.spares[spare as usize].store(buf, Ordering::Relaxed);
            spare += 1;
            at = next(at, slots);
        }
        self.released = head;
        self.state.released.publish(head);
        Ok(())
    }

    /// Reads which buffers the client has put into the ring.
    #[cold]
    fn prime(&mut self) -> Result<(), Fault> {
        for (slot, spare) in self.slots.iter().rev().zip(self.spares.iter()) {
            let buf = slot.load().buf;
            if buf < RESERVED_BUFFERS || buf >= self.pool.count() {
                return Err(Fault::BadBuffer);
            }
            spare.store(buf, Ordering::Relaxed);
        }
        self.primed = true;
        self.state.primed.store(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A receive ring's position while a batch is filled in.
struct Filling {
    at: u32,
    spare: u32,
    frames: u64,
    bytes: u64,
    too_long: u64,
}
