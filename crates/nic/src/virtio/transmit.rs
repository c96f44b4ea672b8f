//! A guest's transmit queue: frames it hands in.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use frame::{Offload, OffloadSet};
use port::{Effects, Ingress, IngressCounters, MAX_SEGS, Nanos, Scratch};
use shmem::{Bytes, GuestMemory, Shared, Span};

use super::interrupts::Interrupts;
use super::net::MAX_HEADER;
use super::packed::Packed;
use super::ring::{Chain, Direction, Parts, Pieces, Ring, Watch};
use super::split::Split;
use super::{Fault, Features, QueueConfig, QueueError, QueueState, net};
use crate::walk::Allowance;

/// The maximum number of chains read together.
const CHUNK: usize = 64;

/// A guest's transmit queue: frames that the guest hands in. The guest's buffers are lent as the
/// batch. Dropping the queue gives back buffers that were gathered and not completed.
#[derive(Debug)]
pub struct Transmit(Box<dyn Sending>);

/// A transmit queue over either kind of ring.
trait Sending: Ingress + std::fmt::Debug {
    fn has_work(&self) -> bool;
    fn arm(&mut self) -> bool;
    fn disarm(&mut self);
    fn is_awaited(&self) -> bool;
}

impl Transmit {
    /// Makes the queue, which resumes where its state says, and starts disarmed. Buffers that a
    /// predecessor took and did not give back are given back unsent, because their frames may have
    /// been delivered.
    ///
    /// # Errors
    /// [`QueueError`] when the queue does not lie in guest memory.
    pub fn new(config: QueueConfig, counters: Shared<IngressCounters>) -> Result<Self, QueueError> {
        let packed = config.features.contains(Features::RING_PACKED);
        let parts = Parts::new(config, Direction::FromGuest);
        Ok(Self(match packed {
            false => Box::new(TransmitQueue::<Split>::new(parts, counters)?),
            true => Box::new(TransmitQueue::<Packed>::new(parts, counters)?),
        }))
    }

    /// True if frames are available.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.0.has_work()
    }

    /// Asks the driver for a kick when it makes frames available. Returns true if there are frames
    /// already; then the queue is not armed.
    pub fn arm(&mut self) -> bool {
        self.0.arm()
    }

    /// Withdraws the request for a kick.
    pub fn disarm(&mut self) {
        self.0.disarm();
    }

    /// True if the driver, by its current setting, waits for an interrupt for frames that were
    /// given back. A driver that has looked at them since needs none.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.0.is_awaited()
    }
}

impl Ingress for Transmit {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        self.0.gather(scratch, max, now)
    }

    fn complete(&mut self, frames: usize) {
        self.0.complete(frames);
    }

    fn settle(&mut self, now: Nanos) -> Effects {
        self.0.settle(now)
    }
}

/// A transmit queue over a ring.
#[derive(Debug)]
struct TransmitQueue<R: Ring> {
    ring: R,
    interrupts: Interrupts,
    /// The position up to which the driver was notified, if it wanted to be.
    notified: Option<u16>,
    memory: Arc<GuestMemory>,
    watch: Watch,
    state: Shared<QueueState>,
    counters: Shared<IngressCounters>,
    /// Bytes of the header before each frame.
    header: u32,
    /// Offloads that the driver may request; if there are none, headers are not even read.
    offloads: OffloadSet,
    reads_headers: bool,
    /// True if lent chains are marked for the front end.
    marks: bool,
    /// Lent chains, by their running number.
    lent: Lent,
    gathered: usize,
    completed: usize,
    /// The pieces of the chain that is being read.
    pieces: Pieces,
}

impl<R: Ring> TransmitQueue<R> {
    fn new(parts: Parts, counters: Shared<IngressCounters>) -> Result<Self, QueueError> {
        let (memory, state) = (Arc::clone(&parts.memory), parts.state.clone());
        let (features, size) = (parts.features, usize::from(parts.layout.size));
        let interrupts = Interrupts::new(&parts)?;
        let marks = parts.inflight.is_some();
        let ring = R::new(parts)?;
        let until = state.taken.own() as u16;
        let mut queue = Self {
            ring,
            interrupts,
            notified: None,
            watch: Watch::default(),
            memory,
            state,
            counters,
            header: features.header_len(),
            offloads: features.host_offloads(),
            reads_headers: features.intersects(Features::HOST_OFFLOADS),
            marks,
            lent: Lent::new(size),
            gathered: 0,
            completed: 0,
            pieces: Pieces::new(size),
        };
        queue.ring.disarm();
        queue.give_back(until, size);
        Ok(queue)
    }

    /// Gives back the chains that a predecessor had taken, up to position `until`: at most `size`.
    fn give_back(&mut self, until: u16, size: usize) {
        for _ in 0..size {
            if self.state.fault().is_some() || !self.ring.is_before(until) {
                break;
            }
            let Some(chain) = self.ring.pass_chain() else { break };
            self.ring.put(std::iter::once((chain, 0)));
        }
        self.ring.publish();
        self.state.taken.publish(u32::from(self.ring.taken()));
    }

