//! Sending: slots are lent to be filled.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use frame::Offload;
use shmem::{Bytes, Mapping};

use crate::layout::{Fault, MAX_FRAGS, SlotWord, advance, next, slot_flags};
use crate::queue::{View, buffer};
use crate::{Buffer, Received, ReceivedSlot};

/// How many slots ahead [`Outgoing::fill`] prefetches.
const AHEAD: usize = 12;

/// Free slots of a send ring, lent to be filled. The next [`Port::flush`](crate::Port::flush) sends
/// the filled ones.
#[derive(Debug)]
pub struct Outgoing<'a> {
    view: Option<&'a View>,
    head: &'a mut u32,
    fault: &'a mut Option<Fault>,
    /// A copy of `head` that can stay in a register, because no function out of line gets a
    /// reference to it.
    at: u32,
    left: u32,
}

impl<'a> Outgoing<'a> {
    #[inline(always)]
    pub(crate) fn new(
        view: &'a View,
        head: &'a mut u32,
        fault: &'a mut Option<Fault>,
        left: u32,
    ) -> Self {
        Self { view: Some(view), at: *head, head, fault, left }
    }

    /// No slots: the port has no such ring.
    pub(crate) fn none(nowhere: &'a mut u32, fault: &'a mut Option<Fault>) -> Self {
        Self { view: None, at: 0, head: nowhere, fault, left: 0 }
    }

    /// Slots that are still free.
    #[inline(always)]
    #[must_use]
    pub fn room(&self) -> usize {
        self.left as usize
    }

