//! Receiving: frames lent to be read.

use shmem::Bytes;

use crate::layout::{Fault, MAX_FRAGS, SlotWord, distance, next, slot_flags};
use crate::queue::View;
use crate::send::EMPTY;

/// Received frames, oldest first. Frames that were taken from it go back to the ring at the next
/// [`Port::flush`](crate::Port::flush); those that were not stay.
#[derive(Debug)]
pub struct Incoming<'a> {
    view: Option<&'a View>,
    head: &'a mut u32,
    fault: &'a mut Option<Fault>,
    end: u32,
    left: usize,
}

impl<'a> Incoming<'a> {
    #[inline(always)]
    pub(crate) fn new(
        view: &'a View,
        head: &'a mut u32,
        fault: &'a mut Option<Fault>,
        end: u32,
        left: usize,
    ) -> Self {
        Self { view: Some(view), head, fault, end, left }
    }

    /// Nothing: the port has no such ring.
    pub(crate) fn none(nowhere: &'a mut u32, fault: &'a mut Option<Fault>) -> Self {
        *nowhere = 0;
        Self { view: None, head: nowhere, fault, end: 0, left: 0 }
    }

    /// Slots that were received and not taken yet; no fewer than frames.
    #[inline]
    #[must_use]
    pub fn slots_left(&self) -> usize {
        self.view.map_or(0, |view| distance(*self.head, self.end, view.slots) as usize)
    }

    /// The next frame, if it has at most `slots` slots; else it stays.
    #[inline]
    pub fn next_within(&mut self, slots: usize) -> Option<Received<'a>> {
        let (head, left) = (*self.head, self.left);
        let frame = self.next()?;
        if frame.slot_count() > slots {
            (*self.head, self.left) = (head, left);
            return None;
        }
        Some(frame)
    }

    /// The end: what the peer wrote is no frame.
    #[cold]
    fn fail(&mut self, fault: Fault) {
        *self.fault = Some(fault);
        self.left = 0;
    }

    /// The rest of a frame that continues after its first slot.
    #[cold]
    fn long(&mut self, first: ReceivedSlot<'a>) -> Option<Received<'a>> {
        let view = self.view?;
        let (mut at, mut slots, mut len) = (first.at, 1, first.len());
        let mut more = true;
        while more {
            at = next(at, view.slots);
            if at == self.end {
                // Not complete yet; never, if there is no slot left for the rest.
                let full = distance(*self.head, self.end, view.slots) == view.slots - 1;
                self.left = 0;
                if full {
                    self.fail(Fault::EndlessFrame);
                }
                return None;
            }
            let word = view.load(at);
            let Some(slot) = ReceivedSlot::check(view, at, word) else {
                self.fail(fault_of(view, word));
                return None;
            };
            slots += 1;
            len += slot.len();
            more = word.flags & slot_flags::MOREFRAG != 0;
            if more && usize::from(slots) == MAX_FRAGS {
                self.fail(Fault::EndlessFrame);
                return None;
            }
        }
        *self.head = next(at, view.slots);
        self.left -= 1;
        Some(Received { first, slots, len: len as u32 })
    }
}

impl<'a> Iterator for Incoming<'a> {
    type Item = Received<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Received<'a>> {
        let at = *self.head;
        if self.left == 0 || at == self.end {
            return None;
        }
        let view = self.view?;
        let word = view.load(at);
        let Some(first) = ReceivedSlot::check(view, at, word) else {
            self.fail(fault_of(view, word));
            return None;
        };
        if word.flags & slot_flags::MOREFRAG != 0 {
            return self.long(first);
        }
        *self.head = next(at, view.slots);
        self.left -= 1;
        Some(Received { first, slots: 1, len: u32::from(word.len) })
    }
}

/// What is wrong with a slot that did not pass the check.
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

    /// True for a frame of no bytes.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its bytes in its first slot: all, unless [`slot_count`](Self::slot_count) is above 1.
    #[inline(always)]
    #[must_use]
    pub fn window(&self) -> Bytes<'a> {
        self.first.window
    }

    /// `NS_*` flags of its first slot.
    #[inline(always)]
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.first.word.flags
    }

    /// Copies the frame to the start of `to`; returns how many bytes fitted.
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

    /// The frame in a new vector: for tests and rare frames.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let len = self.copy_out(&mut bytes);
        bytes.truncate(len);
        bytes
    }

    /// How many slots it consists of.
    #[inline(always)]
    #[must_use]
    pub fn slot_count(&self) -> usize {
        usize::from(self.slots)
    }

    /// Its slots, to be read or exchanged one by one.
    #[inline]
    pub fn into_slots(self) -> impl Iterator<Item = ReceivedSlot<'a>> + use<'a> {
        self.slots()
    }

    /// As [`into_slots`](Self::into_slots); of a slot that is exchanged, `self` is then out of date.
    #[inline]
    pub(crate) fn slots(&self) -> impl Iterator<Item = ReceivedSlot<'a>> + use<'a> {
        let first = ReceivedSlot { ..self.first };
        std::iter::once(first).chain(self.rest())
    }

    /// The slots after the first. They are loaded and checked again: one that the peer has spoilt
    /// since has no bytes.
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
    /// The slot, if its buffer exists and is as long as it says.
    #[inline(always)]
    fn check(view: &'a View, at: u32, word: SlotWord) -> Option<Self> {
        let window = view.buffer(word.buf, u32::from(word.len))?;
        Some(Self { view, at, word, window })
    }

    /// Bytes in it.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// True for a slot of no bytes.
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
