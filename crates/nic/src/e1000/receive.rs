//! Receive rings: where frames are handed out to a guest.
//!
//! ```text
//!   head (RDH) ........ tail (RDT)      the device's: an address each
//!   frames --copy--> buffers, then all descriptors, the first one last: a driver looks at them in order
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::fence;

use frame::{Ipv4, Layers, Network, Offload, Transport};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos, Nearer,
    Picked, Software,
};
use shmem::{Bytes, Near, Shared, SharedSlice};

use super::Member;
use super::block::Host;
use super::core::Core;
use super::descriptor::{self, Descriptor, rx};
use super::filter::{Class, Filter, class};
use super::regs::{self, cause};
use super::state::{Fault, Registers};
use crate::csb::Way;

/// Descriptors looked at together.
const CHUNK: usize = 64;
/// Shortest frame without its check sequence; shorter ones are padded.
const SHORTEST: usize = 60;
/// Bytes of a frame's start that are looked at.
const ADDRESS: u64 = 0xffff_ffff_ffff;

/// Frames were received, of which nobody was told.
const RECEIVED: u32 = 1;
/// Other causes were set.
const OTHER: u32 = 2;

/// A receive queue. Shared by all workers.
#[derive(Debug)]
pub(super) struct Receive {
    core: Arc<Core>,
    queue: usize,
    counters: Shared<EgressCounters>,
}

/// A receive ring, as it is filled.
#[derive(Debug, Default)]
pub(super) struct Filling {
    queue: usize,
    ring: Option<SharedSlice<Descriptor>>,
    /// It was moved since it was found.
    moved: bool,
    /// Descriptors in it.
    size: u32,
    head: u32,
    /// Descriptors that are filled and not published: their second words.
    filled: Vec<u64>,
    filter: Filter,
    /// The filters were those of then.
    filters: Option<u32>,
    /// Its part of the shared status block.
    host: Host,
}

/// What became of a list of frames.
#[derive(Debug, Default)]
struct Tally {
    frames: u64,
    bytes: u64,
    multicast: u32,
    broadcast: u32,
    /// By size, as PRC64 and those after it count.
    sizes: [u32; 6],
    filtered: u64,
    too_long: u64,
    small: bool,
}

/// A frame that is received: one of a batch, or one that comes back.
pub(super) trait Source {
    /// Its first bytes.
    fn head(&self) -> &[u8];
    /// Bytes of it.
    fn len(&self) -> usize;
    /// Copies its bytes from `from` on, as many as fit; returns how many.
    fn copy_range(&self, from: usize, to: Bytes<'_>) -> usize;
    /// Its checksum is known to be good.
    fn is_good(&self) -> bool;
}

struct FromBatch<'a> {
    frame: Picked<'a>,
    head: &'a [u8],
    good: bool,
}

impl Source for FromBatch<'_> {
    fn head(&self) -> &[u8] {
        self.head
    }

    fn len(&self) -> usize {
        self.frame.len()
    }

    fn copy_range(&self, from: usize, to: Bytes<'_>) -> usize {
        self.frame.copy_range(from, to)
    }

    fn is_good(&self) -> bool {
        self.good
    }
}

/// A frame in private memory.
pub(super) struct Private<'a>(pub &'a mut [u8]);

impl Source for Private<'_> {
    fn head(&self) -> &[u8] {
        self.0
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_range(&self, from: usize, to: Bytes<'_>) -> usize {
        to.copy_in(self.0.get(from..).unwrap_or_default())
    }

    fn is_good(&self) -> bool {
        false
    }
}

/// What a single frame met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    Delivered,
    Dropped,
    Full,
}

impl Filling {
    pub fn new(queue: usize) -> Self {
        Self { queue, filled: Vec::with_capacity(2 * CHUNK), ..Self::default() }
    }

    /// The ring is another one from now on, or stands elsewhere.
    pub fn forget_ring(&mut self) {
        self.ring = None;
        self.moved = true;
    }

