//! Gathering: descriptors become frames.

use std::sync::Arc;

use port::{MAX_SEGS, Scratch};
use shmem::{Bytes, Near, Span};

use super::{Gathered, LENT, Transmit, flag};
use crate::e1000::core::Core;
use crate::e1000::filter::{Class, class};
use crate::e1000::offload::{Context, Request};
use crate::e1000::registers::Fault;
use crate::e1000::ring::{Descriptor, tx};
use crate::e1000::table::{self, ctrl};
use crate::model::ring::Place;
use crate::walk::{self, Allowance};

/// The maximum number of frames read together.
const CHUNK: usize = 64;
/// Longest frame that can be lent, with all its segments.
const LONGEST: usize = 0x1_0000 + 256;
/// The maximum number of descriptors read for a frame, contexts included. Drivers use fewer than
/// 64, of 64 KiB.
const MAX_CHAIN: usize = 256;
/// The maximum number of bytes looped back in one turn; the last frame may exceed it.
const MAX_LOOPED: usize = 0x1_0000;
/// The low 48 bits.
const ADDRESS: u64 = 0xffff_ffff_ffff;

/// A frame in guest memory: its pieces, and its requests.
struct Packet<'m> {
    pieces: [Bytes<'m>; MAX_SEGS],
    count: usize,
    len: usize,
    /// The frame is too long, or in more pieces than a frame may have.
    too_much: bool,
    /// The second words of the first and the last descriptor.
    first: Option<u64>,
    last: u64,
    /// How many descriptors were read for the frame.
    read: usize,
}

impl<'m> Packet<'m> {
    fn new() -> Self {
        Self {
            pieces: [Bytes::empty(); MAX_SEGS],
            count: 0,
            len: 0,
            too_much: false,
            first: None,
            last: 0,
            read: 0,
        }
    }

    fn add(&mut self, bytes: Bytes<'m>) {
        if bytes.is_empty() {
            return;
        }
        // One segment stays free for a private header.
        let room = self.count < MAX_SEGS - 1 && self.len + bytes.len() <= LONGEST;
        self.too_much |= !room;
        if room {
            self.pieces[self.count] = bytes;
            self.count += 1;
            self.len += bytes.len();
        }
    }

    /// Adds the buffer of a descriptor. Once the frame is too long, further bytes are not looked
    /// up: they may lie in hundreds of pages.
    fn add_data(&mut self, near: &mut Near<'m>, at: u64, len: u32) -> Result<(), Fault> {
        let empty = len == 0 || self.too_much;
        let len = len.min(LONGEST as u32 + 1);
        if empty || near.for_each_to_read(at, len, |bytes| self.add(bytes)) {
            return Ok(());
        }
        Err(Fault::BadAddress)
    }

    fn pieces(&self) -> &[Bytes<'m>] {
        &self.pieces[..self.count]
    }
}

/// What begins at the ring's next place.
enum Walked {
    /// A frame: the place after it, and the contexts that were current at its start.
    Frame(u32, [Context; 2]),
    /// A frame without an end. Contexts before it end at `contexts_end`. `endless` says that it has
    /// used up its descriptors; otherwise more are missing.
    Unfinished { contexts_end: u32, endless: bool },
}

/// What was done with the descriptors at the ring's next place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A frame was taken, or a placeholder for one.
    Frame,
    /// The ring has no complete frame, or nothing at all.
    Nothing,
}

