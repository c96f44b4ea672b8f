//! Transmit rings: they take frames from a guest.
//!
//! ```text
//!   head (TDH) ....... taken ........ tail (TDT)
//!   lent to the switch | to be gathered
//! ```
//!
//! Guest buffers are lent as they are. A frame whose headers must be rewritten has a private copy
//! of them as its first segment.

mod collect;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use port::{Effects, Ingress, IngressCounters, Nanos, Scratch};
use shmem::guard::Watch;
use shmem::{Shared, SharedSlice};

pub(super) use self::collect::data_len;
use self::collect::flags_of;
use super::core::Core;
use super::offload::Headers;
use super::phy;
use super::registers::{Fault, told};
use super::ring::{self, Descriptor, tx};
use super::table::{self, cause, rctl, tctl};
use crate::combine::Combine;
use crate::csb::Direction;
use crate::csb::Host;
use crate::device::{Combining, Transmit as Transmitting};
use crate::model::ring::{Place, of_queue};

/// The maximum number of frames lent at a time; a power of two.
const LENT: usize = 2048;

/// What the model remembers of a lent descriptor.
mod flag {
    /// The driver wants to know when the descriptor is done.
    pub const REPORT: u8 = 1;
    /// The interrupt may wait.
    pub const DELAY: u8 = 2;
}

/// A transmit queue.
#[derive(Debug)]
pub(super) struct Transmit {
    core: Arc<Core>,
    queue: usize,
    counters: Shared<IngressCounters>,
    ring: Option<SharedSlice<Descriptor>>,
    /// The value of the ring's move counter at which `ring` was read.
    moved: u32,
    size: u32,
    /// The next descriptor to be taken.
    next: u32,
    /// The next descriptor to give back.
    done: u32,
    /// For each descriptor: bits of [`flag`].
    flags: Vec<u8>,
    /// For each running number: the descriptor after a lent frame.
    ends: Box<[u32]>,
    gathered: usize,
    completed: usize,
    /// Lent frames of a ring that was replaced.
    orphans: usize,
    /// The tail at which a frame had no end yet.
    unfinished: Option<u32>,
    headers: Headers,
    combine: Combine,
    tally: Gathered,
    /// A frame that is looped back.
    looped: Vec<u8>,
    /// The queue's part of the shared status block.
    host: Host,
    /// The time of the last look at the ring.
    now: Nanos,
    watch: Watch,
}

/// Counts of what was gathered.
#[derive(Debug, Default)]
struct Gathered {
    frames: u32,
    bytes: u64,
    sizes: [u32; 6],
    segmented: u32,
    multicast: u32,
    broadcast: u32,
}

impl Transmit {
    /// Resumes where the registers say. Descriptors that a predecessor took and did not give back
    /// are given back unsent, because their frames may have been delivered.
    pub fn new(
        core: &Arc<Core>,
        queue: usize,
        counters: Shared<IngressCounters>,
        combining: Option<Combining>,
    ) -> Self {
        let mut queue = Self {
            core: Arc::clone(core),
            queue,
            counters,
            ring: None,
            moved: of_queue(&core.rings, queue).load(Relaxed),
            size: 0,
            next: 0,
            done: 0,
            flags: Vec::new(),
            ends: vec![0; LENT].into(),
            gathered: 0,
            completed: 0,
            orphans: 0,
            unfinished: None,
            headers: Headers::new(),
            combine: Combine::new(combining),
            tally: Gathered::default(),
            looped: Vec::new(),
            host: Host::default(),
            now: Nanos(0),
            watch: Watch::default(),
        };
        queue.give_back();
        queue
    }

    fn give_back(&mut self) {
        self.notice();
        let taken = self.core.registers.tx[self.queue].taken.load(Acquire);
        if self.core.copied.is_some() || !self.runs() || self.find_ring().is_err() {
            return;
        }
        if let Some(ring) = self.ring.clone().filter(|_| taken < self.size) {
            let mut at = self.next;
            while at != taken {
                self.flags[at as usize] = flags_of(ring[at as usize].second());
                at = self.after(at);
            }
            self.next = taken;
            self.give_back_to(taken);
        }
        // The predecessor may also have given descriptors back without telling the driver.
        self.core.registers.tx[self.queue].told.store(0, Relaxed);
        let _ = self.core.raise(cause::TXDW | self.core.sent_cause(self.queue));
    }

    #[inline(always)]
    fn after(&self, at: u32) -> u32 {
        if at + 1 >= self.size { 0 } else { at + 1 }
    }

