//! The receiver: delivers frames to the guest (Am79C970A, "Receive Operation").
//!
//! It filters a frame by its destination, pads it to the wire's shortest frame, and puts it into as
//! many buffers as it needs. A frame without any descriptor is a miss; one without descriptors for
//! its rest is a buffer error. Drivers do not check the FCS, so it is counted and left zero.

use std::num::Wrapping;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use port::stamp::{self, Stage};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos, Picked,
    Software,
};
use shmem::{Bytes, GuestMemory, Shared};

use super::core::{Core, Filling};
use super::filter::Filter;
use super::registers::{Fault, board, csr, features, status};
use super::ring::{Descriptor, Ring, bits};
use crate::csb::Direction;
use crate::walk;

/// Bytes of the shortest frame on a wire, without its check sequence.
pub(super) const SHORTEST: usize = 60;
/// Bytes of a check sequence.
pub(super) const CHECK: usize = 4;
/// The maximum number of buffers of a frame; one that needs more is a buffer error.
const MAX_CHAIN: usize = 64;
/// Message counts have twelve bits.
const LONGEST: usize = 4095;
/// 802.3 frames with a length below this have padding, which the controller may strip.
const PADDED_BELOW: usize = 46;
/// Addresses and length of an 802.3 frame.
const HEADER: usize = 14;

/// Where a frame's bytes come from.
trait Payload: Copy {
    /// Copies the frame's bytes from offset `from` on. Returns how many bytes were copied.
    fn copy(self, from: usize, to: Bytes<'_>) -> usize;
}

impl Payload for Picked<'_> {
    #[inline(always)]
    fn copy(self, from: usize, to: Bytes<'_>) -> usize {
        if from == 0 { self.copy_to(to) } else { self.copy_range(from, to) }
    }
}

impl Payload for &[u8] {
    fn copy(self, from: usize, to: Bytes<'_>) -> usize {
        to.copy_in(self.get(from..).unwrap_or_default())
    }
}

/// What is written for a frame: its bytes, zeros up to `padded`, and `check`.
#[derive(Clone, Copy, Debug)]
struct Shape {
    len: usize,
    padded: usize,
    check: [u8; CHECK],
    /// Bytes of all parts together.
    total: usize,
    /// The match bits of the frame's status.
    matched: u16,
}

impl Shape {
    fn new(len: usize, ethertype: u16, strip: bool, matched: u16) -> Self {
        let inner = usize::from(ethertype);
        if strip && inner < PADDED_BELOW {
            let len = len.min(HEADER + inner);
            return Self { len, padded: len, check: [0; CHECK], total: len, matched };
        }
        let padded = len.max(SHORTEST);
        Self { len, padded, check: [0; CHECK], total: padded.wrapping_add(CHECK), matched }
    }

    /// Writes the bytes from `from` on. Returns how many.
    #[inline(always)]
    fn write(&self, payload: impl Payload, from: usize, to: Bytes<'_>) -> usize {
        let to = to.prefix(self.total.wrapping_sub(from));
        let end = from.wrapping_add(to.len());
        let mut at = from;
        if at < self.len {
            at = at.wrapping_add(payload.copy(at, to.prefix(self.len.wrapping_sub(at))));
        }
        if at < self.padded && at < end {
            let zeros = to.suffix(at.wrapping_sub(from)).prefix(self.padded.wrapping_sub(at));
            zeros.fill(0);
            at = at.wrapping_add(zeros.len());
        }
        if at < end {
            to.suffix(at.wrapping_sub(from)).copy_in(&self.check[at.wrapping_sub(self.padded)..]);
        }
        to.len()
    }
}

/// The result of delivering one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Done,
    /// The driver has no buffer for the frame.
    Missed,
    /// The driver has too few buffers for the frame.
    Cut,
}

impl Filling {
    /// Updates the receiver's copies of the registers if the registers have changed.
    #[inline(always)]
    fn refresh(&mut self, core: &Core) -> Result<(), Fault> {
        let config = core.registers.config.load(Ordering::Acquire);
        if self.config != Some(config) {
            self.reload(core, config)?;
        }
        if self.host.notice(&core.block, Direction::Receive, 0) {
            self.host.publish_head(core.registers.receive.at());
        }
        // Frames without a descriptor are dropped, so the ring needs no doorbells.
        self.host.wake();
        if self.watch.finds_failed(&core.memory) { Err(Fault::Memory) } else { Ok(()) }
    }