    /// Looks up what has changed; false if the receiver is off.
    #[inline]
    fn prepare(&mut self, core: &Core) -> Result<bool, Fault> {
        let filters = core.filters();
        if self.filters != Some(filters) {
            self.filter = Filter::new(&core.registers, core.member);
            self.filters = Some(filters);
            self.ring = None;
        }
        let registers = &core.registers;
        if !self.filter.enabled || !registers.may_access_memory() || !registers.has_link() {
            return Ok(false);
        }
        let new_block = self.host.notice(core, Way::Receive, self.queue);
        if self.ring.is_none() {
            self.find_ring(core)?;
        }
        if std::mem::take(&mut self.moved) {
            self.host.restart(self.head);
        } else if new_block {
            self.host.publish_head(self.head);
        }
        // Frames that find no buffer are not waited for: no doorbells.
        self.host.wake();
        Ok(true)
    }

    #[cold]
    fn find_ring(&mut self, core: &Core) -> Result<(), Fault> {
        let (registers, words) = (&core.registers, &regs::RX[self.queue & 1]);
        if core.memory.has_failed() {
            return Err(Fault::Memory);
        }
        let bytes = registers.get(words.len);
        let per = self.bytes_per_descriptor();
        (self.size, self.head) = (bytes / per, registers.get(words.head));
        if self.size == 0 {
            // Set up later: there are no buffers.
            self.head = 0;
            return Ok(());
        }
        if self.head >= self.size {
            return Err(Fault::BadIndex);
        }
        let ring = descriptor::ring(&core.memory, registers.address(words.base), bytes);
        self.ring = Some(ring.ok_or(Fault::BadRing)?);
        Ok(())
    }

    fn bytes_per_descriptor(&self) -> u32 {
        if self.filter.split.is_some() {
            2 * descriptor::DESCRIPTOR
        } else {
            descriptor::DESCRIPTOR
        }
    }

    /// Descriptors that the driver has made available.
    #[inline(always)]
    fn available(&self, core: &Core) -> Result<u32, Fault> {
        if self.size == 0 {
            return Ok(0);
        }
        let tail = match self.host.on() {
            Some(host) => host.tail(self.size).map_err(|fault| core.fail_by_block(fault))?,
            None => core.registers.observe(regs::RX[self.queue & 1].tail),
        };
        if tail >= self.size {
            return Err(Fault::BadIndex);
        }
        let ahead = if tail >= self.head { tail - self.head } else { tail + self.size - self.head };
        Ok(ahead.saturating_sub(self.filled.len() as u32))
    }

    /// The descriptor `n` after those that are filled.
    #[inline(always)]
    fn place(&self, n: usize) -> usize {
        let at = self.head as usize + self.filled.len() + n;
        let size = self.size as usize;
        if at >= size { at - size } else { at }
    }

    /// Hands filled descriptors to the driver: the first one last, because a driver goes by it.
    #[inline(always)]
    fn publish(&mut self, registers: &Registers) {
        let (Some(ring), false) = (&self.ring, self.filled.is_empty()) else { return };
        let (size, head) = (self.size as usize, self.head as usize);
        fence(Release);
        for (n, word) in self.filled.iter().enumerate().rev() {
            let at = if head + n >= size { head + n - size } else { head + n };
            if let Some(descriptor) = ring.get(at) {
                if self.filter.extended {
                    descriptor.set_first(0);
                }
                descriptor.publish(*word);
            }
        }
        let head = head + self.filled.len();
        self.head = if head >= size { head - size } else { head } as u32;
        registers.set(regs::RX[self.queue & 1].head, self.head);
        self.host.publish_head(self.head);
        self.filled.clear();
    }

    /// The second word of a descriptor: of `len` bytes, with this status.
    #[inline(always)]
    fn word(&self, len: usize, status: u32, tag: u16) -> u64 {
        let (len, status, tag) = (len as u64 & 0xffff, u64::from(status), u64::from(tag));
        if self.filter.extended {
            status | len << 32 | tag << 48
        } else {
            len | status << 32 | tag << 48
        }
    }

    /// Delivers `list` as far as there are buffers; returns the rest.
    #[inline]
    fn fill<'l>(
        &mut self,
        core: &Core,
        batch: &Batch<'_>,
        list: &'l [FrameIdx],
        limits: Limits,
        tally: &mut Tally,
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

