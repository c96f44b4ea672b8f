//! A guest's receive queue: frames are delivered to it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use frame::{Offload, OffloadSet};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos, Picked,
    Software,
};
use shmem::{Bytes, DirtyLog, GuestMemory, Shared};

use super::interrupts::Interrupts;
use super::packed::Packed;
use super::ring::{Chain, Direction, MAX_CHAIN, Parts, Pieces, Ring, Watch};
use super::split::Split;
use super::{Fault, Features, QueueConfig, QueueError, QueueState, net};
use crate::walk::Allowance;

/// The maximum number of buffers read together.
const CHUNK: usize = 64;
/// A value that is no position, because those have 16 bits.
const NEVER: u32 = u32::MAX;

/// A guest's receive queue: frames are delivered to it. All workers share it.
#[derive(Debug)]
pub struct Receive(Box<dyn Receiving>);

/// A receive queue over either kind of ring.
trait Receiving: Egress + std::fmt::Debug {}

impl Receive {
    /// Makes the queue, which resumes where its state says.
    ///
    /// # Errors
    /// [`QueueError`] when the queue does not lie in guest memory.
    pub fn new(config: QueueConfig, counters: Shared<EgressCounters>) -> Result<Self, QueueError> {
        let packed = config.features.contains(Features::RING_PACKED);
        let parts = Parts::new(config, Direction::ToGuest);
        Ok(Self(match packed {
            false => Box::new(ReceiveQueue::<Split>::new(parts, counters)?),
            true => Box::new(ReceiveQueue::<Packed>::new(parts, counters)?),
        }))
    }
}

impl Egress for Receive {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        self.0.deliver(batch, list, limits)
    }

    fn settle(&self, now: Nanos) -> Effects {
        self.0.settle(now)
    }

    fn takes(&self) -> OffloadSet {
        self.0.takes()
    }

    fn count_software(&self, done: Software) {
        self.0.count_software(done);
    }

    fn prefetch(&self) {
        self.0.prefetch();
    }
}

/// A receive queue over a ring.
#[derive(Debug)]
struct ReceiveQueue<R> {
    filling: Mutex<Filling<R>>,
    interrupts: Interrupts,
    /// The position up to which the driver was notified where that was needed, or [`NEVER`].
    ///
    /// # Protocol: `notified` (receive queues)
    /// - Writer: the worker that settles
    /// - Reader: the same
    /// - Ordering: relaxed: two workers that settle at the same time may cause a spurious interrupt
    /// - Without it: a spurious interrupt
    /// - Shown by: `nic` tests `events`
    notified: AtomicU32,
    state: Shared<QueueState>,
    counters: Shared<EgressCounters>,
    offloads: OffloadSet,
}

/// The state that the lock protects.
#[derive(Debug)]
struct Filling<R> {
    ring: R,
    memory: Arc<GuestMemory>,
    watch: Watch,
    dirty: Option<Arc<DirtyLog>>,
    /// Bytes of the header before each frame.
    header: u32,
    /// Requests that the driver accepts.
    offloads: OffloadSet,
    /// True if a frame may spread over several chains.
    mergeable: bool,
    /// The pieces of the chains for a frame, and those chains with their byte counts.
    pieces: Pieces,
    chains: Vec<(Chain, u32)>,
    /// The frame for which the last search found no room. This stays valid while no buffer has been
    /// taken.
    stuck: Option<Stuck>,
}

/// A frame that found no room. The queue does not read the same chains again for a similar frame.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    /// The frame's length in bytes, header included.
    need: usize,
    room: Room,
    /// The end of the chains that the frame could have used.
    end: u16,
}

/// Counts for a list of frames.
#[derive(Debug, Default)]
struct Delivery {
    frames: u64,
    bytes: u64,
    too_long: u64,
}

