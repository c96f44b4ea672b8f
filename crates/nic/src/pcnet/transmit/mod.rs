//! The transmitter: takes frames from the guest's driver (Am79C970A, "Transmit Operation").
//!
//! It reads the ring on a transmit demand, and, where the poll timer is on, at its intervals. It
//! stops at a descriptor of the driver. The driver's buffers are lent; OWN is given back when the
//! switch is done with them. With loopback, or without a cable, no frame leaves. Such frames are
//! finished at once, but only when no earlier frame is lent.

mod collect;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use port::{Effects, Ingress, IngressCounters, MAX_SEGS, Nanos, Scratch};
use shmem::Shared;
use shmem::guard::Watch;

use super::core::Core;
use super::receive::SHORTEST;
use super::registers::{Fault, Position, board, csr, extended, features, status};
use super::ring::{Descriptor, Ring};
use crate::combine::Combine;
use crate::csb::{Direction, Host};
use crate::device;

/// The maximum number of frames lent at a time.
const MAX_LENT: usize = 1024;
/// Bytes of the longest frame that is looped back.
const LONGEST_LOOPED: usize = 4096;
/// Nanoseconds in a thousand bus clocks, at 33 MHz.
const NANOS_PER_1000_CLOCKS: u64 = 30_303;
/// The time between two polls doubles with each that finds nothing, this many times at most.
const MAX_BACKOFF: u32 = 8;
/// How long a frame's last descriptors may be missing before it is an underflow. It is much longer
/// than a driver needs to write them, and much shorter than it waits for a frame to be sent.
const PATIENCE_NS: u64 = 2 * Nanos::MILLI;

/// A controller's transmitter.
#[derive(Debug)]
pub(super) struct Transmit {
    core: Arc<Core>,
    counters: Shared<IngressCounters>,
    /// The value of the registers' `config` for which the ring and `looped` hold.
    config: Option<u32>,
    epoch: u32,
    ring: Option<Ring>,
    looped: bool,
    watch: Watch,
    lent: Lent,
    combine: Combine,
    poll: Poll,
    /// True if the last look stopped before the end of the ring.
    more: bool,
    /// The transmitter's part of the shared status block. The next fields: frames were sent with
    /// it, and no thread has decided yet whether to interrupt; and the time of the last look.
    host: Host,
    unsettled: bool,
    now: Nanos,
    /// Where a frame begins whose end is missing, and since when.
    incomplete: Option<(u32, Nanos)>,
    /// The buffers of the frame that is being read, up to the number that it may have.
    pieces: Vec<Descriptor>,
    /// Padding, lent after frames that are too short.
    zeros: Box<[u8; SHORTEST]>,
    /// A private copy of a frame that does not leave.
    private: Box<[u8; LONGEST_LOOPED]>,
}

/// Frames that are lent.
#[derive(Debug)]
struct Lent {
    /// How many descriptors each frame has, oldest first, from `completed` to `gathered`.
    counts: Box<[u16]>,
    gathered: usize,
    completed: usize,
    /// Earlier frames whose descriptors belong to the driver again, because the rings restarted.
    stale: usize,
}

/// The poll timer (Am79C970A, "CSR47").
#[derive(Debug, Default)]
struct Poll {
    next: Nanos,
    misses: u32,
}

/// How a look at the ring ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The next descriptor belongs to the driver.
    Dry,
    /// There may be more frames.
    More,
}

