//! Receiving: frames lent to be read.

use std::sync::atomic::Ordering::Relaxed;

use frame::Offload;
use shmem::Bytes;

use crate::layout::{Fault, MAX_FRAGS, Slot, SlotWord, advance, distance, next, slot_flags};
use crate::queue::View;
use crate::send::EMPTY;

/// Received frames, oldest first. Frames that were taken return to the ring at the next
/// [`Port::flush`](crate::Port::flush); the others stay.
///
#[derive(Debug)]
pub struct Incoming<'a> {
    view: Option<&'a View>,
    slots: &'a [Slot],
    head: &'a mut u32,
    fault: &'a mut Option<Fault>,
    /// A copy of the queue's `head`. It can stay in a register, because no function out of line
    /// gets a reference to it.
    at: u32,
    end: u32,
    /// The number of frames that may be taken, at most the number of slots left.
    left: usize,
}

impl<'a> Incoming<'a> {
    #[inline(always)]
    pub(crate) fn new(
        view: &'a View,
        head: &'a mut u32,
        fault: &'a mut Option<Fault>,
        end: u32,
        max: usize,
    ) -> Self {
        let at = *head;
        let left = max.min(distance(at, end, view.slots) as usize);
        Self { view: Some(view), slots: &view.ring.slots, at, head, fault, end, left }
    }

    /// No frames: the port has no such ring.
    pub(crate) fn none(nowhere: &'a mut u32, fault: &'a mut Option<Fault>) -> Self {
        Self { view: None, slots: &[], at: 0, head: nowhere, fault, end: 0, left: 0 }
    }

    /// Slots that were received and not taken yet; at least the number of frames.
    #[inline]
    #[must_use]
    pub fn slots_left(&self) -> usize {
        self.view.map_or(0, |view| distance(self.at, self.end, view.slots) as usize)
    }

    /// Takes the next frame, if it has at most `slots` slots. Otherwise the frame stays.
    #[inline]
    pub fn next_within(&mut self, slots: usize) -> Option<Received<'a>> {
        let (at, left) = (self.at, self.left);
        let frame = self.next()?;
        if frame.slot_count() > slots {
            (self.at, *self.head, self.left) = (at, at, left);
            return None;
        }
        Some(frame)
    }
}

impl<'a> Iterator for Incoming<'a> {
    type Item = Received<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Received<'a>> {
        if self.left == 0 {
            return None;
        }
        let view = self.view?;
        let (at, word) = (self.at, self.slots[self.at as usize].load());
        if word.flags & slot_flags::MOREFRAG == 0
            && let Some(first) = ReceivedSlot::check(view, at, word)
        {
            self.at = next(at, self.slots.len() as u32);
            *self.head = self.at;
            self.left -= 1;
            return Some(Received { first, slots: 1, len: u32::from(word.len) });
        }
        let frame = self.next_long(view);
        if frame.is_none() {
            self.left = 0;
        }
        frame
    }
}

impl<'a> Incoming<'a> {
    /// The next frame, which has several slots or is malformed.
    #[cold]
    fn next_long(&mut self, view: &'a View) -> Option<Received<'a>> {
        let at = self.at;
        let (slots, len) = match measure(view, at, self.end) {
            Ok(frame) => frame,
            Err(fault) => {
                *self.fault = fault.or(*self.fault);
                return None;
            }
        };
        let first = ReceivedSlot::check(view, at, view.load(at))?;
        self.at = advance(at, u32::from(slots), view.slots);
        *self.head = self.at;
        self.left = (self.left - 1).min(self.slots_left());
        Some(Received { first, slots, len })
    }
}

/// The number of slots and bytes of the frame at `at`, if it ends before `end`. The error is `None`
/// if the frame may still be completed.
fn measure(view: &View, at: u32, end: u32) -> Result<(u16, u32), Option<Fault>> {
    let (mut slot, mut slots, mut len) = (at, 0, 0);
    while slot != end {
        let word = view.load(slot);
        if ReceivedSlot::check(view, slot, word).is_none() {
            return Err(Some(fault_of(view, word)));
        }
        (slots, len) = (slots + 1, len + u32::from(word.len));
        if word.flags & slot_flags::MOREFRAG == 0 {
            return Ok((slots, len));
        }
        if usize::from(slots) == MAX_FRAGS {
            return Err(Some(Fault::EndlessFrame));
        }
        slot = next(slot, view.slots);
    }
    // A frame that fills the ring without an end can never be completed.
    let full = distance(at, end, view.slots) == view.slots - 1;
    Err(full.then_some(Fault::EndlessFrame))
}

/// The fault of an invalid slot.
#[cold]
fn fault_of(view: &View, word: SlotWord) -> Fault {
    match view.buffer(word.buf, 0) {
        Some(_) => Fault::BadLength,
        None => Fault::BadBuffer,
    }
}

/// A received frame.
#[derive(Debug)]
pub struct Received<'a> {
    pub(crate) first: ReceivedSlot<'a>,
    slots: u16,
    len: u32,
}