impl<R: Ring> ReceiveQueue<R> {
    fn new(parts: Parts, counters: Shared<EgressCounters>) -> Result<Self, QueueError> {
        let (features, size) = (parts.features, usize::from(parts.layout.size));
        let (memory, dirty) = (Arc::clone(&parts.memory), parts.dirty.clone());
        let state = parts.state.clone();
        let interrupts = Interrupts::new(&parts)?;
        let ring = R::new(parts)?;
        // Frames without a buffer are dropped, so the queue needs no kicks.
        ring.disarm();
        let offloads = features.guest_offloads();
        let filling = Filling {
            ring,
            memory,
            watch: Watch::default(),
            dirty,
            header: features.header_len(),
            offloads,
            mergeable: features.contains(Features::MRG_RXBUF),
            pieces: Pieces::new(size),
            chains: Vec::with_capacity(size.min(MAX_CHAIN.into())),
            stuck: None,
        };
        let notified = AtomicU32::new(NEVER);
        Ok(Self { filling: Mutex::new(filling), interrupts, notified, state, counters, offloads })
    }

    fn lock(&self) -> MutexGuard<'_, Filling<R>> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers to a running queue. Returns how many frames are finished.
    fn deliver_locked(
        &self,
        filling: &mut Filling<R>,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
    ) -> usize {
        let counters = &self.counters;
        let down = |frames: &[FrameIdx]| {
            counters.drop_frames(DropReason::Down, frames.len() as u64);
            list.len()
        };
        if self.state.fault().is_some() {
            return down(list);
        }
        let mut tally = Delivery::default();
        let (left, fault) = filling.fill(batch, list, limits, &mut tally);
        filling.ring.publish();
        counters.frames.add(tally.frames);
        counters.bytes.add(tally.bytes);
        if tally.too_long > 0 {
            counters.drop_frames(DropReason::TooLong, tally.too_long);
        }
        if let Some(fault) = fault {
            self.state.fail(fault);
            counters.faults.add(1);
            return down(left);
        }
        if !left.is_empty() && !limits.lossless {
            counters.drop_frames(DropReason::Full, left.len() as u64);
            return list.len();
        }
        list.len() - left.len()
    }
}