impl Transmit {
    /// Resumes where the registers say. Descriptors that a predecessor took and did not give back
    /// are given back unsent, because their frames may have been delivered.
    pub fn new(core: Arc<Core>, counters: Shared<IngressCounters>) -> Self {
        let registers = &*core.registers;
        let position = registers.position();
        if let Some(ring) = transmit_ring(&core).filter(|ring| position.at < ring.len)
            && position.lent > 0
        {
            give_back(&ring, position.at, position.lent.min(ring.len));
            registers.raise(status::TINT);
        }
        registers.set_position(Position { lent: 0, ..position });
        Self {
            config: None,
            epoch: registers.epoch.load(Ordering::Acquire),
            ring: None,
            looped: false,
            watch: Watch::default(),
            lent: Lent { counts: vec![0; MAX_LENT].into(), gathered: 0, completed: 0, stale: 0 },
            combine: Combine::new(core.combining),
            poll: Poll::default(),
            more: false,
            host: Host::default(),
            unsettled: false,
            now: Nanos(0),
            incomplete: None,
            pieces: Vec::with_capacity(MAX_SEGS),
            zeros: Box::new([0; SHORTEST]),
            private: Box::new([0; LONGEST_LOOPED]),
            counters,
            core,
        }
    }

    /// Time between two polls.
    fn interval(&self) -> u64 {
        // The low four bits are ignored; all zero means the longest interval.
        let clocks = 0x1_0000 - u64::from(self.core.registers.csr(csr::POLL_INTERVAL) & 0xfff0);
        clocks * NANOS_PER_1000_CLOCKS / 1000
    }

    fn polls(&self) -> bool {
        self.core.registers.csr(csr::FEATURES) & features::TXDPOLL == 0
    }

    /// True if the ring is due for a look.
    #[inline(always)]
    fn is_due(&mut self, now: Nanos) -> bool {
        if self.more || self.host.on().is_some() {
            return true;
        }
        let demands = self.core.registers.demands();
        if demands > 0 {
            return self.combine.is_due(demands, now);
        }
        // Looking early is cheap, but would split demands that are being combined.
        self.polls() && (!self.combine.is_on() || now >= self.poll.next)
    }

    /// Updates the transmitter's copies of the registers if the registers have changed.
    #[inline(always)]
    fn refresh(&mut self) -> Result<(), Fault> {
        let config = self.core.registers.config.load(Ordering::Acquire);
        if self.config != Some(config) {
            self.reload(config)?;
        }
        if self.watch.finds_failed(&self.core.memory) { Err(Fault::Memory) } else { Ok(()) }
    }

    #[cold]
    fn reload(&mut self, config: u32) -> Result<(), Fault> {
        self.forget_lent();
        let registers = &*self.core.registers;
        self.looped = self.core.is_looped();
        let ring = transmit_ring(&self.core).ok_or(Fault::Ring)?;
        let same = self.ring.as_ref().is_none_or(|old| old.is_same(&ring));
        let position = registers.position();
        if !same || position.at >= ring.len {
            let at = if position.at < ring.len { position.at } else { 0 };
            self.lent.forget();
            registers.set_position(Position { at, lent: 0 });
        }
        self.incomplete = None;
        self.ring = Some(ring);
        self.config = Some(config);
        Ok(())
    }

