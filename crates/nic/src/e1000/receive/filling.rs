//! Filling a ring: copies frames into buffers, a run at a time.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use frame::Offload;
use port::stamp::{self, Stage};
use port::{Batch, FrameIdx, Limits};
use shmem::{Bytes, Near};

use super::spread::{FromBatch, SHORTEST, Shape, Source};
use super::{Filling, Outcome, Statistics};
use crate::csb::Direction;
use crate::e1000::core::Core;
use crate::e1000::filter::{Filter, destination};
use crate::e1000::registers::{Fault, Registers};
use crate::e1000::ring::{self, rx};
use crate::e1000::table;
use crate::model::ring::{Place, of_queue};
use crate::walk;

/// The maximum number of descriptors read together.
const CHUNK: usize = 64;

impl Filling {
    pub fn new(queue: usize) -> Self {
        Self { queue, filled: Vec::with_capacity(2 * CHUNK), ..Self::default() }
    }

    /// Notes that the ring was replaced, or that its head moved.
    pub fn forget_ring(&mut self) {
        self.ring = None;
        self.moved = true;
    }

    /// Reads the filters again, if they have changed.
    #[inline]
    pub fn notice_filters(&mut self, core: &Core) {
        let filters = core.filters();
        if self.filters != Some(filters) {
            self.filter = Filter::new(&core.registers, core.chip);
            self.filters = Some(filters);
            self.ring = None;
        }
    }

    /// Picks up what has changed. Returns false if the receiver is off.
    #[inline]
    pub(super) fn prepare(&mut self, core: &Core) -> Result<bool, Fault> {
        self.notice_filters(core);
        let registers = &core.registers;
        if !self.filter.enabled || !registers.may_access_memory() || !registers.has_link() {
            return Ok(false);
        }
        if self.watch.finds_failed(&core.memory) {
            return Err(Fault::Memory);
        }
        let new_block = self.host.notice(&core.block, Direction::Receive, self.queue);
        if self.ring.is_none() {
            self.find_ring(core)?;
        }
        if std::mem::take(&mut self.moved) {
            self.host.restart(self.head);
        } else if new_block {
            self.host.publish_head(self.head);
        }
        // Frames without a buffer are dropped, so the queue needs no doorbells.
        self.host.wake();
        Ok(true)
    }

    #[cold]
    fn find_ring(&mut self, core: &Core) -> Result<(), Fault> {
        let (registers, words) = (&core.registers, of_queue(&table::RX, self.queue));
        let bytes = registers.get(words.len);
        (self.size, self.head) = (bytes / ring::DESCRIPTOR, registers.get(words.head));
        let tail = core.tail(Direction::Receive, self.queue);
        let idle = !self.host.is_there() && tail == self.head;
        if self.size == 0 || idle {
            // There are no buffers, and the ring's address may not be set up yet.
            self.size = 0;
            return Ok(());
        }
        if self.head >= self.size {
            return Err(Fault::BadIndex);
        }
        let ring = ring::ring(&core.memory, registers.address(words.base), bytes);
        self.ring = Some(ring.ok_or(Fault::BadRing)?);
        self.finish_moving(registers);
        Ok(())
    }

    /// Finishes handing over what a predecessor had begun when it died. If the first descriptor is
    /// not done, the driver still waits there; if it is done, the others must be too. If any other
    /// descriptor is not done, its contents and the frame boundaries are unknown. Then all of them
    /// become frames received with an error.
    fn finish_moving(&mut self, registers: &Registers) {
        let state = of_queue(&registers.rx, self.queue);
        let end = state.moving.load(Acquire);
        let (Some(end), Some(ring)) = (end.checked_sub(1), &self.ring) else { return };
        if end < self.size && self.filter.split.is_none() {
            let (head, extended) = (self.head, self.filter.extended);
            let count = if end > head { end - head } else { end + self.size - head };
            let at = |n: u32| ring.get(((head + n) % self.size) as usize);
            let is_done = |n| {
                let status = if extended { 0 } else { 32 };
                at(n).is_none_or(|one| (one.second() >> status) as u32 & rx::DD != 0)
            };
            let publish = |n, word| {
                let Some(descriptor) = at(n) else { return };
                if extended {
                    descriptor.set_first(0);
                }
                descriptor.publish(word);
            };
            if !is_done(0) && (1..count).all(is_done) {
                publish(0, state.first.load(Relaxed));
            } else if !is_done(0) {
                (0..count).rev().for_each(|n| publish(n, self.damaged()));
            }
            self.head = end;
            registers.publish(of_queue(&table::RX, self.queue).head, end);
        }
        state.moving.store(0, Release);
    }