    /// Bytes that a slot takes.
    #[inline(always)]
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.view.map_or(0, |view| usize::from(view.usable))
    }

    /// The window of the free slot `ahead` slots after the next one. The slot stays free.
    #[inline]
    #[must_use]
    pub fn window(&self, ahead: usize) -> Option<Bytes<'a>> {
        let view = self.view.filter(|_| ahead < self.left as usize)?;
        let at = advance(self.at, ahead as u32, view.slots);
        view.buffer(view.load(at).buf, u32::from(view.usable))
    }

    /// Lends the next free slot, or `None` if there is no room.
    #[inline(always)]
    pub fn slot(&mut self) -> Option<SendSlot<'_>> {
        let view = self.view.filter(|_| self.left > 0)?;
        let word = SlotWord { buf: view.load(self.at).buf, len: 0, flags: 0 };
        let Some(window) = view.buffer(word.buf, u32::from(view.usable)) else {
            // An invalid buffer in a free slot means that the other side has written to it.
            (*self.fault, self.left) = (Some(Fault::BadBuffer), 0);
            return None;
        };
        Some(SendSlot {
            view,
            head: self.head,
            at: &mut self.at,
            left: &mut self.left,
            word,
            window,
        })
    }

    /// Copies a frame in, over as many slots as it needs. Returns false, and sends nothing, if
    /// there is no room, or if the frame is empty or needs more than [`MAX_FRAGS`] slots.
    #[inline]
    pub fn push(&mut self, frame: &[u8]) -> bool {
        if frame.is_empty() || frame.len() > self.slot_bytes() {
            return self.push_long(frame);
        }
        let Some(mut slot) = self.slot() else { return false };
        slot.window().copy_in(frame);
        slot.set_len(frame.len());
        true
    }

    /// Sends a frame of `len` bytes, given as `pieces`, with an offload request, over as many slots
    /// as it needs. Returns false, and sends nothing, if there is no room, if the frame is empty or
    /// needs more than [`MAX_FRAGS`] slots, or if the port does not carry the request
    /// ([`Port::offloads`](crate::Port::offloads)).
    #[inline]
    pub fn gather<'p>(
        &mut self,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        len: usize,
        offload: Offload,
    ) -> bool {
        let Some(view) = self.view.filter(|view| view.offloads.takes(&offload)) else {
            return false;
        };
        let slots = len.div_ceil(self.slot_bytes().max(1));
        if !(1..=MAX_FRAGS.min(self.left as usize)).contains(&slots) {
            return false;
        }
        let mut flags = 0;
        if offload != Offload::NONE && view.offloads.checksum {
            view.ring.slots[self.at as usize].ptr.store(offload.to_word(), Relaxed);
            flags = slot_flags::OFFLOAD;
        }
        let mut from = Pieces { rest: pieces.into_iter(), piece: &[], left: len };
        for number in 0..slots {
            let buf = view.load(self.at).buf;
            let window = view.buffer(buf, u32::from(view.usable)).unwrap_or(EMPTY);
            let len = from.fill(window) as u16;
            flags |= if number + 1 < slots { slot_flags::MOREFRAG } else { 0 };
            view.store(self.at, SlotWord { buf, len, flags });
            (self.at, flags) = (next(self.at, view.slots), 0);
        }
        *self.head = self.at;
        self.left -= slots as u32;
        true
    }

    #[inline]
    fn push_long(&mut self, frame: &[u8]) -> bool {
        let slots = self.view.map_or(0, |view| cut(view, self.at, self.left, frame));
        self.at = self.view.map_or(self.at, |view| advance(self.at, slots, view.slots));
        *self.head = self.at;
        self.left -= slots;
        slots > 0
    }

    /// Sends up to `max` frames of one slot each. `fill` writes each frame into the window it gets,
    /// and returns its length; 0 ends the run. Returns how many were filled.
    ///
    /// The fastest way to send: each slot costs one load, one store and a prefetch of a later slot.
    #[inline(always)]
    pub fn fill(&mut self, max: usize, fill: impl FnMut(Bytes<'_>) -> usize) -> usize {
        match self.view {
            Some(view) if view.far => self.fill_slots::<true>(view, max, fill),
            Some(view) => self.fill_slots::<false>(view, max, fill),
            None => 0,
        }
    }

    /// As [`fill`](Self::fill). `FAR` prefetches slots and buffers before they are filled. Another
    /// core has read them, and each store would wait for their cache lines.
    #[inline(always)]
    fn fill_slots<const FAR: bool>(
        &mut self,
        view: &View,
        max: usize,
        mut fill: impl FnMut(Bytes<'_>) -> usize,
    ) -> usize {
        let (mut at, mut done) = (self.at, 0);
        let (slots, usable) = (&view.ring.slots[..], view.usable);
        let (max, buffers) = (max.min(self.left as usize) as u32, view.buffers());
        while done < max {
            let slot = &slots[at as usize];
            if FAR && let Some(soon) = slots.get(at as usize + AHEAD) {
                shmem::prefetch_to_write(std::ptr::from_ref(soon).cast());
                let window = buffer(buffers, soon.load().buf, u32::from(usable));
                window.inspect(|window| window.prefetch_to_write(0));
            }
            let buf = slot.load().buf;
            let Some(window) = buffer(buffers, buf, u32::from(usable)) else {
                *self.fault = Some(Fault::BadBuffer);
                break;
            };
            let len = fill(window).min(usize::from(usable));
            if len == 0 {
                break;
            }
            slot.store(SlotWord { buf, len: len as u16, flags: 0 });
            at = next(at, slots.len() as u32);
            done += 1;
        }
        (self.at, *self.head) = (at, at);
        self.left -= done;
        done as usize
    }

    /// Forwards a received frame. If both rings are in one region, its buffers are exchanged for
    /// those of the slots; otherwise its bytes are copied. An empty frame is not sent. The offload
    /// request goes along.
    ///
    /// # Errors
    /// Returns the frame, and sends nothing, if there is no room, or if this port does not carry
    /// its [offload request](Received::offload).
    #[inline]
    pub fn forward<'r>(&mut self, mut frame: Received<'r>) -> Result<(), Received<'r>> {
        let several = frame.slot_count() > 1 || frame.flags() & slot_flags::OFFLOAD != 0;
        if several || frame.len() > self.slot_bytes() {
            return self.forward_long(frame);
        }
        let len = frame.len();
        let Some(mut slot) = self.slot() else { return Err(frame) };
        if slot.swap(&mut frame).is_err() {
            frame.window().copy_to(slot.window());
        }
        slot.set_len(len);
        Ok(())
    }

    #[cold]
    fn forward_long<'r>(&mut self, frame: Received<'r>) -> Result<(), Received<'r>> {
        let (slots, bytes) = (frame.slot_count(), self.slot_bytes());
        let same = self.view.is_some_and(|view| Arc::ptr_eq(view.mapping(), frame.mapping()));
        let fits = |slot: ReceivedSlot<'_>| !slot.is_empty() && slot.len() <= bytes;
        let offload = frame.offload();
        if !self.view.is_some_and(|view| view.offloads.takes(&offload)) {
            return Err(frame);
        }
        if !same || !frame.slots().all(fits) {
            // If the sizes of buffers differ, or the frame's pieces fill them differently, the
            // frame is copied, and divided again.
            let bytes = frame.to_vec();
            let sent = self.gather([&bytes[..]], bytes.len(), offload);
            return if sent || bytes.is_empty() { Ok(()) } else { Err(frame) };
        }
        if slots > self.room() {
            return Err(frame);
        }
        for (i, mut from) in frame.slots().enumerate() {
            if let Some(mut to) = self.slot() {
                let swapped = to.swap(&mut from);
                debug_assert!(swapped.is_ok(), "both are in one mapping");
                to.set_len(from.len());
                to.set_more(i + 1 < slots);
                if i == 0 {
                    to.set_offload(offload);
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a frame that are not copied yet.
struct Pieces<'p, I> {
    rest: I,
    piece: &'p [u8],
    left: usize,
}

impl<'p, I: Iterator<Item = &'p [u8]>> Pieces<'p, I> {
    /// Fills a slot with the next bytes. Returns how many there were.
    #[inline]
    fn fill(&mut self, window: Bytes<'_>) -> usize {
        let (mut done, most) = (0, self.left.min(window.len()));
        while done < most {
            if self.piece.is_empty() {
                let Some(piece) = self.rest.next() else { break };
                self.piece = piece;
            }
            let (now, later) = self.piece.split_at(self.piece.len().min(most - done));
            done += window.suffix(done).copy_in(now);
            self.piece = later;
        }
        self.left -= done;
        done
    }
}

/// Copies a frame to the slots from `at` on. Returns how many it took; 0 if it does not fit in
/// `left` slots.
#[cold]
#[inline(never)]
fn cut(view: &View, mut at: u32, left: u32, frame: &[u8]) -> u32 {
    let bytes = usize::from(view.usable.max(1));
    let slots = frame.len().div_ceil(bytes);
    if slots > MAX_FRAGS || slots > left as usize {
        return 0;
    }
    for (i, piece) in frame.chunks(bytes).enumerate() {
        let buf = view.load(at).buf;
        let window = view.buffer(buf, u32::from(view.usable)).unwrap_or(EMPTY);
        let flags = if i + 1 < slots { slot_flags::MOREFRAG } else { 0 };
        view.store(at, SlotWord { buf, len: window.copy_in(piece) as u16, flags });
        at = next(at, view.slots);
    }
    slots as u32
}

/// A window of no bytes.
pub(crate) const EMPTY: Bytes<'static> = Bytes::empty();

/// Buffers that are not in one mapping of one region cannot be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("The two buffers are in different regions; open both ports in one Region, or copy")]
pub struct OtherRegion;

mod sealed {
    pub trait Sealed {}
}

/// A holder of a buffer that can be exchanged: a slot to send, a received slot or frame (its first
/// slot), a [`Buffer`].
pub trait Lent: sealed::Sealed {
    #[doc(hidden)]
    fn mapping(&self) -> &Arc<Mapping>;
    #[doc(hidden)]
    fn number(&self) -> u32;
    #[doc(hidden)]
    fn set_number(&mut self, number: u32);
}

/// A free slot to fill. It is sent if it gets a length; otherwise it stays free.
#[derive(Debug)]
pub struct SendSlot<'o> {
    view: &'o View,
    head: &'o mut u32,
    at: &'o mut u32,
    left: &'o mut u32,
    word: SlotWord,
    window: Bytes<'o>,
}

