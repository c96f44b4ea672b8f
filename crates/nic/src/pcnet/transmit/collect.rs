//! Frames in the ring: found, lent to the switch, or finished here.

use port::{DropReason, MAX_SEGS, Nanos, Scratch};
use shmem::{Bytes, Near, Span};

use super::super::core::Core;
use super::super::filter::frame_check;
use super::super::receive::{CHECK, SHORTEST};
use super::super::registers::{Fault, Position, csr, features, masks, mode, status};
use super::super::ring::{Ring, Style, bits, errors};
use super::{LONGEST_LOOPED, Look, PATIENCE_NS, Transmit};
use crate::walk;

/// The maximum number of descriptors read for a frame: twice as many as a sent frame may have.
const MAX_CHAIN: u32 = 128;
/// The maximum number of descriptors, and looped-back bytes, that one turn finishes without the
/// switch. The last frame may exceed them.
const MAX_ABSORBED: u32 = 256;
const MAX_LOOPED: usize = 0x1_0000;
/// Bytes of the longest frame that is not a babble error, with its check sequence (Am79C970A,
/// "CSR0", BABL).
const NO_BABBLE: usize = 1518;

/// What begins at a descriptor of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The driver owns it.
    Nothing,
    /// A complete frame, with its number of descriptors and bytes.
    Whole(u32, usize),
    /// A frame without an end so far, with its number of descriptors.
    Partial(u32),
    /// A frame without an end, with its number of descriptors; its time is over.
    Endless(u32),
    /// Not the first descriptor of a frame.
    Stray,
}

impl Transmit {
    /// Gathers frames, as long as there are any.
    #[inline]
    pub(super) fn collect(
        &mut self,
        core: &Core,
        ring: &Ring,
        place: &mut Position,
        scratch: &mut Scratch,
        max: usize,
        now: Nanos,
    ) -> Result<Look, Fault> {
        let rules = Rules::new(core, ring.style);
        let mut near = core.memory.near();
        let mut skipped = 0;
        while scratch.len() < max && scratch.has_room() && !self.lent.is_full() {
            let found = self.find(ring, *place);
            match found {
                Found::Nothing => return Ok(Look::Dry),
                Found::Whole(count, len) => {
                    self.push(&mut near, scratch, &rules, len)?;
                    self.lent.push(count);
                    place.lent = place.lent.wrapping_add(count);
                    place.at = ring.after(place.at, count);
                    self.incomplete = None;
                }
                // The controller must give this descriptor back itself, but only when no earlier
                // frame is lent.
                _ if place.lent > 0 => return Ok(Look::More),
                Found::Stray if skipped < MAX_ABSORBED => {
                    skipped += 1;
                    self.give_back(ring, place, 1, None);
                }
                Found::Stray => return Ok(Look::More),
                found => return Ok(self.wait_or_fail(ring, place, found, now)),
            }
        }
        Ok(Look::More)
    }

    /// Finds what begins at the next descriptor. Puts a frame's buffers into `pieces`, as far as it
    /// may have them.
    #[inline(always)]
    fn find(&mut self, ring: &Ring, place: Position) -> Found {
        self.pieces.clear();
        let (mut at, mut count, mut len) = (place.at, 0u32, 0usize);
        loop {
            if place.lent.wrapping_add(count) >= ring.len {
                return if place.lent == 0 { Found::Endless(count) } else { Found::Nothing };
            }
            walk::note(1);
            let Some(descriptor) = ring.take(at) else {
                return if count == 0 { Found::Nothing } else { Found::Partial(count) };
            };
            if count == 0 && descriptor.status & bits::STP == 0 {
                return Found::Stray;
            }
            if self.pieces.len() < MAX_SEGS {
                self.pieces.push(descriptor);
            }
            count = count.wrapping_add(1);
            len = len.wrapping_add(descriptor.len as usize);
            if descriptor.status & bits::ENP != 0 {
                return Found::Whole(count, len);
            }
            if count == MAX_CHAIN {
                return Found::Endless(count);
            }
            at = ring.next(at);
        }
    }