    /// How many descriptors the driver has made available.
    #[inline(always)]
    pub(super) fn available(&self, core: &Core) -> Result<u32, Fault> {
        if self.size == 0 {
            return Ok(0);
        }
        let tail = match self.host.on() {
            Some(host) => host.tail(self.size).map_err(|fault| core.fail_by_block(fault))?,
            None => core.tail(Direction::Receive, self.queue),
        };
        if tail >= self.size {
            return Err(Fault::BadIndex);
        }
        let ahead = Place { at: self.head, len: self.size }.distance(tail);
        Ok(ahead.saturating_sub(self.filled.len() as u32))
    }

    /// The index of the descriptor `n` places after the filled ones.
    #[inline(always)]
    pub(super) fn place(&self, n: usize) -> usize {
        let at = (self.head as usize).wrapping_add(self.filled.len()).wrapping_add(n);
        let size = self.size as usize;
        if at >= size { at.wrapping_sub(size) } else { at }
    }

    /// Hands filled descriptors to the driver. The first one is written last, because a driver
    /// checks the first.
    #[inline(always)]
    pub(super) fn publish(&mut self, registers: &Registers) {
        let (Some(ring), false) = (&self.ring, self.filled.is_empty()) else { return };
        let _scope = stamp::scope(Stage::Publish);
        let (size, head) = (self.size as usize, self.head as usize);
        let end = head + self.filled.len();
        let end = if end >= size { end - size } else { end } as u32;
        let state = of_queue(&registers.rx, self.queue);
        state.first.store(self.filled.first().copied().unwrap_or(0), Relaxed);
        state.moving.store(end + 1, Release);
        for (n, word) in self.filled.iter().enumerate().rev() {
            let at = head.wrapping_add(n);
            let at = if at >= size { at.wrapping_sub(size) } else { at };
            if let Some(descriptor) = ring.get(at) {
                if self.filter.extended {
                    descriptor.set_first(0);
                }
                descriptor.publish(*word);
            }
        }
        self.head = end;
        registers.publish(of_queue(&table::RX, self.queue).head, self.head);
        state.moving.store(0, Release);
        self.host.publish_head(self.head);
        self.filled.clear();
    }

    /// The second word of a descriptor for a frame received with an error (RXE).
    pub fn damaged(&self) -> u64 {
        let errors = rx::RXE << if self.filter.extended { 24 } else { 8 };
        self.word(SHORTEST, rx::DD | rx::EOP | errors, 0)
    }

    /// The second word of a descriptor with `len` bytes and this status.
    #[inline(always)]
    pub(super) fn word(&self, len: usize, status: u32, tag: u16) -> u64 {
        let (len, status, tag) = (len as u64 & 0xffff, u64::from(status), u64::from(tag));
        if self.filter.extended {
            status | len << 32 | tag << 48
        } else {
            len | status << 32 | tag << 48
        }
    }