    #[cold]
    fn reload(&mut self, core: &Core, config: u32) -> Result<(), Fault> {
        let registers = &*core.registers;
        let epoch = registers.epoch.load(Ordering::Acquire);
        if std::mem::replace(&mut self.epoch, epoch) != epoch && self.begun {
            self.host.restart(0);
        }
        self.filter = Filter::new(registers);
        self.looped = core.is_looped();
        let ring = Ring::new(registers, &core.memory, csr::RECEIVE_BASE, csr::RECEIVE_LENGTH);
        let ring = ring.ok_or(Fault::Ring)?;
        if registers.receive.at() >= ring.len {
            registers.receive.set(0, 0);
        }
        if !std::mem::replace(&mut self.begun, true) {
            Self::return_predecessors(core, &ring);
        }
        self.ring = Some(ring);
        self.config = Some(config);
        Ok(())
    }

    /// Gives back, as broken, the descriptors that a predecessor was giving back when it died,
    /// because the driver waits for them.
    fn return_predecessors(core: &Core, ring: &Ring) {
        let receive = &core.registers.receive;
        let moving = receive.moving().min(ring.len);
        let mut at = ring.before(receive.at(), moving);
        for _ in 0..moving {
            if ring.is_owned(at) {
                ring.fill(at, bits::ERR | bits::BUFF | bits::STP | bits::ENP, Some(0));
                core.registers.raise(status::RINT);
            }
            at = ring.next(at);
        }
        receive.set(receive.at(), 0);
    }

