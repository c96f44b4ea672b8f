//! Receive rings: they deliver frames to a guest.
//!
//! ```text
//!   head (RDH) ........ tail (RDT)      the device's: an address each
//!   frames --copy--> buffers, then all descriptors, the first one last: a driver looks at them in order
//! ```

mod filling;
mod spread;

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos,
    Software,
};
use shmem::Shared;

use self::spread::Private;
use super::core::{Core, Filling};
use super::filter::{Class, class};
use super::registers::Fault;
use super::table::{self, cause};
use crate::model::ring::of_queue;

/// Frames were received, and no interrupt cause is set for them yet.
const RECEIVED: u32 = 1;
/// Another interrupt cause was set.
const OTHER: u32 = 2;

/// A receive queue. All workers share it.
#[derive(Debug)]
pub(super) struct Receive {
    core: Arc<Core>,
    queue: usize,
    counters: Shared<EgressCounters>,
}

/// The statistics of a list of frames.
#[derive(Debug, Default)]
struct Statistics {
    frames: u64,
    bytes: u64,
    multicast: u32,
    broadcast: u32,
    /// Frames by size, as PRC64 and the registers after it count.
    sizes: [u32; 6],
    filtered: u64,
    too_long: u64,
    small: bool,
}

/// The result of delivering one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Delivered,
    Dropped,
    Full,
    /// The ring's buffers cannot hold the frame.
    TooLong,
}

impl Statistics {
    #[inline(always)]
    fn add(&mut self, len: usize, destination: u64, small: usize) {
        self.frames = self.frames.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(len as u64);
        match class(destination) {
            Class::Unicast => {}
            Class::Multicast => self.multicast += 1,
            Class::Broadcast => self.broadcast += 1,
        }
        let class = &mut self.sizes[table::size_class(len)];
        *class = class.wrapping_add(1);
        self.small |= len.wrapping_add(4) <= small;
    }
}

impl Receive {
    pub fn new(core: &Arc<Core>, queue: usize, counters: Shared<EgressCounters>) -> Self {
        Self { core: Arc::clone(core), queue, counters }
    }

    /// The ring that this queue's frames go to: a driver may use only the first.
    fn ring(&self) -> usize {
        if self.queue == 0 {
            return 0;
        }
        let mut first = self.core.lock(0);
        first.notice_filters(&self.core);
        usize::from(first.filter.two_queues)
    }

    fn deliver_locked(
        &self,
        filling: &mut Filling,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
    ) -> usize {
        let core = &*self.core;
        let down = |frames: usize| {
            self.counters.drop_frames(DropReason::Down, frames as u64);
            list.len()
        };
        let fail = |fault, left: usize| {
            core.registers.fail(fault);
            self.counters.faults.add(1);
            down(left)
        };
        match filling.prepare(core) {
            Ok(true) => {}
            Ok(false) => return down(list.len()),
            Err(fault) => return fail(fault, list.len()),
        }
        let before = filling.available(core).unwrap_or(0);
        let mut tally = Statistics::default();
        let filled = filling.fill(core, batch, list, limits, &mut tally);
        let lost = match &filled {
            Ok(left) if !limits.lossless => left.len(),
            _ => 0,
        };
        let left = filling.available(core).unwrap_or(0);
        self.count(&tally, lost);
        let few = filling.size >> filling.filter.threshold_shift;
        let crossed = before > few && left <= few;
        // With a shared status block, the driver requests its interrupts there.
        let crossed = crossed && filling.host.on().is_none();
        core.note_received(filling.queue, &tally, lost, crossed);
        match filled {
            Ok(left) if lost == 0 => list.len() - left.len(),
            Ok(_) => list.len(),
            Err((fault, left)) => fail(fault, left.len()),
        }
    }

    fn count(&self, tally: &Statistics, lost: usize) {
        let counters = &self.counters;
        counters.frames.add(tally.frames);
        counters.bytes.add(tally.bytes);
        for (reason, n) in [
            (DropReason::Filtered, tally.filtered),
            (DropReason::TooLong, tally.too_long),
            (DropReason::Full, lost as u64),
        ] {
            if n > 0 {
                counters.drop_frames(reason, n);
            }
        }
    }
}

