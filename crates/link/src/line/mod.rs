//! A link in operation: the frames in its queue and on their way.

use std::collections::VecDeque;

use frame::ETHERNET_HEADER;
use port::{DropReason, Nanos, Offload, OffloadSet, Picked, Scratch};

use crate::aqm::{Load, Queue};
use crate::clock::Clock;
use crate::fate::{Fate, Verdict};
use crate::meter::{Cause, Holding, SharedMeter};
use crate::store::{Fifo, Held};
use crate::{LinkConfig, Loss, Room, Tally};

/// One direction of one queue of a port, behind a link.
///
/// ```text
///   admit -> queue (discipline) -> line (rate) -> lost? changed? -> delay -> release
/// ```
///
/// It copies frames, so that their owner gets them back at once. It lends its copies out when they
/// are due. Everything happens in virtual time: however late it is called, frames leave the queue
/// when the line became free, and are due when they would have arrived.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    number: usize,
    room: Room,
    /// Bytes of memory for frames beyond the queue's size.
    beyond: usize,
    queue: Queue,
    load: Load,
    clock: Option<Clock>,
    fate: Fate,
    /// When the first frame came, from which series count.
    began: Option<Nanos>,
    /// When the queue last became busy.
    busy_since: Nanos,
    /// Frames on their way in order, and those that skip the delay.
    flight: Fifo,
    express: Fifo,
    /// Bytes of all frames behind the queue.
    flight_bytes: u64,
    /// When the latest frame in `flight` is due.
    latest: Nanos,
    /// Frames lent out and not yet completed, and those put back.
    lent: VecDeque<Held>,
    returned: VecDeque<Held>,
    meter: SharedMeter,
}

impl Link {
    /// A link for queue number `number` of a port. Each queue has its own random numbers.
    #[must_use]
    pub fn new(config: LinkConfig, number: usize, meter: SharedMeter) -> Self {
        let room = config.room();
        Self {
            number,
            queue: Queue::new(&config),
            load: Load::new(&config, number, room.memory() as usize),
            clock: Clock::new(&config),
            fate: Fate::new(config.seed, number),
            began: None,
            busy_since: Nanos(0),
            flight: Fifo::default(),
            express: Fifo::default(),
            flight_bytes: 0,
            latest: Nanos(0),
            lent: VecDeque::new(),
            returned: VecDeque::new(),
            meter,
            room,
            beyond: 0,
            config,
        }
    }

    /// The same, for a port that sends and waits for room: there is memory for what its last batch
    /// is beyond it.
    #[must_use]
    pub fn sending(config: LinkConfig, number: usize, meter: SharedMeter) -> Self {
        let mut link = Self::new(config, number, meter);
        link.beyond = LinkConfig::SENT_BEYOND as usize;
        link.load.store.limit(link.room.memory() as usize + link.beyond);
        link
    }

    /// The requests that frames on the link may have. One that does nothing keeps them. Others
    /// carry frames as on a wire.
    #[must_use]
    pub fn takes(&self) -> OffloadSet {
        if self.config.is_off() { OffloadSet::ALL } else { OffloadSet::NONE }
    }

    /// Frames that wait for room: those in the queue, or all if there is no rate.
    fn waiting(&self) -> (u64, u64) {
        match self.clock {
            Some(_) => (self.load.frames, self.load.bytes),
            None => (self.held() as u64, self.flight_bytes),
        }
    }

    /// All frames behind the queue.
    fn held(&self) -> usize {
        self.flight.len() + self.express.len() + self.lent.len() + self.returned.len()
    }

    /// How many frames of `len` bytes fit now.
    #[must_use]
    pub fn room(&self, len: usize) -> usize {
        let (frames, bytes) = self.waiting();
        let by_frames = self.room.frames.saturating_sub(frames);
        let by_bytes = self.room.bytes.saturating_sub(bytes) / len.max(1) as u64;
        // A frame longer than the queue passes if there is no other.
        let room = by_frames.min(by_bytes).max(u64::from(frames == 0));
        if self.load.store.fits(len) { usize::try_from(room).unwrap_or(usize::MAX) } else { 0 }
    }

    /// The same, after the line has carried what it can until `now`.
    #[must_use]
    pub fn room_at(&mut self, len: usize, now: Nanos) -> usize {
        self.serve(now);
        self.room(len)
    }