    /// Delivers `list` as far as there are buffers. Returns the rest.
    fn fill<'l>(
        &mut self,
        core: &Core,
        batch: &Batch<'_>,
        list: &'l [FrameIdx],
        limits: Limits,
        tally: &mut Outcomes,
    ) -> Result<&'l [FrameIdx], Fault> {
        let strip = core.registers.csr(csr::FEATURES) & features::ASTRP_RCV != 0;
        let mut left = list;
        while let Some((i, rest)) = left.split_first() {
            let at = std::mem::replace(&mut left, rest);
            let (frame, head) = (batch.pick(*i), batch.head(*i));
            let Some(to) = destination(head) else {
                tally.runts += 1;
                continue;
            };
            let Some(matched) = self.filter.matches(to) else {
                tally.filtered += 1;
                continue;
            };
            let len = frame.len();
            if len > limits.max_frame as usize || len > LONGEST - CHECK {
                tally.too_long += 1;
                continue;
            }
            let shape = Shape::new(len, ethertype(head), strip, matched);
            match self.put(core, frame, shape, limits.lossless)? {
                Put::Done => {
                    tally.frames += 1;
                    tally.bytes += len as u64;
                }
                Put::Missed | Put::Cut if limits.lossless => return Ok(at),
                Put::Missed => tally.missed += 1,
                Put::Cut => tally.cut += 1,
            }
        }
        Ok(left)
    }

    /// Puts a frame into the ring.
    #[inline(always)]
    fn put(
        &mut self,
        core: &Core,
        payload: impl Payload,
        shape: Shape,
        lossless: bool,
    ) -> Result<Put, Fault> {
        let Some(ring) = &self.ring else { return Ok(Put::Missed) };
        let receive = &core.registers.receive;
        let at = receive.at();
        walk::note(1);
        let Some(first) = ring.take(at) else { return Ok(Put::Missed) };
        if shape.total > first.len as usize {
            return Self::put_chain(core, ring, payload, shape, lossless);
        }
        write_buffer(&core.memory, first.address, payload, shape, 0, shape.total)?;
        let _scope = stamp::scope(Stage::Publish);
        let next = ring.next(at);
        receive.set(next, 1);
        let matched = if ring.style.has_match_bits() { shape.matched } else { 0 };
        ring.fill(at, bits::STP | bits::ENP | matched, Some(shape.total as u32));
        Ok(Put::Done)
    }

    /// Puts a frame into several buffers. Gives the first back last, so that a driver that sees it
    /// sees all.
    #[cold]
    fn put_chain(
        core: &Core,
        ring: &Ring,
        payload: impl Payload,
        shape: Shape,
        lossless: bool,
    ) -> Result<Put, Fault> {
        let receive = &core.registers.receive;
        let first = receive.at();
        let mut chain = [Descriptor::default(); MAX_CHAIN];
        let (mut count, mut room, mut at) = (0, 0, first);
        while room < shape.total && count < MAX_CHAIN.min(ring.len as usize) {
            walk::note(1);
            let Some(descriptor) = ring.take(at) else { break };
            chain[count] = descriptor;
            room += descriptor.len as usize;
            count += 1;
            at = ring.next(at);
        }
        let whole = room >= shape.total;
        if !whole && lossless {
            return Ok(Put::Cut);
        }
        let mut from = 0;
        for descriptor in &chain[..count] {
            let len = (descriptor.len as usize).min(shape.total - from);
            write_buffer(&core.memory, descriptor.address, payload, shape, from, len)?;
            from += len;
        }
        receive.set(at, count as u32);
        for place in (0..count).rev() {
            at = ring.before(at, 1);
            let last = place + 1 == count;
            let mut status = if place == 0 { bits::STP } else { 0 };
            let mut message = None;
            if last && whole {
                let matched = if ring.style.has_match_bits() { shape.matched } else { 0 };
                status |= bits::ENP | matched;
                message = Some(shape.total as u32);
            } else if last {
                status |= bits::ERR | bits::BUFF;
            }
            ring.fill(at, status, message);
        }
        Ok(if whole { Put::Done } else { Put::Cut })
    }

    /// Notes that no descriptor is being given back any more, and sets the event for the driver.
    fn finish(&self, core: &Core) {
        let receive = &core.registers.receive;
        if receive.moving() == 0 {
            return;
        }
        let _scope = stamp::scope(Stage::Publish);
        receive.set(receive.at(), 0);
        self.host.publish_head(receive.at());
        if self.host.on().is_some() {
            core.unsettled.store(true, Ordering::Relaxed);
        } else {
            core.registers.raise(status::RINT);
        }
    }

    /// Decides whether to interrupt a driver that uses the status block. The caller has fenced
    /// since its frames were published.
    pub fn settle(&mut self, core: &Core) {
        let Some(ring) = &self.ring else { return };
        if self.host.wants_interrupt(core.registers.receive.at(), ring.len) != Some(false) {
            core.registers.raise(status::RINT);
        }
    }

    /// Receives one of the controller's own frames, with its check sequence. True if the filter
    /// accepted it.
    pub fn loop_back(&mut self, core: &Core, frame: &[u8], check: [u8; CHECK]) -> bool {
        if !core.works(status::RXON) {
            return false;
        }
        let put = self.refresh(core).and_then(|()| {
            let matched = destination(frame).and_then(|to| self.filter.matches(to));
            let (len, total) = (frame.len(), frame.len() + CHECK);
            match matched {
                Some(matched) if total <= LONGEST => {
                    let shape = Shape { len, padded: len, check, total, matched };
                    self.put(core, frame, shape, false).map(Some)
                }
                _ => Ok(None),
            }
        });
        self.finish(core);
        match put {
            Ok(Some(Put::Missed)) => miss(core, 1),
            Err(fault) => core.fail(fault),
            Ok(_) => {}
        }
        put == Ok(Some(Put::Done))
    }
}

/// Writes `len` bytes of a frame, from offset `from` on, to a buffer.
#[inline(always)]
fn write_buffer(
    memory: &GuestMemory,
    address: u32,
    payload: impl Payload,
    shape: Shape,
    from: usize,
    len: usize,
) -> Result<(), Fault> {
    let mut near = memory.near();
    if let Some(bytes) = near.bytes(address.into(), len as u32) {
        shape.write(payload, from, bytes);
        return Ok(());
    }
    let mut at = from;
    let visit = |bytes: Bytes<'_>| at += shape.write(payload, at, bytes);
    if near.for_each(address.into(), len as u32, visit) { Ok(()) } else { Err(Fault::Buffer) }
}

/// The destination of a frame: low 48 bits, first octet lowest.
#[inline(always)]
fn destination(head: &[u8]) -> Option<u64> {
    let octets = head.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*octets) & 0xffff_ffff_ffff)
}