    /// After rings restart, lent descriptors belong to the driver.
    #[inline(always)]
    fn forget_lent(&mut self) {
        let epoch = self.core.registers.epoch.load(Ordering::Acquire);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.lent.forget();
            self.host.restart(0);
        }
    }

    /// Publishes the position in the ring if the driver has announced another status block.
    #[inline(always)]
    fn notice(&mut self) {
        if self.host.notice(&self.core.block, Direction::Send, 0) {
            self.host.publish_head(self.done());
        }
    }

    /// The first descriptor that was not given back.
    fn done(&self) -> u32 {
        let Position { at, lent } = self.core.registers.position();
        self.ring.as_ref().map_or(0, |ring| ring.before(at, lent.min(ring.len)))
    }

    #[cold]
    fn fail(&mut self, fault: Fault) {
        self.core.fail(fault);
        self.counters.faults.add(1);
    }

    /// Gathers frames, or finishes them here. On a fault, the frames before it are kept.
    fn look(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> Result<Look, Fault> {
        self.refresh()?;
        self.lent.rewind();
        let mut place = self.core.registers.position();
        let Some(ring) = self.ring.as_ref().filter(|ring| ring.is_owned(place.at)) else {
            return Ok(Look::Dry);
        };
        let (core, ring) = (Arc::clone(&self.core), ring.clone());
        let look = if self.looped || !core.registers.has(board::LINK) {
            self.absorb(&core, &ring, &mut place, now)
        } else {
            self.collect(&core, &ring, &mut place, scratch, max, now)
        };
        core.registers.set_position(place);
        look
    }

    /// Notes the end of a look.
    #[inline(always)]
    fn end_look(&mut self, look: Look, found: usize, now: Nanos) {
        self.more = look == Look::More;
        let registers = &*self.core.registers;
        let demands = registers.demands();
        if demands > 0 || found > 0 {
            self.poll.misses = 0;
        } else if now >= self.poll.next {
            self.poll.misses = (self.poll.misses + 1).min(MAX_BACKOFF);
        } else {
            return;
        }
        self.poll.next = now + (self.interval() << self.poll.misses);
        if demands > 0 {
            registers.count_deferred(self.combine.answered(demands));
            if look == Look::Dry {
                registers.transmit.demands.store(0, Ordering::Relaxed);
            }
        }
        if found > 0 && registers.csr(csr::FEATURES) & features::TXSTRT == 0 {
            registers.csr[csr::FEATURES].fetch_or(features::TXSTRT, Ordering::AcqRel);
        }
    }

    /// True if the controller owns the next descriptor, and it does not belong to a known
    /// incomplete frame.
    fn has_frame(&self) -> bool {
        let at = self.core.registers.position().at;
        let is_owned = |ring: &Ring| at < ring.len && ring.is_owned(at);
        self.incomplete.is_none() && self.ring.as_ref().is_some_and(is_owned)
    }

    /// Asks for demands through the status block, and checks the ring again.
    fn arm_by_block(&mut self) -> bool {
        if self.core.registers.demands() > 0 || self.has_frame() || self.host.spin.goes_on(self.now)
        {
            return true;
        }
        let Some(len) = self.ring.as_ref().map(|ring| ring.len) else { return false };
        match self.host.sleep(None, len, self.now) {
            Some(Err(fault)) => {
                self.core.fail_by_block(fault);
                self.counters.faults.add(1);
                false
            }
            // OWN decides; the tail only announces frames.
            Some(Ok(work)) if work || self.has_frame() => {
                self.host.wake();
                true
            }
            _ => false,
        }
    }

    /// Reports sent frames, in the way that the driver selected (Am79C970A, "CSR5").
    #[inline(always)]
    fn report_sent(&self, wanted: bool) {
        let registers = &*self.core.registers;
        let how = registers.csr(csr::EXTENDED);
        if how & extended::TOKINTD == 0 && (how & extended::LTINTEN == 0 || wanted) {
            registers.raise(status::TINT);
        }
    }
}