    /// Notices a moved ring. Descriptors lent from the old ring are never given back.
    #[inline]
    fn notice(&mut self) {
        let moved = self.core.rings[self.queue].load(Relaxed);
        if moved != self.moved {
            self.moved = moved;
            self.orphans += self.gathered - self.completed;
            (self.gathered, self.completed) = (0, 0);
            self.ring = None;
            self.unfinished = None;
            self.host.notice(&self.core.block, Direction::Send, self.queue);
            self.host.restart(self.core.registers.get(table::TX[self.queue].head));
        } else if self.host.notice(&self.core.block, Direction::Send, self.queue) {
            self.host.publish_head(self.core.registers.get(table::TX[self.queue].head));
        }
    }

    #[cold]
    fn find_ring(&mut self) -> Result<(), Fault> {
        let (core, words) = (&self.core, &table::TX[self.queue]);
        let registers = &core.registers;
        let bytes = registers.get(words.len);
        self.size = bytes / ring::DESCRIPTOR;
        self.next = registers.get(words.head);
        self.done = self.next;
        let idle = !self.host.is_there() && core.tail(Direction::Send, self.queue) == self.next;
        if self.size == 0 || idle {
            // There is nothing to send, and the ring's address may not be set up yet.
            self.size = 0;
            return Ok(());
        }
        if self.next >= self.size {
            return Err(Fault::BadIndex);
        }
        let ring = ring::ring(&core.memory, registers.address(words.base), bytes);
        self.ring = Some(ring.ok_or(Fault::BadRing)?);
        self.flags.clear();
        self.flags.resize(self.size as usize, 0);
        Ok(())
    }

    /// True if the device may send frames.
    #[inline(always)]
    fn runs(&self) -> bool {
        let registers = &self.core.registers;
        registers.get(table::TCTL) & tctl::EN != 0 && registers.may_access_memory()
    }

    fn loops_back(&self) -> bool {
        let registers = &self.core.registers;
        registers.get(table::RCTL) & rctl::LBM_MAC != 0 || phy::is_loopback(registers)
    }

    /// The tail, if there is something to send.
    #[inline]
    fn tail(&mut self) -> Result<Option<u32>, Fault> {
        self.notice();
        if !self.runs() {
            return Ok(None);
        }
        if self.watch.finds_failed(&self.core.memory) {
            return Err(Fault::Memory);
        }
        if self.ring.is_none() {
            self.find_ring()?;
        }
        let tail = match self.host.on() {
            Some(_) if self.size == 0 => 0,
            Some(host) => host.tail(self.size).map_err(|fault| self.core.fail_by_block(fault))?,
            None => self.core.tail(Direction::Send, self.queue),
        };
        if self.size == 0 || tail == self.next || self.unfinished == Some(tail) {
            return Ok(None);
        }
        if tail >= self.size { Err(Fault::BadIndex) } else { Ok(Some(tail)) }
    }

    #[cold]
    fn fail(&self, fault: Fault) {
        self.core.registers.fail(fault);
        self.counters.faults.add(1);
    }

    /// True if frames up to `tail` must wait for more. A ring that is half full waits for nothing.
    fn coalesces(&mut self, tail: u32, now: Nanos) -> bool {
        let (size, next) = (self.size, self.next);
        let waiting = Place { at: next, len: size }.distance(tail);
        waiting < size / 2 && !self.combine.is_due(waiting, now)
    }

    fn has_work(&mut self) -> bool {
        let work = self.tail();
        // Without a link, frames stay in the ring, as in the chip.
        let up = self.core.registers.has_link() || self.loops_back();
        matches!(work, Ok(Some(_)) | Err(_)) && up
    }

    /// Gives descriptors back up to `end`. The first one is written last, because a driver checks
    /// the first.
    #[inline]
    fn give_back_to(&mut self, end: u32) {
        let Some(ring) = &self.ring else { return };
        let (size, done, to) = (self.size as usize, self.done as usize, end as usize);
        let runs = if to >= done { [done..to, 0..0] } else { [done..size, 0..to] };
        let mut seen = 0;
        fence(Release);
        for run in runs.into_iter().rev() {
            let descriptors = ring.get(run.clone()).unwrap_or_default();
            let flags = self.flags.get(run).unwrap_or_default();
            for (descriptor, flags) in descriptors.iter().zip(flags).rev() {
                if flags & flag::REPORT != 0 {
                    descriptor.publish(descriptor.second() & !tx::STA | tx::DD);
                    seen |= if flags & flag::DELAY != 0 { told::DELAYED } else { told::NOW };
                }
            }
        }
        let registers = &self.core.registers;
        seen |= self.runs_low(end);
        self.done = end;
        registers.publish(table::TX[self.queue].head, end);
        self.host.publish_head(end);
        if end == registers.get(table::TX[self.queue].tail) {
            seen |= told::EMPTY;
        }
        let told = &registers.tx[self.queue].told;
        told.store(told.load(Relaxed) | seen, Relaxed);
    }