fn ethertype(head: &[u8]) -> u16 {
    match head.get(12..14) {
        Some(&[high, low]) => u16::from_be_bytes([high, low]),
        _ => u16::MAX,
    }
}

/// Counts frames that found no descriptor (Am79C970A, "CSR112").
fn miss(core: &Core, frames: u16) {
    let registers = &*core.registers;
    let (missed, over) = registers.csr(csr::MISSED).overflowing_add(frames);
    registers.set_csr(csr::MISSED, missed);
    if over {
        registers.csr[csr::FEATURES].fetch_or(features::MFCO, Ordering::AcqRel);
    }
    registers.raise(status::MISS);
}

/// Counts for a list of frames.
#[derive(Debug, Default)]
struct Outcomes {
    frames: Wrapping<u64>,
    bytes: Wrapping<u64>,
    runts: Wrapping<u64>,
    filtered: Wrapping<u64>,
    too_long: Wrapping<u64>,
    missed: Wrapping<u64>,
    cut: Wrapping<u64>,
}

/// A controller's receiver. All workers share it.
#[derive(Debug)]
pub(super) struct Receive {
    pub core: Arc<Core>,
    pub counters: Option<Shared<EgressCounters>>,
}

impl Receive {
    fn count(&self, tally: &Outcomes) {
        let Some(counters) = &self.counters else { return };
        counters.frames.add(tally.frames.0);
        counters.bytes.add(tally.bytes.0);
        let drops = [
            (DropReason::Runt, tally.runts),
            (DropReason::Filtered, tally.filtered),
            (DropReason::TooLong, tally.too_long),
            (DropReason::Full, tally.missed + tally.cut),
        ];
        for (reason, frames) in drops.into_iter().filter(|(_, frames)| frames.0 > 0) {
            counters.drop_frames(reason, frames.0);
        }
    }

    fn drop_down(&self, frames: &[FrameIdx]) {
        if let Some(counters) = &self.counters {
            counters.drop_frames(DropReason::Down, frames.len() as u64);
        }
    }

    /// True if the controller accepts frames from outside.
    fn is_open(&self, filling: &Filling) -> bool {
        self.core.works(status::RXON) && self.core.registers.has(board::LINK) && !filling.looped
    }
}

impl Egress for Receive {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let (core, all) = (&*self.core, Delivered { finished: list.len() });
        let filling = &mut *core.lock();
        if !core.works(status::RXON) {
            self.drop_down(list);
            return all;
        }
        let mut tally = Outcomes::default();
        let filled = filling.refresh(core).and_then(|()| {
            if self.is_open(filling) {
                filling.fill(core, batch, list, limits, &mut tally).map(Some)
            } else {
                Ok(None)
            }
        });
        filling.finish(core);
        if tally.missed.0 > 0 {
            miss(core, tally.missed.0 as u16);
        }
        self.count(&tally);
        match filled {
            Ok(Some(left)) => Delivered { finished: list.len() - left.len() },
            Ok(None) => {
                self.drop_down(list);
                all
            }
            Err(fault) => {
                core.fail(fault);
                if let Some(counters) = &self.counters {
                    counters.faults.add(1);
                    let done = tally.frames + tally.runts + tally.filtered + tally.too_long;
                    let done = done + tally.missed + tally.cut;
                    counters.drop_frames(DropReason::Down, list.len() as u64 - done.0);
                }
                all
            }
        }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        if self.core.unsettled.load(Ordering::Relaxed) {
            self.core.settle_received();
        }
        // Where memory is a copy, the home worker must push the frames.
        let kick = self.core.wants_kick() || self.core.copied.is_some();
        if let (true, Some(counters)) = (kick, &self.counters) {
            counters.kicks.add_shared(1);
        }
        Effects { kick }
    }

    fn count_software(&self, done: Software) {
        if let Some(counters) = &self.counters {
            counters.add_software(done);
        }
    }

    fn prefetch(&self) {
        let registers = &*self.core.registers;
        shmem::prefetch(std::ptr::from_ref(registers).cast());
        shmem::prefetch(std::ptr::from_ref(&registers.receive).cast());
    }
}