impl<'o> SendSlot<'o> {
    /// The bytes of the slot's buffer that may be filled.
    #[inline(always)]
    #[must_use]
    pub fn window(&self) -> Bytes<'o> {
        self.window
    }

    /// Sets how many bytes the slot sends, at most those of the window.
    #[inline(always)]
    pub fn set_len(&mut self, len: usize) {
        self.word.len = len.min(usize::from(self.view.usable)) as u16;
    }

    /// Sets whether the frame continues in the next slot. An incomplete frame is not sent.
    #[inline(always)]
    pub fn set_more(&mut self, more: bool) {
        self.word.flags &= !slot_flags::MOREFRAG;
        self.word.flags |= if more { slot_flags::MOREFRAG } else { 0 };
    }

    /// Sets the offload request of the frame whose first slot this is. Returns false, and sets
    /// none, if the port does not carry the request ([`Port::offloads`](crate::Port::offloads)).
    #[inline]
    pub fn set_offload(&mut self, offload: Offload) -> bool {
        self.word.flags &= !(slot_flags::OFFLOAD | slot_flags::INDIRECT);
        if offload == Offload::NONE {
            return true;
        }
        let carried = self.view.offloads.takes(&offload);
        if carried && self.view.offloads.checksum {
            self.view.ring.slots[*self.at as usize].ptr.store(offload.to_word(), Relaxed);
            self.word.flags |= slot_flags::OFFLOAD;
        }
        carried
    }

    /// Exchanges buffers with `other`; lengths stay.
    ///
    /// # Errors
    /// [`OtherRegion`]: nothing has changed.
    #[inline]
    pub fn swap(&mut self, other: &mut impl Lent) -> Result<(), OtherRegion> {
        if !Arc::ptr_eq(self.view.mapping(), other.mapping()) {
            return Err(OtherRegion);
        }
        let (ours, theirs) = (self.word.buf, other.number());
        other.set_number(ours);
        self.set_number(theirs);
        self.view.exchanged(ours, theirs);
        Ok(())
    }

    /// Marks the slot as indirect (`NS_INDIRECT`): its bytes are the `len` bytes at `address` when
    /// [`Port::flush_indirect`](crate::Port::flush_indirect) flushes the port.
    pub fn set_indirect(&mut self, address: *const u8, len: usize) {
        let address = address.expose_provenance() as u64;
        self.view.ring.slots[*self.at as usize].ptr.store(address, Relaxed);
        self.word.flags &= !slot_flags::OFFLOAD;
        self.word.flags |= slot_flags::INDIRECT;
        self.set_len(len);
    }
}