    /// Adds the frame in `pieces`, which has `len` bytes.
    #[inline(always)]
    fn push(
        &mut self,
        near: &mut Near<'_>,
        scratch: &mut Scratch,
        rules: &Rules,
        len: usize,
    ) -> Result<(), Fault> {
        if let [one] = &self.pieces[..]
            && !rules.touches(one.status, len)
            && let Some(bytes) = near.bytes_to_read(one.address.into(), one.len)
        {
            scratch.push(bytes.span());
            if len > NO_BABBLE - CHECK {
                self.core.registers.raise(status::BABL);
            }
            return Ok(());
        }
        self.push_pieces(near, scratch, rules, len)
    }

    #[inline(never)]
    fn push_pieces(
        &mut self,
        near: &mut Near<'_>,
        scratch: &mut Scratch,
        rules: &Rules,
        len: usize,
    ) -> Result<(), Fault> {
        let first = self.pieces.first().map_or(0, |first| first.status);
        let body = if rules.strips_check(first, len) { len.saturating_sub(CHECK) } else { len };
        let mut frame = Segments::default();
        for piece in &self.pieces {
            let want = (piece.len as usize).min(body.saturating_sub(frame.len)) as u32;
            let added = |bytes: Bytes<'_>| frame.add(scratch, bytes.span());
            if want > 0 && !near.for_each_to_read(piece.address.into(), want, added) {
                scratch.abandon_segments(frame.count);
                return Err(Fault::Buffer);
            }
        }
        if rules.pad && len < SHORTEST {
            let zeros = Bytes::of(&mut self.zeros[len..]);
            frame.add(scratch, zeros.span());
        }
        if len + CHECK > NO_BABBLE {
            self.core.registers.raise(status::BABL);
        }
        if frame.overflow || frame.len < body {
            // The frame has too many pieces. It gets no bytes, so that it counts as a runt.
            scratch.abandon_segments(frame.count);
            scratch.push_segment(Span::EMPTY);
            scratch.end_frame(1, 0);
        } else {
            scratch.end_frame(frame.count, frame.len);
        }
        Ok(())
    }

    /// Handles a frame without an end. Its driver may be about to write it; otherwise it is an
    /// underflow (Am79C970A, "TMD2", BUFF and UFLO).
    #[cold]
    fn wait_or_fail(
        &mut self,
        ring: &Ring,
        place: &mut Position,
        found: Found,
        now: Nanos,
    ) -> Look {
        let count = match found {
            Found::Partial(count) => {
                let since = match self.incomplete {
                    Some((at, since)) if at == place.at => since,
                    _ => now,
                };
                self.incomplete = Some((place.at, since));
                if now - since < PATIENCE_NS {
                    return Look::Dry;
                }
                count
            }
            Found::Endless(count) => count,
            _ => return Look::Dry,
        };
        self.incomplete = None;
        self.give_back(ring, place, count, Some(errors::BUFF | errors::UFLO));
        let registers = &*self.core.registers;
        registers.raise(status::TINT);
        if registers.csr(csr::MASKS) & masks::DXSUFLO == 0 {
            registers.change_status(status::TXON, 0);
        }
        Look::More
    }

    /// Gives the next `count` descriptors back at once, the last with the errors in `failed`.
    fn give_back(&self, ring: &Ring, place: &mut Position, count: u32, failed: Option<u16>) {
        for left in (0..count).rev() {
            match failed {
                Some(errors) if left == 0 => ring.give_back_failed(place.at, errors),
                _ => ring.give_back(place.at),
            }
            place.at = ring.next(place.at);
        }
    }