    /// Returns [`told::LOW`] if the number of unsent descriptors has just fallen below the driver's
    /// threshold (TXDCTL.LWTHRESH).
    fn runs_low(&self, end: u32) -> u32 {
        let registers = &self.core.registers;
        let threshold = 8 * (registers.get(table::TXDCTL) >> 25);
        if threshold == 0 {
            return 0;
        }
        let tail = registers.get(table::TX[self.queue].tail);
        let left =
            |at: u32| if tail >= at { tail - at } else { tail + self.size.saturating_sub(at) };
        if left(self.done) >= threshold && left(end) < threshold { told::LOW } else { 0 }
    }

    /// TXD_LOW, if the driver asks for it.
    #[cold]
    fn wanted_low(&self) -> u32 {
        self.core.registers.look(table::IMS) & cause::TXD_LOW
    }

    fn count(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        if tally.frames == 0 {
            return;
        }
        let registers = &self.core.registers;
        registers.count(table::GPTC, tally.frames);
        registers.count(table::TPT, tally.frames);
        registers.count(table::TSCTC, tally.segmented);
        registers.count(table::MPTC, tally.multicast);
        registers.count(table::BPTC, tally.broadcast);
        for (class, n) in tally.sizes.iter().enumerate() {
            registers.count(table::PTC64 + class, *n);
        }
        let octets = tally.bytes + 4 * u64::from(tally.frames);
        registers.count_octets(table::GOTC, octets);
        registers.count_octets(table::TOT, octets);
    }
}

impl Ingress for Transmit {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        self.now = now;
        let tail = match self.tail() {
            Ok(Some(tail)) => tail,
            Ok(None) => return 0,
            Err(fault) => {
                self.fail(fault);
                return 0;
            }
        };
        // Lent frames keep their private headers.
        if self.gathered != self.completed || self.coalesces(tail, now) {
            return 0;
        }
        self.headers.reuse();
        self.host.wake();
        self.host.spin.worked();
        let collected = if self.loops_back() {
            self.loop_back(scratch, max, tail)
        } else if self.core.registers.has_link() {
            self.collect(scratch, max, tail)
        } else {
            return 0;
        };
        if let Err(fault) = collected {
            self.fail(fault);
        }
        self.core.registers.tx[self.queue].taken.store(self.next, Release);
        self.counters.frames.add(scratch.len() as u64);
        self.counters.bytes.add(scratch.bytes());
        self.count();
        self.combine.answered(0);
        scratch.len()
    }

    fn complete(&mut self, frames: usize) {
        self.notice();
        let orphans = frames.min(self.orphans);
        self.orphans -= orphans;
        let frames = (frames - orphans).min(self.gathered - self.completed);
        if frames == 0 || self.core.registers.fault().is_some() {
            self.completed += frames;
            return;
        }
        self.completed += frames;
        let end = self.ends[(self.completed - 1) & (LENT - 1)];
        self.give_back_to(end);
    }

    fn settle(&mut self, now: Nanos) -> Effects {
        let core = &self.core;
        let told = &core.registers.tx[self.queue].told;
        let seen = told.load(Relaxed);
        let mut kick = core.settle_received(0, now);
        if seen != 0 {
            told.store(0, Relaxed);
            let sent = cause::TXDW | core.sent_cause(self.queue);
            let causes = match self.host.wants_interrupt(self.done, self.size) {
                Some(true) => sent,
                Some(false) => 0,
                None => {
                    kick |= seen & told::DELAYED != 0 && core.sent_delayed(self.queue, now);
                    let empty = if seen & told::EMPTY != 0 { cause::TXQE } else { 0 };
                    let low = if seen & told::LOW != 0 { self.wanted_low() } else { 0 };
                    empty | low | if seen & told::NOW != 0 { sent } else { 0 }
                }
            };
            kick |= core.raise(causes);
        }
        self.counters.kicks.add(u64::from(kick));
        Effects { kick }
    }
}

impl Transmitting for Transmit {
    fn arm(&mut self) -> bool {
        if self.has_work() {
            return true;
        }
        if !self.host.is_there() || self.size == 0 || !self.runs() {
            return false;
        }
        // The device polls a little longer for a driver that asked for it.
        if self.host.on().is_some() && self.host.spin.goes_on(self.now) {
            return true;
        }
        let seen = self.unfinished.unwrap_or(self.next);
        match self.host.sleep(Some(seen), self.size, self.now) {
            Some(Ok(work)) => work,
            Some(Err(fault)) => {
                let fault = self.core.fail_by_block(fault);
                self.fail(fault);
                false
            }
            None => false,
        }
    }

    fn disarm(&mut self) {
        // The device must not write to a block that was taken away.
        self.notice();
        self.host.wake();
    }

    fn deadline(&self) -> Option<Nanos> {
        self.combine.deadline().into_iter().chain(self.host.recheck_at()).min()
    }
}