impl<R: Ring> Filling<R> {
    /// Delivers `list` as far as there are buffers. Returns the rest, and the queue's fault if it
    /// has one.
    #[inline]
    fn fill<'l>(
        &mut self,
        batch: &Batch<'_>,
        list: &'l [FrameIdx],
        limits: Limits,
        tally: &mut Delivery,
    ) -> (&'l [FrameIdx], Option<Fault>) {
        let mut left = list;
        if let Err(fault) = self.watch.check(&self.memory) {
            return (left, Some(fault));
        }
        let mut allowance = Allowance::new();
        while !left.is_empty() && !allowance.is_spent() {
            let now = &left[..left.len().min(CHUNK)];
            let filled = match batch.consecutive(now) {
                Some(frames) => self.fill_singles(batch, now, frames, limits, tally),
                None => {
                    let frames = now.iter().map(|i| batch.pick(*i));
                    self.fill_singles(batch, now, frames, limits, tally)
                }
            };
            let finished = match filled {
                Ok(0) => self
                    .fill_special(batch, left[0], limits, tally, &mut allowance)
                    .map(usize::from),
                filled => filled,
            };
            match finished {
                Ok(0) => break,
                Ok(finished) => left = &left[finished..],
                Err(fault) => return (left, Some(fault)),
            }
        }
        (left, None)
    }

    /// Copies frames into one buffer each, up to a frame or buffer that needs more. Returns how
    /// many.
    #[inline(always)]
    fn fill_singles<'b>(
        &mut self,
        batch: &'b Batch<'_>,
        list: &[FrameIdx],
        frames: impl ExactSizeIterator<Item = Picked<'b>> + Clone,
        limits: Limits,
        tally: &mut Delivery,
    ) -> Result<usize, Fault> {
        // While pages are logged, all frames take the slow path.
        if self.dirty.is_some() {
            return Ok(0);
        }
        let header = self.header as usize;
        let mut found = [Found::default(); CHUNK];
        let count = find(&mut self.ring, &self.memory, list.len(), &mut found)?;
        let (plain, most) = (!batch.any_offload(), limits.max_frame as usize);
        let mut ahead = frames.clone();
        ahead.next();
        let (mut filled, mut total) = (0, 0);
        let mut written = [0; CHUNK];
        for ((frame, room), written) in frames.zip(&found[..count]).zip(&mut written) {
            if batch.is_long()
                && let (Some(next), Some(to)) = (ahead.next(), found.get(filled + 1))
            {
                next.prefetch_payload();
                // Prefetches no further than the buffer: what follows it is not the queue's.
                let lines = (128..to.bytes.len().min(header + next.len())).step_by(64);
                lines.for_each(|line| to.bytes.prefetch_to_write(line));
            }
            let (len, bytes) = (frame.len(), room.bytes);
            if header + len > bytes.len() || plain && len > most {
                break;
            }
            if plain {
                net::write_plain(bytes, header);
            } else if !self.write_header(batch, list[filled], bytes, most) {
                break;
            }
            frame.copy_to(bytes.suffix(header));
            *written = (header + len) as u32;
            filled += 1;
            total += len;
        }
        let used = found[..filled].iter().zip(written);
        self.ring.put(used.map(|(found, written)| (Chain { id: found.id, slots: 1 }, written)));
        self.take(filled);
        tally.frames += filled as u64;
        tally.bytes += total as u64;
        Ok(filled)
    }

    /// Writes the header of frame `i` of a batch with offload requests. Returns false if the frame
    /// becomes frames of more than `most` bytes.
    #[inline(never)]
    fn write_header(&self, batch: &Batch<'_>, i: FrameIdx, to: Bytes<'_>, most: usize) -> bool {
        let header = net::header(&batch.offload(i), &self.offloads, 1);
        to.copy_in(&header[..self.header as usize]);
        batch.wire_len(i) <= most
    }

    /// Drops frame `i` if it cannot be delivered, or spreads it over several buffers. Returns false
    /// if there is no room.
    fn fill_special(
        &mut self,
        batch: &Batch<'_>,
        i: FrameIdx,
        limits: Limits,
        tally: &mut Delivery,
        allowance: &mut Allowance,
    ) -> Result<bool, Fault> {
        let (frame, offload) = (batch.pick(i), batch.offload(i));
        let len = frame.len();
        if batch.wire_len(i) > limits.max_frame as usize {
            tally.too_long += 1;
            return Ok(true);
        }
        match self.find_room(self.header as usize + len, allowance)? {
            Room::Enough => {
                self.write(frame, &offload)?;
                tally.frames += 1;
                tally.bytes += len as u64;
                Ok(true)
            }
            Room::TooShort => {
                tally.too_long += 1;
                Ok(true)
            }
            Room::None => Ok(false),
        }
    }

    /// Takes chains for a frame of `need` bytes, or says why there are none and takes none.
    fn find_room(&mut self, need: usize, allowance: &mut Allowance) -> Result<Room, Fault> {
        if let Some(Stuck { need: least, room, end }) = self.stuck
            && need >= least
            && (room == Room::TooShort || self.ring.ends_at(end))
        {
            return Ok(room);
        }
        let before = self.ring.taken();
        let room = self.take_room(need);
        if room == Ok(Room::Enough) {
            self.stuck = None;
            allowance.charge(self.pieces.read(), need);
            return room;
        }
        let end = self.ring.taken();
        self.ring.rewind(before);
        self.stuck = room.ok().map(|room| Stuck { need, room, end });
        allowance.charge(self.pieces.read(), 0);
        room
    }

    /// Takes the first `count` chains of one buffer.
    #[inline(always)]
    fn take(&mut self, count: usize) {
        self.ring.take(count);
        if count > 0 {
            self.stuck = None;
        }
    }

    /// Takes chains for a frame of `need` bytes, header included.
    fn take_room(&mut self, need: usize) -> Result<Room, Fault> {
        self.pieces.clear();
        self.chains.clear();
        let mut left = need;
        loop {
            let from = self.pieces.len();
            let Some(chain) = self.ring.take_chain(&mut self.pieces)? else {
                return Ok(Room::None);
            };
            let room: usize = self.pieces[from..].iter().map(|piece| piece.len as usize).sum();
            if self.chains.is_empty() && room < self.header as usize {
                return Err(Fault::BadLength);
            }
            let used = room.min(left);
            self.chains.push((chain, used as u32));
            left -= used;
            if left == 0 {
                return Ok(Room::Enough);
            }
            // A frame in more pieces than a chain may have is too long, as in the kernel's vhost.
            let many = self.pieces.read() >= MAX_CHAIN.into();
            if !self.mergeable || room == 0 || many {
                return Ok(Room::TooShort);
            }
        }
    }

    /// Writes a frame into `pieces` and puts the chains as used.
    fn write(&mut self, frame: Picked<'_>, offload: &Offload) -> Result<(), Fault> {
        let header = net::header(offload, &self.offloads, self.chains.len() as u16);
        let header = &header[..self.header as usize];
        let mut near = self.memory.near();
        // The offset of the next byte, in header and frame together.
        let (mut at, end) = (0, header.len() + frame.len());
        for piece in self.pieces.iter() {
            if at == end {
                break;
            }
            let len = (piece.len as usize).min(end - at) as u32;
            let visit = |bytes: Bytes<'_>| {
                let rest = header.get(at..).unwrap_or_default();
                let copied = bytes.copy_in(rest);
                at += copied;
                let bytes = bytes.suffix(copied);
                if !bytes.is_empty() {
                    at += frame.copy_range(at - header.len(), bytes);
                }
            };
            if !near.for_each(piece.at, len, visit) {
                return Err(Fault::BadAddress);
            }
            if let Some(dirty) = &self.dirty {
                dirty.mark(piece.at, u64::from(len));
            }
        }
        self.ring.put(self.chains.iter().copied());
        Ok(())
    }
}