    /// Copies frames into one buffer each, as far as they are so; returns how many are finished.
    #[inline(always)]
    fn fill_singles(
        &mut self,
        core: &Core,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<usize, Fault> {
        if self.filter.tags || self.filter.split.is_some() {
            return Ok(0);
        }
        let available = self.available(core)? as usize;
        let mut found = [Bytes::empty(); CHUNK];
        let count = self.find(core, available.min(list.len()), &mut found);
        let longest = self.filter.longest.min(limits.max_frame as usize);
        let longest = longest.min(self.filter.buffer - self.filter.fcs);
        let requests = batch.any_offload();
        let (mut finished, mut used) = (0, 0);
        for i in list {
            let frame = batch.pick(*i);
            let (len, head) = (frame.len(), batch.head(*i));
            if !(SHORTEST..=longest).contains(&len) {
                break;
            }
            let destination = destination(head);
            if !self.filter.takes(&core.registers, destination) {
                tally.filtered += 1;
                finished += 1;
                continue;
            }
            let Some(room) = found[..count].get(used) else { break };
            if batch.is_long() {
                prefetch_next(batch, list.get(finished + 1), found[..count].get(used + 1));
            }
            frame.copy_to(*room);
            let good = requests && is_good(batch, *i);
            let status = if good { self.checksum_status(head) } else { rx::IXSM };
            let word = self.word(len + self.filter.fcs, rx::DD | rx::EOP | status, 0);
            self.filled.push(word);
            tally.add(len, destination, self.filter.small);
            used += 1;
            finished += 1;
        }
        self.publish(&core.registers);
        Ok(finished)
    }

    /// Finds the next buffers, at most `most`, as far as each is one whole piece of memory, and fetches
    /// them.
    #[inline(always)]
    fn find<'m>(&self, core: &'m Core, most: usize, found: &mut [Bytes<'m>; CHUNK]) -> usize {
        let Some(ring) = &self.ring else { return 0 };
        let mut near = core.memory.near();
        let mut count = 0;
        for found in found.iter_mut().take(most) {
            let Some(descriptor) = ring.get(self.place(count)) else { break };
            let Some(bytes) = buffer(&mut near, descriptor.first(), self.filter.buffer) else {
                break;
            };
            bytes.prefetch_to_write(0);
            bytes.prefetch_to_write(64);
            *found = bytes;
            count += 1;
        }
        count
    }

    /// Delivers or drops frame `i` of a batch, whatever it is like; false if there is no room.
    fn fill_odd(
        &mut self,
        core: &Core,
        batch: &Batch<'_>,
        i: FrameIdx,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<bool, Fault> {
        if batch.wire_len(i) > limits.max_frame as usize {
            tally.too_long += 1;
            return Ok(true);
        }
        let (frame, head) = (batch.pick(i), batch.head(i));
        let source = FromBatch { frame, head, good: is_good(batch, i) };
        let met = self.receive_one(core, &source, tally)?;
        self.publish(&core.registers);
        Ok(met != Met::Full)
    }

    /// Filters a frame and spreads it over as many buffers as it needs.
    fn receive_one(
        &mut self,
        core: &Core,
        source: &impl Source,
        tally: &mut Tally,
    ) -> Result<Met, Fault> {
        let (head, len) = (source.head(), source.len());
        let destination = destination(head);
        let tag = self.filter.tag(head).filter(|_| self.filter.tags);
        let registers = &core.registers;
        if !self.filter.takes_tag(registers, tag) || !self.filter.takes(registers, destination) {
            tally.filtered += 1;
            return Ok(Met::Dropped);
        }
        // A tag makes the longest frame no longer: 1,522 bytes is with one.
        if len > self.filter.longest {
            registers.count(regs::ROC, 1);
            tally.too_long += 1;
            return Ok(Met::Dropped);
        }
        let stripped = tag.filter(|_| self.filter.strip);
        let frame = Shape { source, cut: if stripped.is_some() { 4 } else { 0 } };
        let tag_status = if stripped.is_some() { rx::VP } else { 0 };
        let known = if source.is_good() { self.checksum_status(head) } else { rx::IXSM };
        let status = known | tag_status;
        let written = match self.filter.split {
            Some(sizes) => self.split(core, &frame, sizes, status, stripped.unwrap_or(0))?,
            None => self.spread(core, &frame, status, stripped.unwrap_or(0))?,
        };
        if written {
            tally.add(len, destination, self.filter.small);
        }
        Ok(if written { Met::Delivered } else { Met::Full })
    }

    /// Writes a frame into as many buffers as it takes; false, and nothing filled, if there are too
    /// few. Buffers at address 0 are passed over.
    fn spread(
        &mut self,
        core: &Core,
        frame: &Shape<'_, impl Source>,
        status: u32,
        tag: u16,
    ) -> Result<bool, Fault> {
        let available = self.available(core)?;
        let Some(ring) = self.ring.clone() else { return Ok(false) };
        let (before, total) = (self.filled.len(), frame.len() + self.filter.fcs);
        let mut near = core.memory.near();
        let mut at = 0;
        for _ in 0..available {
            let Some(descriptor) = ring.get(self.place(0)) else { break };
            let address = descriptor.first();
            let here = if address == 0 { 0 } else { self.filter.buffer.min(total - at) };
            if here > 0 {
                let Some(bytes) = near.bytes(address, here as u32) else {
                    self.filled.truncate(before);
                    return Err(Fault::BadAddress);
                };
                frame.copy_range(at, bytes);
                at += here;
            }
            let last = at == total;
            let flags = rx::DD | if last { rx::EOP | status } else { 0 };
            let word = self.word(here, flags, if last { tag } else { 0 });
            self.filled.push(word);
            if last {
                return Ok(true);
            }
        }
        self.filled.truncate(before);
        Ok(false)
    }

    /// Packet split (82574L datasheet, 7.1.10): a descriptor names four buffers, of which header and
    /// payload fill as many as they need. Nothing is split here: all goes to the payload's buffers if
    /// there is no header to be told apart.
    fn split(
        &mut self,
        core: &Core,
        frame: &Shape<'_, impl Source>,
        sizes: [u32; 4],
        status: u32,
        tag: u16,
    ) -> Result<bool, Fault> {
        if self.available(core)? == 0 {
            return Ok(false);
        }
        let Some(ring) = &self.ring else { return Ok(false) };
        let place = 2 * self.place(0);
        let (Some(low), Some(high)) = (ring.get(place), ring.get(place + 1)) else {
            return Ok(false);
        };
        let addresses = [low.first(), low.second(), high.first(), high.second()];
        let total = frame.len() + self.filter.fcs;
        let mut near = core.memory.near();
        let (mut at, mut lengths) = (0, [0u64; 4]);
        for ((address, size), length) in addresses.into_iter().zip(sizes).zip(&mut lengths) {
            let here = (size as usize).min(total - at);
            if here == 0 || address & 1 != 0 || address == 0 {
                continue;
            }
            let bytes = near.bytes(address, here as u32).ok_or(Fault::BadAddress)?;
            frame.copy_range(at, bytes);
            at += here;
            *length = here as u64;
        }
        if at < total {
            // Longer than all buffers of a descriptor: lost, as the chip loses it.
            core.registers.count(regs::ROC, 1);
            return Ok(true);
        }
        high.set_first(lengths[1] << 16 | lengths[2] << 32 | lengths[3] << 48);
        high.publish(0);
        low.set_first(0);
        fence(Release);
        let word = u64::from(rx::DD | rx::EOP | status) | lengths[0] << 32 | u64::from(tag) << 48;
        low.publish(word);
        self.head = if self.head + 1 == self.size { 0 } else { self.head + 1 };
        core.registers.set(regs::RX[self.queue & 1].head, self.head);
        self.host.publish_head(self.head);
        Ok(true)
    }

    /// What is known about the checksums of a frame that was vouched for.
    #[inline(never)]
    fn checksum_status(&self, head: &[u8]) -> u32 {
        let filter = &self.filter;
        if !(filter.report_transport || filter.report_ip) {
            return rx::IXSM;
        }
        let Some(layers) = Layers::of(head) else { return rx::IXSM };
        let ip = match layers.network {
            // Whoever vouched did so for what is inside.
            Network::Ipv4(_) if filter.report_ip => {
                let at = if layers.tag.is_some() { 18 } else { 14 };
                match Ipv4::checksum_ok(head.get(at..).unwrap_or_default()) {
                    true => rx::IPCS,
                    false => return rx::IXSM,
                }
            }
            Network::Ipv4(_) | Network::Ipv6(_) => 0,
            _ => return rx::IXSM,
        };
        let transport = match layers.transport {
            Transport::Tcp(_) => rx::TCPCS,
            Transport::Udp(_) if filter.extended => rx::UDPCS | rx::TCPCS,
            Transport::Udp(_) => rx::TCPCS,
            _ => return rx::IXSM,
        };
        ip | if filter.report_transport { transport } else { 0 }
    }
}

/// A frame as it is written: without its tag, if that is taken off, and padded.
struct Shape<'a, S> {
    source: &'a S,
    /// Bytes of the tag that are left out.
    cut: usize,
}

/// Where a tag lies.
const TAG: usize = 12;

impl<S: Source> Shape<'_, S> {
    fn len(&self) -> usize {
        (self.source.len() - self.cut).max(SHORTEST)
    }