impl<'a> Received<'a> {
    /// Bytes of the frame.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True for an empty frame.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in the frame's first slot: all of them unless [`slot_count`](Self::slot_count) is
    /// above 1.
    #[inline(always)]
    #[must_use]
    pub fn window(&self) -> Bytes<'a> {
        self.first.window
    }

    /// The `NS_*` flags of the frame's first slot.
    #[inline(always)]
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.first.word.flags
    }

    /// Of a monitor's frame: true if the watched port has sent it.
    #[inline]
    #[must_use]
    pub fn was_sent(&self) -> bool {
        self.flags() & slot_flags::TXMON != 0
    }

    /// When the frame crossed the switch, in nanoseconds of the monotonic clock, if the port is a
    /// monitor of a switch's port; 0 otherwise, and beside an offload request.
    #[inline]
    #[must_use]
    pub fn crossed_at(&self) -> u64 {
        let ReceivedSlot { view, at, word, .. } = &self.first;
        if word.flags & slot_flags::OFFLOAD != 0 {
            return 0;
        }
        view.ring.slots[*at as usize].ptr.load(Relaxed)
    }

    /// The offload request of its sender, if the port [carries](crate::Port::offloads) such
    /// requests. The switch has validated it; in a pipe it comes from the other end as it is. The
    /// header length is not known.
    #[inline]
    #[must_use]
    pub fn offload(&self) -> Offload {
        let ReceivedSlot { view, at, word, .. } = &self.first;
        if word.flags & slot_flags::OFFLOAD == 0 || !view.offloads.checksum {
            return Offload::NONE;
        }
        Offload::from_word(view.ring.slots[*at as usize].ptr.load(Relaxed))
    }

    /// The frame's bytes, slot by slot.
    #[inline]
    pub fn windows(&self) -> impl Iterator<Item = Bytes<'a>> + use<'a> {
        self.slots().map(|slot| slot.window)
    }

    /// Copies the frame to the start of `to`. Returns how many bytes fit.
    #[inline]
    pub fn copy_out(&self, to: &mut [u8]) -> usize {
        let mut done = self.first.window.copy_out(to);
        if self.slots > 1 {
            for slot in self.rest() {
                done += slot.window.copy_out(&mut to[done..]);
            }
        }
        done
    }

    /// True if the frame's bytes equal `bytes`. Compares them in place.
    #[inline]
    #[must_use]
    pub fn equals(&self, bytes: &[u8]) -> bool {
        if self.slots > 1 { self.to_vec() == bytes } else { self.first.window.equals(bytes) }
    }

    /// The frame in a new vector: for tests and rare frames.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let len = self.copy_out(&mut bytes);
        bytes.truncate(len);
        bytes
    }

    /// The number of the frame's slots.
    #[inline(always)]
    #[must_use]
    pub fn slot_count(&self) -> usize {
        usize::from(self.slots)
    }

    /// The frame's slots, to read or exchange one by one.
    #[inline]
    pub fn into_slots(self) -> impl Iterator<Item = ReceivedSlot<'a>> + use<'a> {
        self.slots()
    }

    /// Like [`into_slots`](Self::into_slots). After a slot was exchanged, `self` is out of date.
    #[inline]
    pub(crate) fn slots(&self) -> impl Iterator<Item = ReceivedSlot<'a>> + use<'a> {
        let first = ReceivedSlot { ..self.first };
        std::iter::once(first).chain(self.rest())
    }

    /// The slots after the first. They are loaded and validated again, and a slot that the peer has
    /// made invalid counts as empty.
    fn rest(&self) -> impl Iterator<Item = ReceivedSlot<'a>> + use<'a> {
        let (view, mut at) = (self.first.view, self.first.at);
        (1..self.slots).map(move |_| {
            at = next(at, view.slots);
            let word = view.load(at);
            let spoilt =
                ReceivedSlot { view, at, word: SlotWord { len: 0, ..word }, window: EMPTY };
            ReceivedSlot::check(view, at, word).unwrap_or(spoilt)
        })
    }
}

/// One slot of a received frame.
#[derive(Debug)]
pub struct ReceivedSlot<'a> {
    pub(crate) view: &'a View,
    at: u32,
    pub(crate) word: SlotWord,
    window: Bytes<'a>,
}

impl<'a> ReceivedSlot<'a> {
    /// The slot, if its buffer exists and has room for its length.
    #[inline(always)]
    fn check(view: &'a View, at: u32, word: SlotWord) -> Option<Self> {
        let window = view.buffer(word.buf, u32::from(word.len))?;
        Some(Self { view, at, word, window })
    }

    /// Returns the number of bytes in the frame.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// True for an empty slot.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// Its bytes.
    #[inline(always)]
    #[must_use]
    pub fn window(&self) -> Bytes<'a> {
        self.window
    }

    /// Puts another buffer into the slot.
    #[inline]
    pub(crate) fn renumber(&mut self, number: u32) {
        self.word.buf = number;
        self.word.flags |= slot_flags::BUF_CHANGED;
        self.view.store(self.at, self.word);
        self.window = self.view.buffer(number, u32::from(self.word.len)).unwrap_or(EMPTY);
    }
}