impl Core {
    /// Notes statistics and causes of what was received. RXT0 waits until the time is known.
    fn note_received(&self, queue: usize, tally: &Statistics, lost: usize, crossed: bool) {
        let registers = &self.registers;
        let frames = tally.frames as u32;
        if frames > 0 {
            registers.count(table::GPRC, frames);
            registers.count(table::TPR, frames);
            registers.count(table::MPRC, tally.multicast);
            registers.count(table::BPRC, tally.broadcast);
            for (class, n) in tally.sizes.iter().enumerate() {
                registers.count(table::PRC64 + class, *n);
            }
            let octets = tally.bytes + 4 * tally.frames;
            registers.count_octets(table::GORC, octets);
            registers.count_octets(table::TOR, octets);
        }
        let mut causes = 0;
        if lost > 0 {
            registers.count(table::RNBC, lost as u32);
            registers.count(table::MPC, lost as u32);
            causes |= cause::RXO;
        }
        if crossed {
            causes |= cause::RXDMT0;
        }
        if tally.small {
            causes |= cause::SRPD;
        }
        if causes != 0 {
            let own = self.received_cause(queue);
            let own = if crossed || tally.small { own } else { 0 };
            let _ = self.raise(causes | own);
        }
        let told = if frames > 0 { RECEIVED } else { 0 } | if causes != 0 { OTHER } else { 0 };
        if told != 0 {
            of_queue(&registers.rx, queue).unsettled.fetch_or(told, AcqRel);
        }
    }

    /// Handles frames that a predecessor may have handed over, partly or wholly, without telling
    /// the driver.
    pub fn resume_receiving(&self) {
        for (queue, state) in self.registers.rx.iter().enumerate() {
            state.unsettled.store(0, Relaxed);
            if matches!(self.lock(queue).prepare(self), Ok(true)) {
                let _ = self.raise(cause::RXT0 | self.received_cause(queue));
            }
        }
    }

    /// Receives a frame that the device itself loops back to its guest. It counts as received.
    pub fn loop_back(&self, frame: &mut [u8]) -> Result<Outcome, Fault> {
        let mut filling = self.lock(0);
        let mut tally = Statistics::default();
        let met = match filling.prepare(self) {
            Ok(true) => filling.receive_one(self, &Private(frame), &mut tally),
            Ok(false) => Ok(Outcome::Dropped),
            Err(fault) => Err(fault),
        };
        filling.publish(&self.registers);
        let lost = usize::from(met == Ok(Outcome::Full));
        self.note_received(0, &tally, lost, false);
        met
    }

    /// True if the driver uses the shared status block, and wants no interrupt.
    fn is_not_wanted(&self, queue: usize) -> bool {
        let mut filling = self.lock(queue);
        let (head, size) = (filling.head, filling.size);
        filling.host.wants_interrupt(head, size) == Some(false)
    }

    /// Sets causes for what was delivered since the last call. True if a thread must ask what to
    /// raise.
    pub fn settle_received(&self, queue: usize, now: Nanos) -> bool {
        let unsettled = &of_queue(&self.registers.rx, queue).unsettled;
        if unsettled.load(Relaxed) == 0 {
            return false;
        }
        let told = unsettled.swap(0, AcqRel);
        if self.block.is_used() && self.is_not_wanted(queue) {
            return false;
        }
        let received = told & RECEIVED != 0 && self.received(queue, now);
        // Where memory is a copy, the home worker must push the frames.
        received || self.pending() != 0 || self.copied.is_some()
    }
}

impl Egress for Receive {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut filling = self.core.lock(self.ring());
        Delivered { finished: self.deliver_locked(&mut filling, batch, list, limits) }
    }

    fn settle(&self, now: Nanos) -> Effects {
        let rings = if self.queue == 0 { 0..=0 } else { 0..=1 };
        let kick = rings.filter(|ring| self.core.settle_received(*ring, now)).count() > 0;
        if kick {
            self.counters.kicks.add_shared(1);
        }
        Effects { kick }
    }

    fn count_software(&self, done: Software) {
        self.counters.add_software(done);
    }

    fn prefetch(&self) {
        shmem::prefetch_all(of_queue(&self.core.filling, self.queue));
        shmem::prefetch(std::ptr::from_ref(&*self.counters).cast());
    }
}