    /// Copies what lies at `from` on; what follows the frame's end is zeros.
    fn copy_range(&self, from: usize, to: Bytes<'_>) {
        let mut done = 0;
        if self.cut > 0 && from < TAG {
            done = self.source.copy_range(from, to.prefix(TAG - from));
        }
        let at = from + done;
        let at = if at >= TAG { at + self.cut } else { at };
        done += self.source.copy_range(at, to.suffix(done));
        to.suffix(done).fill(0);
    }
}

impl Tally {
    #[inline(always)]
    fn add(&mut self, len: usize, destination: u64, small: usize) {
        self.frames += 1;
        self.bytes += len as u64;
        match class(destination) {
            Class::Unicast => {}
            Class::Multicast => self.multicast += 1,
            Class::Broadcast => self.broadcast += 1,
        }
        self.sizes[size_class(len)] += 1;
        self.small |= len + 4 <= small;
    }
}

/// Which of the counters of sizes a frame of `len` bytes, without its check sequence, is counted in.
#[inline(always)]
pub(super) fn size_class(len: usize) -> usize {
    match len + 4 {
        0..=64 => 0,
        more => (more.ilog2() as usize - 5).min(5),
    }
}

/// The destination address that a frame starts with, in the low 48 bits.
#[inline(always)]
pub(super) fn destination(head: &[u8]) -> u64 {
    head.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes) & ADDRESS)
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