impl Drop for SendSlot<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.view.store(*self.at, self.word);
        if self.word.len != 0 {
            *self.at = next(*self.at, self.view.slots);
            *self.head = *self.at;
            *self.left -= 1;
        }
    }
}

impl sealed::Sealed for SendSlot<'_> {}

impl Lent for SendSlot<'_> {
    fn mapping(&self) -> &Arc<Mapping> {
        self.view.mapping()
    }

    #[inline]
    fn number(&self) -> u32 {
        self.word.buf
    }

    #[inline]
    fn set_number(&mut self, number: u32) {
        self.word.buf = number;
        self.word.flags |= slot_flags::BUF_CHANGED;
        self.window = self.view.buffer(number, u32::from(self.view.usable)).unwrap_or(EMPTY);
    }
}

impl sealed::Sealed for ReceivedSlot<'_> {}

impl Lent for ReceivedSlot<'_> {
    fn mapping(&self) -> &Arc<Mapping> {
        self.view.mapping()
    }

    #[inline]
    fn number(&self) -> u32 {
        self.word.buf
    }

    #[inline]
    fn set_number(&mut self, number: u32) {
        self.renumber(number);
    }
}

impl sealed::Sealed for Received<'_> {}

impl Lent for Received<'_> {
    fn mapping(&self) -> &Arc<Mapping> {
        self.first.view.mapping()
    }

    #[inline]
    fn number(&self) -> u32 {
        self.first.word.buf
    }

    #[inline]
    fn set_number(&mut self, number: u32) {
        self.first.renumber(number);
    }
}

impl Buffer {
    /// Takes the buffer of `other`, and puts this one in its place; lengths stay.
    ///
    /// # Errors
    /// [`OtherRegion`]: nothing has changed.
    #[inline]
    pub fn swap(&mut self, other: &mut impl Lent) -> Result<(), OtherRegion> {
        if !Arc::ptr_eq(self.region.mapping(), other.mapping()) {
            return Err(OtherRegion);
        }
        let (ours, theirs) = (self.number, other.number());
        other.set_number(ours);
        self.number = theirs;
        self.region.exchanged(ours, theirs);
        Ok(())
    }
}

impl sealed::Sealed for Buffer {}

impl Lent for Buffer {
    fn mapping(&self) -> &Arc<Mapping> {
        self.region.mapping()
    }

    fn number(&self) -> u32 {
        self.number
    }

    fn set_number(&mut self, number: u32) {
        self.number = number;
    }
}