    /// Finishes frames that go nowhere, or back to their sender.
    #[cold]
    pub(super) fn absorb(
        &mut self,
        core: &Core,
        ring: &Ring,
        place: &mut Position,
        now: Nanos,
    ) -> Result<Look, Fault> {
        if place.lent > 0 {
            return Ok(Look::More);
        }
        let (mut absorbed, mut looped) = (0, 0);
        while absorbed < MAX_ABSORBED && looped < MAX_LOOPED {
            absorbed += 1;
            match self.find(ring, *place) {
                Found::Nothing => return Ok(Look::Dry),
                Found::Stray => self.give_back(ring, place, 1, None),
                Found::Whole(count, len) => {
                    absorbed += count - 1;
                    looped += len.min(LONGEST_LOOPED);
                    let failed = self.finish_here(core, ring.style, len)?;
                    self.give_back(ring, place, count, failed);
                    self.incomplete = None;
                    core.registers.raise(status::TINT);
                }
                found => return Ok(self.wait_or_fail(ring, place, found, now)),
            }
        }
        Ok(Look::More)
    }

    /// Finishes the frame in `pieces`, which does not leave. Returns the errors for its driver.
    fn finish_here(&mut self, core: &Core, style: Style, len: usize) -> Result<Option<u16>, Fault> {
        let registers = &*core.registers;
        if len + CHECK > NO_BABBLE {
            registers.raise(status::BABL);
        }
        if !self.looped {
            self.counters.frames.add(1);
            self.counters.bytes.add(len as u64);
            self.counters.drop_frames(DropReason::Down, 1);
            registers.raise(status::CERR);
            return Ok(Some(errors::LCAR));
        }
        let (mut near, mut at) = (core.memory.near(), 0);
        let Self { pieces, private, .. } = self;
        for piece in pieces.iter() {
            let copy = |bytes: Bytes<'_>| {
                at += bytes.copy_out(private.get_mut(at..).unwrap_or_default());
            };
            if !near.for_each_to_read(piece.address.into(), piece.len, copy) {
                return Err(Fault::Buffer);
            }
        }
        if at < len {
            // Longer than the controller loops back.
            return Ok(None);
        }
        let rules = Rules::new(core, style);
        let first = pieces.first().map_or(0, |first| first.status);
        let (mut body, mut brought) = (len, None);
        if rules.strips_check(first, len) {
            body = len.saturating_sub(CHECK);
            brought = private[body..].first_chunk::<CHECK>().copied();
        } else if rules.pad && len < SHORTEST {
            private[len..SHORTEST].fill(0);
            body = SHORTEST;
        }
        let frame = &private[..body];
        let check = brought.unwrap_or_else(|| frame_check(frame));
        core.lock().loop_back(core, frame, check);
        Ok(None)
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
    fn add(&mut self, scratch: &mut Scratch, bytes: Span) {
        self.overflow |= self.count == MAX_SEGS;
        if !self.overflow {
            scratch.push_segment(bytes);
            self.count += 1;
            self.len += bytes.len();
        }
    }
}

/// How to treat padding and check sequence at a frame's end.
struct Rules {
    /// Short frames are padded.
    pad: bool,
    /// Frames include their own check sequence, unless the descriptor specifies otherwise.
    brings_check: bool,
    ilacc: bool,
}

impl Rules {
    fn new(core: &Core, style: Style) -> Self {
        let registers = &*core.registers;
        Self {
            pad: registers.csr(csr::FEATURES) & features::APAD_XMT != 0,
            brings_check: registers.csr(csr::MODE) & mode::DXMTFCS != 0,
            ilacc: style == Style::Long { ilacc: true },
        }
    }

    /// True if bytes must be added to a frame, or removed.
    #[inline(always)]
    fn touches(&self, first: u16, len: usize) -> bool {
        self.pad && len < SHORTEST || self.strips_check(first, len)
    }

    /// True if the last bytes of a frame with this status are its check sequence, to be removed.
    /// Padding needs a new one (Am79C970A, "CSR4", APAD_XMT).
    #[inline(always)]
    fn strips_check(&self, first: u16, len: usize) -> bool {
        let says = first & bits::ADD_FCS != 0;
        let brings =
            if self.ilacc { self.brings_check || says } else { self.brings_check && !says };
        brings && !(self.pad && len < SHORTEST + CHECK)
    }
}