impl Transmit {
    /// Gathers up to `max` frames. On a fault, the frames before it are kept.
    #[inline]
    pub(super) fn collect(
        &mut self,
        scratch: &mut Scratch,
        max: usize,
        tail: u32,
    ) -> Result<(), Fault> {
        let core = Arc::clone(&self.core);
        let Some(ring) = self.ring.clone() else { return Ok(()) };
        let max = max.min(scratch.capacity()).min(LENT);
        let vet = tags(&core);
        let mut allowance = Allowance::new();
        while scratch.len() < max && scratch.has_room() && self.next != tail {
            let before = scratch.len();
            self.collect_plain(&core, &ring, scratch, max, tail, vet);
            if scratch.len() == before {
                let step = self.collect_packet(&core, &ring, scratch, tail, vet, &mut allowance)?;
                if step == Step::Nothing || allowance.is_spent() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Gathers frames of one descriptor each that ask for nothing. Stops at any other frame, and at
    /// the ring's end.
    #[inline(always)]
    fn collect_plain(
        &mut self,
        core: &Core,
        ring: &[Descriptor],
        scratch: &mut Scratch,
        max: usize,
        tail: u32,
        vet: Option<u16>,
    ) {
        let end = if tail > self.next { tail } else { self.size };
        let run = self.next as usize..end as usize;
        let descriptors = ring.get(run.clone()).unwrap_or_default().iter();
        let flags = self.flags.get_mut(run).unwrap_or_default().iter_mut();
        let mut near = core.memory.near();
        let tagged = if vet.is_some() { tx::VLE } else { 0 };
        let before = scratch.len();
        let (tally, mut last) = (&mut self.tally, self.next);
        let (ends, mut number) = (&mut self.ends, self.gathered);
        let mut found = [Bytes::empty(); CHUNK];
        let items = descriptors.zip(flags).zip(&mut found);
        scratch.push_all(max.min(before + CHUNK), items, |((descriptor, flags), found)| {
            walk::note(1);
            let second = descriptor.second();
            let len = is_plain(second, tagged)?;
            *found = near.bytes(descriptor.first(), len)?;
            *flags = flags_of(second);
            last = last.wrapping_add(1);
            ends[number & (LENT - 1)] = last;
            number = number.wrapping_add(1);
            tally.add(len as usize);
            Some(*found)
        });
        let frames = scratch.len() - before;
        found[..frames].iter().for_each(|bytes| self.tally.add_kind(*bytes, 1));
        self.gathered += frames;
        if last >= self.size {
            self.ends[(self.gathered - 1) & (LENT - 1)] = 0;
            last = 0;
        }
        self.next = last;
    }

    /// Gathers one frame of any kind, or finds the fault.
    fn collect_packet(
        &mut self,
        core: &Core,
        ring: &[Descriptor],
        scratch: &mut Scratch,
        tail: u32,
        vet: Option<u16>,
        allowance: &mut Allowance,
    ) -> Result<Step, Fault> {
        let mut packet = Packet::new();
        let walked = self.walk(core, ring, tail, &mut packet)?;
        allowance.charge(packet.read, packet.len);
        let (end, context) = match walked {
            Walked::Frame(end, context) => (end, context),
            Walked::Unfinished { contexts_end, endless } => {
                return self.leave_unfinished(scratch, tail, contexts_end, endless);
            }
        };
        let request = Request::new(packet.first.unwrap_or(0), packet.last, &context, vet);
        self.push(scratch, &packet, &request);
        self.lend(end);
        Ok(Step::Frame)
    }

    /// Reads the descriptors of a frame. Takes the contexts before it.
    fn walk<'m>(
        &mut self,
        core: &'m Core,
        ring: &[Descriptor],
        tail: u32,
        packet: &mut Packet<'m>,
    ) -> Result<Walked, Fault> {
        let mut near = core.memory.near();
        let contexts = &core.registers.tx[self.queue].contexts;
        let mut begun = [Context::load(&contexts[0]), Context::load(&contexts[1])];
        let (mut at, mut contexts_end) = (self.next, self.next);
        while at != tail && packet.read < MAX_CHAIN {
            let Some(descriptor) = ring.get(at as usize) else { break };
            walk::note(1);
            packet.read += 1;
            let (first, second) = (descriptor.first(), descriptor.second());
            if let Some(flags) = self.flags.get_mut(at as usize) {
                *flags = flags_of(second);
            }
            at = self.after(at);
            if second & (tx::DEXT | tx::DTYP) == tx::DEXT {
                let kind = usize::from(second & tx::TSE != 0);
                let context = Context::new(first, second);
                context.store(&contexts[kind]);
                if packet.first.is_none() {
                    begun[kind] = context;
                    contexts_end = at;
                }
                continue;
            }
            packet.first.get_or_insert(second);
            packet.last = second;
            packet.add_data(&mut near, first, data_len(second))?;
            if second & tx::EOP != 0 {
                return Ok(Walked::Frame(at, begun));
            }
        }
        Ok(Walked::Unfinished { contexts_end, endless: packet.read == MAX_CHAIN })
    }

    /// Handles a frame without an end. Contexts at the ring's next place, up to `contexts_end`, are
    /// done all the same.
    #[cold]
    fn leave_unfinished(
        &mut self,
        scratch: &mut Scratch,
        tail: u32,
        contexts_end: u32,
        endless: bool,
    ) -> Result<Step, Fault> {
        if contexts_end != self.next {
            // An empty frame must represent the contexts, or their completion would not be
            // reported.
            scratch.push(Span::EMPTY);
            self.lend(contexts_end);
            return Ok(Step::Frame);
        }
        let waiting = Place { at: self.next, len: self.size }.distance(tail);
        if endless || waiting + 1 >= self.size {
            return Err(Fault::EndlessFrame);
        }
        self.unfinished = Some(tail);
        Ok(Step::Nothing)
    }

    /// Notes that the last pushed frame ends before the descriptor `end`.
    pub(super) fn lend(&mut self, end: u32) {
        self.ends[self.gathered & (LENT - 1)] = end;
        self.gathered += 1;
        self.next = end;
    }

    /// Adds a frame with its requests. A frame that is empty or too long gets no bytes, so that it
    /// counts as a runt.
    fn push(&mut self, scratch: &mut Scratch, packet: &Packet<'_>, request: &Request) {
        if packet.len == 0 || packet.too_much {
            scratch.push(Span::EMPTY);
            return;
        }
        let pieces = packet.pieces();
        let finished = self.headers.finish(pieces, packet.len, request);
        let mut count = 0;
        let mut skip = finished.replaces;
        if let Some(header) = finished.header {
            scratch.push_segment(header);
            count += 1;
        }
        for piece in pieces {
            let rest = piece.suffix(skip);
            skip -= piece.len() - rest.len();
            if !rest.is_empty() {
                rest.prefetch();
                scratch.push_segment(rest.span());
                count += 1;
            }
        }
        scratch.end_frame(count, finished.len);
        if let Some(offload) = finished.offload {
            scratch.set_offload(offload);
        }
        let repeated = u64::from(finished.segments - 1) * u64::from(finished.header_len);
        self.tally.frames += finished.segments;
        self.tally.bytes += finished.len as u64 + repeated;
        self.tally.segmented += u32::from(finished.segments > 1);
        self.tally.sizes[table::size_class(finished.longest)] += finished.segments;
        if let Some(first) = pieces.first() {
            self.tally.add_kind(*first, finished.segments);
        }
    }

    /// Loops frames back to their guest. An empty frame represents each in the batch.
    #[cold]
    pub(super) fn loop_back(
        &mut self,
        scratch: &mut Scratch,
        max: usize,
        tail: u32,
    ) -> Result<(), Fault> {
        let core = Arc::clone(&self.core);
        let Some(ring) = self.ring.clone() else { return Ok(()) };
        let vet = tags(&core);
        let (mut allowance, mut looped) = (Allowance::new(), 0);
        for _ in 0..max.min(scratch.capacity()) {
            let enough = allowance.is_spent() || looped >= MAX_LOOPED;
            if enough || self.next == tail || !scratch.has_room() {
                break;
            }
            let mut packet = Packet::new();
            let walked = self.walk(&core, &ring, tail, &mut packet)?;
            allowance.charge(packet.read, packet.len);
            looped += packet.len;
            let (end, context) = match walked {
                Walked::Frame(end, context) => (end, context),
                Walked::Unfinished { contexts_end, endless } => {
                    self.leave_unfinished(scratch, tail, contexts_end, endless)?;
                    break;
                }
            };
            let request = Request::new(packet.first.unwrap_or(0), packet.last, &context, vet);
            if !packet.too_much && packet.len > 0 {
                self.looped.clear();
                if self.headers.assemble(packet.pieces(), packet.len, &request, &mut self.looped) {
                    core.loop_back(&mut self.looped)?;
                }
            }
            scratch.push(Span::EMPTY);
            self.lend(end);
        }
        Ok(())
    }
}

impl Gathered {
    #[inline(always)]
    fn add(&mut self, len: usize) {
        let class = &mut self.sizes[table::size_class(len)];
        *class = class.wrapping_add(1);
        self.frames = self.frames.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(len as u64);
    }

    /// Counts frames by their kind of destination address. The guest may change the address
    /// meanwhile, so the result serves only statistics.
    #[inline(always)]
    fn add_kind(&mut self, first: Bytes<'_>, frames: u32) {
        match class(first.read::<u64>(0).map_or(0, u64::from_le) & ADDRESS) {
            Class::Unicast => {}
            Class::Multicast => self.multicast += frames,
            Class::Broadcast => self.broadcast += frames,
        }
    }
}

/// The ethertype of inserted tags, if tags are inserted (CTRL.VME).
fn tags(core: &Core) -> Option<u16> {
    let registers = &core.registers;
    (registers.get(table::CTRL) & ctrl::VME != 0).then(|| registers.get(table::VET) as u16)
}

/// The bits of a transmit descriptor that the model remembers.
#[inline(always)]
pub(super) fn flags_of(second: u64) -> u8 {
    let report = if second & (tx::RS | tx::RPS) != 0 { flag::REPORT } else { 0 };
    report | if second & tx::IDE != 0 { flag::DELAY } else { 0 }
}

/// The buffer length of a descriptor that is no context.
pub(in crate::e1000) fn data_len(second: u64) -> u32 {
    if second & tx::DEXT != 0 { second as u32 & 0xf_ffff } else { second as u32 & 0xffff }
}

/// The length of a frame of one descriptor that asks for nothing; otherwise `None`.
#[inline(always)]
fn is_plain(second: u64, tagged: u64) -> Option<u32> {
    let legacy = second & (tx::DEXT | tx::EOP | tx::IC | tagged) == tx::EOP;
    let odd = tx::TSE | tx::IXSM | tx::TXSM | tagged;
    let data = second & (tx::DEXT | tx::DTYP | tx::EOP | odd) == tx::DEXT | tx::DATA | tx::EOP;
    let len = data_len(second);
    ((legacy || data) && len > 0 && len <= 0xffff).then_some(len)
}