    /// Marks the newest `chains` as in flight.
    #[cold]
    fn mark_lent(&mut self, chains: usize) {
        let mut from = self.gathered.saturating_sub(chains);
        while from < self.gathered {
            let run = self.lent.run(from);
            let run = &run[..run.len().min(self.gathered - from)];
            self.ring.mark(run);
            from += run.len();
        }
    }

    #[cold]
    fn fail(&mut self, fault: Fault) {
        self.state.fail(fault);
        self.counters.faults.add(1);
    }

    /// Gathers available frames, within a turn's limits. On a fault, the frames before it are kept.
    #[inline]
    fn collect(&mut self, scratch: &mut Scratch, max: usize) -> Result<(), Fault> {
        let max = max.min(scratch.capacity());
        let mut allowance = Allowance::new();
        while scratch.len() < max && scratch.has_room() && !allowance.is_spent() {
            let before = scratch.len();
            self.collect_singles(scratch, max)?;
            if scratch.len() == before && !self.collect_chain(scratch, &mut allowance)? {
                break;
            }
        }
        Ok(())
    }

    /// Gathers frames that lie in one buffer each, header included. Stops at any other frame, and
    /// at the ring's end.
    #[inline(always)]
    fn collect_singles(&mut self, scratch: &mut Scratch, max: usize) -> Result<(), Fault> {
        if self.reads_headers {
            return self.collect_requests(scratch, max);
        }
        let header = self.header as usize;
        let mut near = self.memory.near();
        let singles = self.ring.singles(max - scratch.len())?;
        let lent = self.lent.run(self.gathered);
        let before = scratch.len();
        scratch.push_all(max, singles.zip(lent), |((piece, id), lent)| {
            let bytes = near.bytes(piece.at, piece.len).filter(|bytes| bytes.len() >= header)?;
            *lent = Chain { id, slots: 1 };
            Some(bytes.suffix(header))
        });
        self.take(scratch.len() - before);
        Ok(())
    }

    /// Like [`collect_singles`](Self::collect_singles), for headers that may hold requests.
    #[inline(always)]
    fn collect_requests(&mut self, scratch: &mut Scratch, max: usize) -> Result<(), Fault> {
        let header = self.header as usize;
        let mut found = [Bytes::empty(); CHUNK];
        let mut near = self.memory.near();
        let mut count = 0;
        let singles = self.ring.singles((max - scratch.len()).min(CHUNK))?;
        let lent = self.lent.run(self.gathered);
        for (((piece, id), lent), found) in singles.zip(lent).zip(&mut found) {
            let bytes = near.bytes(piece.at, piece.len).filter(|bytes| bytes.len() >= header);
            let Some(bytes) = bytes else { break };
            bytes.prefetch();
            *found = bytes;
            *lent = Chain { id, slots: 1 };
            count += 1;
        }
        let mut frames = &found[..count];
        let before = scratch.len();
        let mut bad = Ok(());
        while bad.is_ok() && !frames.is_empty() {
            let already = scratch.len();
            scratch.push_all(max, frames, |bytes| {
                let plain = bytes.read::<[u8; 2]>(0) == Some([0; 2]);
                plain.then(|| bytes.suffix(header))
            });
            frames = &frames[scratch.len() - already..];
            let Some((bytes, rest)) = frames.split_first() else { break };
            bad = net::request(*bytes, &self.offloads).map(|offload| {
                scratch.push(bytes.suffix(header).span());
                scratch.set_offload(offload);
                frames = rest;
            });
        }
        self.take(scratch.len() - before);
        bad
    }

    /// Takes the chains of the frames that were just added to a batch.
    fn take(&mut self, frames: usize) {
        self.ring.take(frames);
        self.gathered += frames;
    }

    /// Gathers one frame that lies in several buffers, or finds the fault. Returns false if there
    /// is none.
    fn collect_chain(
        &mut self,
        scratch: &mut Scratch,
        allowance: &mut Allowance,
    ) -> Result<bool, Fault> {
        self.pieces.clear();
        let (before, bytes) = (self.ring.taken(), scratch.bytes());
        let Some(chain) = self.ring.take_chain(&mut self.pieces)? else { return Ok(false) };
        let pushed = self.push_chain(scratch);
        let offload = pushed.inspect_err(|_| self.ring.rewind(before))?;
        if offload != Offload::NONE {
            scratch.set_offload(offload);
        }
        allowance.charge(self.pieces.read(), (scratch.bytes() - bytes) as usize);
        self.lent.run(self.gathered)[0] = chain;
        self.gathered += 1;
        Ok(true)
    }