    /// True if the link holds no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.load.frames == 0 && self.held() == 0
    }

    /// True if the link neither changes frames nor holds any.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.config.is_off() && self.is_empty()
    }

    /// When the link next has something to do: a frame is due, or the line is free for the next.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        if !self.returned.is_empty() {
            return Some(Nanos(0));
        }
        let front = |fifo: &Fifo| fifo.front().map(|held| held.at);
        let line = self.clock.as_ref().filter(|_| self.load.frames > 0).map(Clock::free_at);
        front(&self.flight).into_iter().chain(front(&self.express)).chain(line).min()
    }

    /// Puts a frame into the queue, with `beside` it: its request, and the host behind its port
    /// that sent it. Frames beyond the queue's size are dropped and counted. Returns the reason, if
    /// this frame is dropped at once.
    #[inline]
    pub fn admit(
        &mut self,
        frame: Picked<'_>,
        beside: (Offload, u16),
        now: Nanos,
    ) -> Option<DropReason> {
        if self.load.frames > 0 {
            self.serve(now);
        }
        while self.room(frame.len()) == 0 {
            // Most disciplines drop the frame that comes last.
            if !self.queue.make_room(&mut self.load) {
                self.load.tally.drop_frame(Cause::Full);
                return Some(DropReason::Full);
            }
        }
        self.admit_beyond(frame, beside, now)
    }

    /// The same, whatever the queue's size, for a sender that waits for [`room`](Self::room) and
    /// may have sent a little more than that.
    #[inline]
    pub fn admit_beyond(
        &mut self,
        frame: Picked<'_>,
        beside: (Offload, u16),
        now: Nanos,
    ) -> Option<DropReason> {
        let now = now.max(self.busy_since);
        if self.load.frames > 0 {
            self.serve(now);
        }
        let Some(held) = self.load.store.add(frame, beside, now) else {
            self.load.tally.drop_frame(Cause::Memory);
            return Some(DropReason::Full);
        };
        if self.clock.is_none() {
            self.meter.sent(frame.len(), 0);
            return (!self.send(held, now)).then_some(DropReason::Impaired);
        }
        let alone = self.load.frames == 0;
        if alone {
            self.busy_since = now;
        }
        if !self.queue.push(held, frame.head(), &mut self.load) {
            return Some(DropReason::Full);
        }
        self.meter.note_queue(self.load.bytes);
        let lost = self.load.tally.lost;
        self.serve(now);
        (alone && self.load.tally.lost > lost).then_some(DropReason::Impaired)
    }

    /// Sends what the line can carry until `now`.
    #[inline]
    fn serve(&mut self, now: Nanos) {
        while self.load.frames > 0 {
            let Some(clock) = &mut self.clock else { return };
            let start = clock.free_at().max(self.busy_since);
            if start > now {
                return;
            }
            let Some(held) = self.queue.pop(start, &mut self.load) else { return };
            let end = clock.carry(held.len(), start);
            self.meter.sent(held.len(), start - held.at);
            self.send(held, end);
        }
    }

    /// Sends a frame whose last bit leaves the line at `end`. Returns false if it is lost.
    #[inline]
    fn send(&mut self, held: Held, end: Nanos) -> bool {
        let (mut delay, mut loss) = (self.config.delay_ns, self.config.loss);
        if let Some(series) = &self.config.series {
            let row = series.at(end - *self.began.get_or_insert(end));
            (delay, loss) = (row.delay_ns, Loss::Random(row.loss_ppm));
        }
        let verdict = self.fate.next(&self.config, delay, loss);
        if verdict.lost {
            self.load.store.remove(&held);
            self.load.tally.drop_frame(Cause::Lost);
            return false;
        }
        let due = if verdict.overtakes { end } else { self.latest.max(end + verdict.delay) };
        let mut held = held.at(due);
        if let Some(which) = verdict.corrupt {
            held.distrust();
            self.corrupt(&held, which);
        }
        self.load.tally.reordered += u64::from(verdict.overtakes);
        self.launch(held, verdict);
        let fits = verdict.twice && (self.clock.is_some() || self.room(held.len()) > 0);
        if let Some(copy) = fits.then(|| self.load.store.add_copy(&held)).flatten() {
            self.load.tally.duplicated += 1;
            self.launch(copy, verdict);
        }
        true
    }

    #[inline]
    fn launch(&mut self, held: Held, verdict: Verdict) {
        self.flight_bytes += held.len() as u64;
        if verdict.overtakes {
            self.express.push(held);
        } else {
            self.latest = held.at;
            self.flight.push(held);
        }
    }

    /// Changes one bit behind the frame's addresses and type, so it still comes to its receiver.
    #[cold]
    fn corrupt(&mut self, held: &Held, which: u64) {
        let bytes = self.load.store.bytes_of(held).suffix(ETHERNET_HEADER);
        let bits = bytes.len() as u64 * 8;
        let bit = ((u128::from(which) * u128::from(bits)) >> 64) as usize;
        if let Some(byte) = bytes.read::<u8>(bit / 8) {
            bytes.write(bit / 8, byte ^ 1 << (bit % 8));
            self.load.tally.corrupted += 1;
        }
    }

    /// The next frame that is due.
    #[inline]
    fn take_due(&mut self, now: Nanos) -> Option<Held> {
        if let Some(held) = self.returned.pop_front() {
            return Some(held);
        }
        let due = |fifo: &Fifo| fifo.front().filter(|held| held.at <= now).map(|held| held.at);
        match (due(&self.express), due(&self.flight)) {
            (Some(first), Some(second)) if second < first => self.flight.pop(),
            (Some(_), _) => self.express.pop(),
            (None, Some(_)) => self.flight.pop(),
            (None, None) => None,
        }
    }

    /// Lends out the frames that are due, up to `max`. Returns how many. Their bytes stay in place
    /// until they are [completed](Self::complete) or [put back](Self::put_back).
    pub fn release(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        self.serve(now);
        let mut released = 0;
        while released < max && scratch.has_room() {
            let Some(held) = self.take_due(now) else { break };
            scratch.push(self.load.store.bytes_of(&held).span());
            let (offload, via) = self.load.store.beside(&held);
            if offload != Offload::NONE {
                scratch.set_offload(offload);
            }
            if via != 0 {
                scratch.set_via(via);
            }
            self.lent.push_back(held);
            released += 1;
        }
        released
    }

    /// Takes back the oldest frames that were lent out, after their delivery.
    pub fn complete(&mut self, frames: usize) {
        for held in self.lent.drain(..frames.min(self.lent.len())) {
            self.flight_bytes -= held.len() as u64;
            self.load.store.remove(&held);
        }
    }

    /// Takes back all frames that are lent out; they stay due.
    pub fn put_back(&mut self) {
        while let Some(held) = self.lent.pop_back() {
            self.returned.push_front(held);
        }
    }

    /// Drops the frames that are not lent out. Returns how many.
    pub fn abandon(&mut self) -> usize {
        self.make_all_due();
        let mut dropped = 0;
        while let Some(held) = self.take_due(Nanos(0)) {
            self.flight_bytes -= held.len() as u64;
            self.load.store.remove(&held);
            dropped += 1;
        }
        dropped
    }

    /// Applies another configuration to later frames. What waits in the queue waits in the new one,
    /// and what is on its way arrives as it would have. Without a configuration, the link is
    /// perfect again, and all frames are due at once.
    pub fn set(&mut self, line: Option<(LinkConfig, SharedMeter)>) {
        let Some((config, meter)) = line else {
            self.make_all_due();
            self.config = LinkConfig { queue: self.config.queue, ..LinkConfig::default() };
            self.clock = None;
            self.queue = Queue::new(&self.config);
            return;
        };
        let mut clock = Clock::new(&config);
        if let (Some(new), Some(old)) = (&mut clock, &self.clock) {
            new.follow(old);
        }
        self.room = config.room();
        self.load.store.limit(self.room.memory() as usize + self.beyond);
        let fresh = Load::new(&config, self.number, 0);
        (self.load.ecn, self.load.random) = (fresh.ecn, fresh.random);
        let mut queue = Queue::new(&config);
        if clock.is_none() {
            self.empty_queue();
        }
        while let Some(held) = self.queue.take(&mut self.load) {
            let mut head = [0; port::HEAD];
            let len = self.load.store.bytes_of(&held).copy_out(&mut head);
            queue.refill(held, &head[..len], &mut self.load);
        }
        self.queue = queue;
        self.clock = clock;
        self.fate = Fate::new(config.seed, self.number);
        self.began = None;
        self.config = config;
        self.meter = meter;
    }

    /// Sends all frames of the queue at once, behind those that are on their way.
    fn empty_queue(&mut self) {
        while let Some(held) = self.queue.take(&mut self.load) {
            self.flight_bytes += held.len() as u64;
            self.flight.push(held.at(self.latest));
        }
    }

    /// The link's configuration.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Makes all frames due at once, also those in the queue.
    pub fn make_all_due(&mut self) {
        self.empty_queue();
        self.latest = Nanos(0);
        self.flight.set_all(Nanos(0));
        self.express.set_all(Nanos(0));
    }

    /// Returns the counts of frames since the last call, and publishes them.
    pub fn take_tally(&mut self) -> Tally {
        let tally = std::mem::take(&mut self.load.tally);
        let holding = Holding {
            frames: self.load.frames,
            bytes: self.load.bytes,
            flight: self.held() as u64,
            memory: self.load.store.bytes() as u64,
        };
        self.meter.publish(holding, &tally);
        tally
    }
}

#[cfg(test)]
mod tests;