fn is_good(batch: &Batch<'_>, i: FrameIdx) -> bool {
    batch.offload(i).flags & Offload::DATA_VALID != 0
}

impl Receive {
    pub fn new(core: &Arc<Core>, queue: usize, counters: Shared<EgressCounters>) -> Self {
        Self { core: Arc::clone(core), queue, counters }
    }

    /// The ring that frames of this queue go to: the driver may use only the first.
    fn ring(&self) -> usize {
        if self.queue == 0 {
            return 0;
        }
        let mut first = self.core.lock(0);
        let filters = self.core.filters();
        if first.filters != Some(filters) {
            first.filter = Filter::new(&self.core.registers, self.core.member);
            first.filters = Some(filters);
            first.ring = None;
        }
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
        let mut tally = Tally::default();
        let filled = filling.fill(core, batch, list, limits, &mut tally);
        let lost = match &filled {
            Ok(left) if !limits.lossless => left.len(),
            _ => 0,
        };
        let left = filling.available(core).unwrap_or(0);
        self.count(&tally, lost);
        let few = filling.size >> filling.filter.threshold_shift;
        let crossed = before > few && left <= few;
        // By the block, the driver says itself when it wants to know.
        let crossed = crossed && filling.host.on().is_none();
        core.note_received(filling.queue, &tally, lost, crossed);
        match filled {
            Ok(left) if lost == 0 => list.len() - left.len(),
            Ok(_) => list.len(),
            Err((fault, left)) => fail(fault, left.len()),
        }
    }