/// A buffer for one frame.
#[derive(Clone, Copy)]
struct Found<'m> {
    bytes: Bytes<'m>,
    id: u16,
}

impl Default for Found<'_> {
    fn default() -> Self {
        Self { bytes: Bytes::empty(), id: 0 }
    }
}

/// Finds the next buffers, at most `most`, and prefetches them. Stops at a chain of several
/// buffers.
#[inline(always)]
fn find<'m, R: Ring>(
    ring: &mut R,
    memory: &'m GuestMemory,
    most: usize,
    found: &mut [Found<'m>; CHUNK],
) -> Result<usize, Fault> {
    let mut near = memory.near();
    let mut count = 0;
    for ((piece, id), found) in ring.singles(most)?.zip(found) {
        let Some(bytes) = near.bytes(piece.at, piece.len) else { break };
        bytes.prefetch_to_write(0);
        bytes.prefetch_to_write(64);
        *found = Found { bytes, id };
        count += 1;
    }
    Ok(count)
}

/// Whether a frame finds room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    /// The driver has no more buffers.
    None,
    /// The next buffer is too short for the frame.
    TooShort,
}

impl<R: Ring> Receiving for ReceiveQueue<R> {}

impl<R: Ring> Egress for ReceiveQueue<R> {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        Delivered { finished: self.deliver_locked(&mut self.lock(), batch, list, limits) }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        let (last, done) = (self.notified.load(Ordering::Relaxed), self.state.done.own());
        let kick = last == NEVER || self.interrupts.wanted(last as u16, done as u16);
        if last != done {
            self.notified.store(done, Ordering::Relaxed);
        }
        if kick {
            self.counters.kicks.add_shared(1);
        }
        Effects { kick }
    }

    fn takes(&self) -> OffloadSet {
        self.offloads
    }

    fn count_software(&self, done: Software) {
        self.counters.add_software(done);
    }

    fn prefetch(&self) {
        shmem::prefetch_all(self);
        shmem::prefetch(std::ptr::from_ref(&*self.state).cast());
        shmem::prefetch(std::ptr::from_ref(&*self.counters).cast());
    }
}