    /// Adds the frame in `pieces`, and returns its request.
    fn push_chain(&mut self, scratch: &mut Scratch) -> Result<Offload, Fault> {
        let mut header = [0; MAX_HEADER];
        let mut frame = Segments::default();
        let whole = self.read_pieces(scratch, &mut header, &mut frame);
        let offload = whole.and_then(|()| match self.reads_headers && header[..2] != [0; 2] {
            true => net::request(Bytes::of(&mut header), &self.offloads),
            false => Ok(Offload::NONE),
        });
        let offload = offload.inspect_err(|_| scratch.abandon_segments(frame.count))?;
        if frame.count > 0 && !frame.overflow {
            scratch.end_frame(frame.count, frame.len);
            return Ok(offload);
        }
        // An empty frame, or one in more pieces than a frame may have: it gets no bytes, so that it
        // counts as a runt.
        scratch.abandon_segments(frame.count);
        scratch.push_segment(Span::EMPTY);
        scratch.end_frame(1, 0);
        Ok(Offload::NONE)
    }

    /// Copies the header out of `pieces` and adds the rest as segments.
    fn read_pieces(
        &mut self,
        scratch: &mut Scratch,
        header: &mut [u8; MAX_HEADER],
        frame: &mut Segments,
    ) -> Result<(), Fault> {
        let header = &mut header[..self.header as usize];
        let mut near = self.memory.near();
        let mut got = 0;
        for piece in self.pieces.iter() {
            // The frame is invalid already, so the rest does not matter.
            if frame.overflow {
                break;
            }
            let visit = |bytes: Bytes<'_>| {
                let taken = bytes.copy_out(&mut header[got..]);
                got += taken;
                frame.add(scratch, bytes.suffix(taken));
            };
            if !near.for_each(piece.at, piece.len, visit) {
                return Err(Fault::BadAddress);
            }
        }
        if got == header.len() { Ok(()) } else { Err(Fault::BadLength) }
    }
}

impl<R: Ring> Sending for TransmitQueue<R> {
    fn has_work(&self) -> bool {
        self.state.fault().is_none() && self.ring.has_work()
    }

    fn arm(&mut self) -> bool {
        if self.state.fault().is_some() {
            return false;
        }
        // The queue may be idle because the page with its index is gone.
        if let Err(fault) = self.watch.check(&self.memory) {
            self.fail(fault);
            return false;
        }
        self.ring.arm();
        fence(Ordering::SeqCst);
        let work = self.ring.has_work();
        if work {
            self.ring.disarm();
        }
        work
    }

    fn disarm(&mut self) {
        self.ring.disarm();
    }

    fn is_awaited(&self) -> bool {
        let done = self.state.done.own() as u16;
        self.interrupts.awaited(done)
    }
}

impl<R: Ring> Ingress for TransmitQueue<R> {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, _now: Nanos) -> usize {
        if !self.has_work() {
            return 0;
        }
        let collected = self.watch.check(&self.memory).and_then(|()| self.collect(scratch, max));
        if let Err(fault) = collected {
            self.fail(fault);
        }
        if self.marks {
            self.mark_lent(scratch.len());
        }
        self.counters.frames.add(scratch.len() as u64);
        self.counters.bytes.add(scratch.bytes());
        self.state.taken.publish(u32::from(self.ring.taken()));
        scratch.len()
    }

    fn complete(&mut self, frames: usize) {
        let until = self.completed + frames;
        while self.completed < until {
            let run = self.lent.run(self.completed);
            let run = &run[..run.len().min(until - self.completed)];
            self.ring.put(run.iter().map(|chain| (*chain, 0)));
            self.completed += run.len();
        }
        self.ring.publish();
    }

    fn settle(&mut self, _now: Nanos) -> Effects {
        let done = self.state.done.own() as u16;
        let kick = self.notified.is_none_or(|last| self.interrupts.wanted(last, done));
        self.notified = Some(done);
        self.counters.kicks.add(u64::from(kick));
        Effects { kick }
    }
}

impl<R: Ring> Drop for TransmitQueue<R> {
    fn drop(&mut self) {
        if self.state.fault().is_none() {
            self.complete(self.gathered - self.completed);
        }
    }
}

/// The segments added for a frame.
#[derive(Debug, Default)]
struct Segments {
    count: usize,
    len: usize,
    overflow: bool,
}

impl Segments {
    fn add(&mut self, scratch: &mut Scratch, bytes: Bytes<'_>) {
        if bytes.is_empty() {
            return;
        }
        self.overflow |= self.count == MAX_SEGS;
        if !self.overflow {
            scratch.push_segment(bytes.span());
            self.count += 1;
            self.len += bytes.len();
        }
    }
}

/// Lent chains, by their running number.
#[derive(Debug)]
struct Lent(Box<[Chain]>);

impl Lent {
    /// Makes room for at least `size` lent chains.
    fn new(size: usize) -> Self {
        Self(vec![Chain::default(); size.next_power_of_two()].into())
    }

    /// The slots of chain `number` and later ones, up to the wrap-around.
    #[inline(always)]
    fn run(&mut self, number: usize) -> &mut [Chain] {
        let at = number & (self.0.len() - 1);
        &mut self.0[at..]
    }
}