    /// Delivers `list` as far as there are buffers. Returns the rest.
    #[inline]
    pub(super) fn fill<'l>(
        &mut self,
        core: &Core,
        batch: &Batch<'_>,
        list: &'l [FrameIdx],
        limits: Limits,
        tally: &mut Statistics,
    ) -> Result<&'l [FrameIdx], (Fault, &'l [FrameIdx])> {
        let mut left = list;
        while !left.is_empty() {
            let now = &left[..left.len().min(CHUNK)];
            let finished = match self.fill_singles(core, batch, now, limits, tally) {
                Ok(0) => self.fill_odd(core, batch, left[0], limits, tally).map(usize::from),
                filled => filled,
            };
            match finished {
                Ok(0) => break,
                Ok(finished) => left = &left[finished..],
                Err(fault) => return Err((fault, left)),
            }
        }
        Ok(left)
    }

    /// Copies frames that fit into one buffer each, up to the first that does not. Returns how many
    /// are finished.
    #[inline(always)]
    fn fill_singles(
        &mut self,
        core: &Core,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
        tally: &mut Statistics,
    ) -> Result<usize, Fault> {
        if self.filter.split.is_some() {
            return Ok(0);
        }
        let available = self.available(core)? as usize;
        let mut found = [Bytes::empty(); CHUNK];
        let count = self.find(core, available.min(list.len()), &mut found);
        let longest = self.filter.longest.min(limits.max_frame as usize);
        let longest = longest.min(self.filter.buffer - self.filter.fcs);
        let requests = batch.any_offload();
        let (mut finished, mut used) = (0usize, 0usize);
        for i in list {
            let frame = batch.pick(*i);
            let (len, head) = (frame.len(), batch.head(*i));
            let tagged = self.filter.tags && self.filter.tag(head).is_some();
            if tagged || !(SHORTEST..=longest).contains(&len) {
                break;
            }
            let destination = destination(head);
            if !self.filter.takes(&core.registers, destination) {
                tally.filtered = tally.filtered.wrapping_add(1);
                finished = finished.wrapping_add(1);
                continue;
            }
            let Some(room) = found[..count].get(used) else { break };
            if batch.is_long() {
                let next = found[..count].get(used.wrapping_add(1));
                prefetch_next(batch, list.get(finished.wrapping_add(1)), next);
            }
            frame.copy_to(*room);
            let good = requests && is_good(batch, *i);
            let status = if good { self.checksum_status(head) } else { rx::IXSM };
            let word = self.word(len.wrapping_add(self.filter.fcs), rx::DD | rx::EOP | status, 0);
            self.filled.push(word);
            tally.add(len, destination, self.filter.small);
            used = used.wrapping_add(1);
            finished = finished.wrapping_add(1);
        }
        self.publish(&core.registers);
        Ok(finished)
    }

    /// Finds the next buffers, at most `most`, and prefetches them. Stops at a buffer that is not
    /// one piece of memory.
    #[inline(always)]
    fn find<'m>(&self, core: &'m Core, most: usize, found: &mut [Bytes<'m>; CHUNK]) -> usize {
        let Some(ring) = &self.ring else { return 0 };
        let mut near = core.memory.near();
        let mut count = 0usize;
        for found in found.iter_mut().take(most) {
            let Some(descriptor) = ring.get(self.place(count)) else { break };
            walk::note(1);
            let Some(bytes) = buffer(&mut near, descriptor.first(), self.filter.buffer) else {
                break;
            };
            bytes.prefetch_to_write(0);
            bytes.prefetch_to_write(64);
            *found = bytes;
            count = count.wrapping_add(1);
        }
        count
    }

    /// Delivers or drops frame `i` of a batch, of any kind. Returns false if there is no room.
    fn fill_odd(
        &mut self,
        core: &Core,
        batch: &Batch<'_>,
        i: FrameIdx,
        limits: Limits,
        tally: &mut Statistics,
    ) -> Result<bool, Fault> {
        if batch.wire_len(i) > limits.max_frame as usize {
            tally.too_long += 1;
            return Ok(true);
        }
        let (frame, head) = (batch.pick(i), batch.head(i));
        let source = FromBatch { frame, head, good: is_good(batch, i) };
        let met = self.receive_one(core, &source, tally)?;
        self.publish(&core.registers);
        Ok(met != Outcome::Full)
    }

    /// Filters a frame and spreads it over as many buffers as it needs.
    pub(super) fn receive_one(
        &mut self,
        core: &Core,
        source: &impl Source,
        tally: &mut Statistics,
    ) -> Result<Outcome, Fault> {
        let (head, len) = (source.head(), source.len());
        let destination = destination(head);
        let tag = self.filter.tag(head).filter(|_| self.filter.tags);
        let registers = &core.registers;
        if !self.filter.takes_tag(registers, tag) || !self.filter.takes(registers, destination) {
            tally.filtered += 1;
            return Ok(Outcome::Dropped);
        }
        // The limit of 1,522 bytes includes a tag, so a tag does not raise it.
        if len > self.filter.longest {
            registers.count(table::ROC, 1);
            tally.too_long += 1;
            return Ok(Outcome::Dropped);
        }
        let stripped = tag.filter(|_| self.filter.strip);
        let frame = Shape { source, cut: if stripped.is_some() { 4 } else { 0 } };
        let tag_status = if stripped.is_some() { rx::VP } else { 0 };
        let known = if source.is_good() { self.checksum_status(head) } else { rx::IXSM };
        let status = known | tag_status;
        let met = match self.filter.split {
            Some(sizes) => self.split(core, &frame, sizes, status, stripped.unwrap_or(0))?,
            None => self.spread(core, &frame, status, stripped.unwrap_or(0))?,
        };
        match met {
            Outcome::Delivered => tally.add(len, destination, self.filter.small),
            Outcome::TooLong => tally.too_long += 1,
            Outcome::Dropped | Outcome::Full => {}
        }
        Ok(met)
    }
}