    fn count(&self, tally: &Tally, lost: usize) {
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
    /// Statistics and causes of what was received, but for RXT0, which waits for the time to be known.
    fn note_received(&self, queue: usize, tally: &Tally, lost: usize, crossed: bool) {
        let registers = &self.registers;
        let frames = tally.frames as u32;
        if frames > 0 {
            registers.count(regs::GPRC, frames);
            registers.count(regs::TPR, frames);
            registers.count(regs::MPRC, tally.multicast);
            registers.count(regs::BPRC, tally.broadcast);
            for (class, n) in tally.sizes.iter().enumerate() {
                registers.count(regs::PRC64 + class, *n);
            }
            let octets = tally.bytes + 4 * tally.frames;
            registers.count_octets(regs::GORC, octets);
            registers.count_octets(regs::TOR, octets);
        }
        let mut causes = 0;
        if lost > 0 {
            registers.count(regs::RNBC, lost as u32);
            registers.count(regs::MPC, lost as u32);
            causes |= cause::RXO;
        }
        if crossed {
            causes |= cause::RXDMT0;
        }
        if tally.small {
            causes |= cause::SRPD;
        }
        if causes != 0 {
            let own = if self.member == Member::L82574 { cause::RXQ0 << queue } else { 0 };
            let own = if crossed || tally.small { own } else { 0 };
            let _ = self.raise(causes | own);
        }
        let told = if frames > 0 { RECEIVED } else { 0 } | if causes != 0 { OTHER } else { 0 };
        if told != 0 {
            registers.rx[queue & 1].unsettled.fetch_or(told, AcqRel);
        }
    }

    /// A predecessor may have delivered frames and told nobody.
    pub fn remember_received(&self) {
        for (queue, state) in self.registers.rx.iter().enumerate() {
            if state.unsettled.swap(0, AcqRel) & RECEIVED != 0 {
                let own = if self.member == Member::L82574 { cause::RXQ0 << queue } else { 0 };
                let _ = self.raise(cause::RXT0 | own);
            }
        }
    }

    /// A frame that the device itself sends back to its guest. Counted as received.
    pub fn loop_back(&self, frame: &mut [u8]) -> Result<Met, Fault> {
        let mut filling = self.lock(0);
        let mut tally = Tally::default();
        let met = match filling.prepare(self) {
            Ok(true) => filling.receive_one(self, &Private(frame), &mut tally),
            Ok(false) => Ok(Met::Dropped),
            Err(fault) => Err(fault),
        };
        filling.publish(&self.registers);
        let lost = usize::from(met == Ok(Met::Full));
        self.note_received(0, &tally, lost, false);
        met
    }

    /// True if the driver goes by the shared status block, and wants no interrupt.
    fn is_not_wanted(&self, queue: usize) -> bool {
        let mut filling = self.lock(queue);
        let (head, size) = (filling.head, filling.size);
        filling.host.wants_interrupt(head, size) == Some(false)
    }

    /// Says what was delivered and not said; true if somebody is to ask what is to be raised.
    pub fn settle_received(&self, queue: usize, now: Nanos) -> bool {
        let unsettled = &self.registers.rx[queue & 1].unsettled;
        if unsettled.load(Relaxed) == 0 {
            return false;
        }
        let told = unsettled.swap(0, AcqRel);
        if self.blocks.load(Relaxed) != 0 && self.is_not_wanted(queue) {
            return false;
        }
        let received = told & RECEIVED != 0 && self.received(queue, now);
        received || self.registers.get(regs::ICR) & self.registers.get(regs::IMS) != 0
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

    fn prefetch(&self, nearer: Nearer) {
        match nearer {
            Nearer::Far => shmem::prefetch_all(self),
            Nearer::Near => shmem::prefetch_all(&self.core.filling[self.queue & 1]),
            Nearer::Next => shmem::prefetch(std::ptr::from_ref(&*self.counters).cast()),
        }
    }
}