impl Ingress for Transmit {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        self.notice();
        self.now = now;
        if !self.core.works(status::TXON) || !self.is_due(now) {
            return 0;
        }
        let look = match self.look(scratch, max, now) {
            Ok(look) => look,
            Err(fault) => {
                self.fail(fault);
                Look::Dry
            }
        };
        let found = scratch.len();
        if found > 0 {
            self.host.spin.worked();
            self.counters.frames.add(found as u64);
            self.counters.bytes.add(scratch.bytes());
        }
        self.end_look(look, found, now);
        found
    }

    fn complete(&mut self, frames: usize) {
        self.forget_lent();
        let frames = self.lent.skip_stale(frames);
        let Some(ring) = self.ring.as_ref().filter(|_| frames > 0) else { return };
        let registers = &*self.core.registers;
        let position = registers.position();
        let mut at = ring.before(position.at, position.lent.min(ring.len));
        let tells = registers.csr(csr::EXTENDED) & extended::LTINTEN != 0;
        let (mut given, mut wanted) = (0u32, false);
        for count in self.lent.complete(frames) {
            for left in (0..u32::from(*count)).rev() {
                wanted |= tells && left == 0 && ring.wants_interrupt(at);
                ring.give_back(at);
                at = ring.next(at);
            }
            given = given.wrapping_add(u32::from(*count));
        }
        let lent = position.lent.saturating_sub(given);
        registers.set_position(Position { lent, ..position });
        self.host.publish_head(at);
        if self.host.on().is_some() {
            self.unsettled = true;
        } else {
            self.report_sent(wanted);
        }
    }

    fn settle(&mut self, _now: Nanos) -> Effects {
        if std::mem::take(&mut self.unsettled) {
            let (done, len) = (self.done(), self.ring.as_ref().map_or(0, |ring| ring.len));
            if self.host.wants_interrupt(done, len) == Some(true) {
                self.core.registers.raise(status::TINT);
                // Orders the event before the check whether the bus knows.
                fence(Ordering::SeqCst);
            }
        }
        let kick = self.core.wants_kick();
        self.counters.kicks.add(u64::from(kick));
        Effects { kick }
    }
}

impl device::Transmit for Transmit {
    fn arm(&mut self) -> bool {
        if !self.core.works(status::TXON) {
            return false;
        }
        if self.host.on().is_some() {
            return self.arm_by_block();
        }
        if self.combine.holds() {
            return false;
        }
        let demanded = self.core.registers.demands() > 0;
        demanded || self.polls() && self.has_frame()
    }

    fn disarm(&mut self) {
        // The controller must not write to a block that was taken away.
        self.notice();
        self.host.wake();
    }

    fn deadline(&self) -> Option<Nanos> {
        if !self.core.works(status::TXON) {
            return None;
        }
        let incomplete = self.incomplete.map(|(_, since)| since + PATIENCE_NS);
        if self.host.on().is_some() {
            return incomplete.into_iter().chain(self.host.recheck_at()).min();
        }
        let held = self.combine.deadline();
        let poll = self.polls().then_some(self.poll.next);
        [held, incomplete, poll].into_iter().flatten().min()
    }
}

impl Lent {
    fn is_full(&self) -> bool {
        self.gathered == self.counts.len()
    }

    /// Starts at index 0 again, if nothing is lent.
    #[inline(always)]
    fn rewind(&mut self) {
        if self.gathered == self.completed {
            (self.gathered, self.completed) = (0, 0);
        }
    }

    #[inline(always)]
    fn push(&mut self, count: u32) {
        if let Some(place) = self.counts.get_mut(self.gathered) {
            *place = count as u16;
            self.gathered = self.gathered.wrapping_add(1);
        }
    }

    fn forget(&mut self) {
        self.stale += self.gathered - self.completed;
        (self.gathered, self.completed) = (0, 0);
    }

    /// Of `frames` complete frames, how many are not stale.
    #[inline(always)]
    fn skip_stale(&mut self, frames: usize) -> usize {
        let stale = frames.min(self.stale);
        self.stale -= stale;
        (frames - stale).min(self.gathered - self.completed)
    }

    /// The descriptor counts of the next complete frames.
    #[inline(always)]
    fn complete(&mut self, frames: usize) -> &[u16] {
        let from = self.completed;
        self.completed += frames;
        &self.counts[from..self.completed]
    }
}

/// The transmit ring in the registers.
fn transmit_ring(core: &Core) -> Option<Ring> {
    let (registers, memory) = (&*core.registers, &*core.memory);
    Ring::new(registers, memory, csr::TRANSMIT_BASE, csr::TRANSMIT_LENGTH)
}

/// Gives back the `count` descriptors before `at`.
fn give_back(ring: &Ring, at: u32, count: u32) {
    let mut place = ring.before(at, count);
    for _ in 0..count {
        ring.give_back(place);
        place = ring.next(place);
    }
}