#[inline(always)]
fn buffer<'m>(near: &mut Near<'m>, address: u64, size: usize) -> Option<Bytes<'m>> {
    if address == 0 { None } else { near.bytes(address, size as u32) }
}

#[inline(always)]
fn prefetch_next(batch: &Batch<'_>, next: Option<&FrameIdx>, to: Option<&Bytes<'_>>) {
    if let (Some(next), Some(to)) = (next, to) {
        let next = batch.pick(*next);
        next.prefetch_payload();
        (128..to.len().min(next.len())).step_by(64).for_each(|line| to.prefetch_to_write(line));
    }
}

pub(super) fn is_good(batch: &Batch<'_>, i: FrameIdx) -> bool {
    batch.offload(i).flags & Offload::DATA_VALID != 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use frame::Mac;
    use port::Nanos;
    use shmem::{GuestMemory, Mapping, Shared};

    use super::*;
    use crate::device::{DeviceConfig, Model};
    use crate::e1000::{self, Chip};

    const RING: u64 = 0x1000;

    fn write(model: &Model, at: u64, value: u32) {
        model.device.write(0, at, &value.to_le_bytes(), Nanos(0));
    }

    /// The second word of descriptors that a predecessor handed over.
    const DONE: u64 = 7 << 32 | 7;

    /// Models a predecessor that died while it handed three frames over at 6, 7 and 0. `said` are
    /// the descriptors that it left. Returns what its successor makes of them.
    fn resumed(chip: Chip, said: [u64; 3]) -> ([u64; 3], u32, bool) {
        let mapping = Mapping::private(0x1_0000).unwrap();
        let memory = Arc::new(GuestMemory::of(mapping, 0).unwrap());
        let config = DeviceConfig::alone(Arc::clone(&memory), Mac::local(1), 1).unwrap();
        let registers: Shared<Registers> = Shared::private().unwrap();
        let model = e1000::model(chip, registers.clone(), config.clone());
        model.device.set_bus_master(true);
        let extended = if chip == Chip::L82574 { 1 << 15 } else { 0 };
        for (at, value) in [
            (0x5008, extended),
            (0x2800, RING as u32),
            (0x2808, 128),
            (0x2810, 6),
            (0x2818, 4),
            (0x100, 2),
            (0xd0, 0x80),
        ] {
            write(&model, at, value);
        }
        let state = &registers.rx[0];
        state.first.store(7 << 32 | 7 | 64 << 16, Relaxed);
        state.moving.store(2, Relaxed);
        let at = [6, 7, 0].map(|n| memory.bytes(RING + 16 * n + 8, 8).unwrap());
        at.iter().zip(said).for_each(|(at, word)| assert!(at.write(0, word)));
        let model = e1000::model(chip, registers.clone(), config);
        assert_eq!(state.moving.load(Relaxed), 0);
        let raised = model.device.interrupt(Nanos(0)).vectors == 1;
        (at.map(|at| at.read(0).unwrap()), registers.get(table::RX[0].head), raised)
    }

    #[test]
    fn what_was_handed_over_halfway_is_handed_over_wholly() {
        for chip in [Chip::Em82540, Chip::L82574] {
            let first = 7 << 32 | 7 | 64 << 16;
            assert_eq!(resumed(chip, [0, DONE, DONE]), ([first, DONE, DONE], 1, true));
            let all = [DONE; 3];
            assert_eq!(resumed(chip, all), (all, 1, true), "it was all there");
        }
    }

    /// Regression: the other descriptors were left as they were, and the driver waited at one of
    /// them for ever.
    #[test]
    fn regression_what_was_not_written_before_the_first_is_handed_over_as_damaged() {
        for (chip, damaged) in [
            (Chip::Em82540, (0x8003 << 32) | SHORTEST as u64),
            (Chip::L82574, 0x8000_0003 | (SHORTEST as u64) << 32),
        ] {
            for said in [[0, 0, DONE], [0, 0, 0]] {
                assert_eq!(resumed(chip, said), ([damaged; 3], 1, true), "{chip:?} {said:?}");
            }
        }
    }
}
