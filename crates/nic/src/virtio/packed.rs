//! Packed queues (virtio 1.2, 2.8), the device's side.
//!
//! ```text
//!   one ring of descriptors; a descriptor is available when its AVAILABLE flag equals the wrap counter of
//!   that round and its USED flag does not, and used when both do
//!
//!   put ........ taken ........           positions: index, wrap counter in bit 15
//!   | lent       | available?
//! ```

use std::sync::atomic::{AtomicU32, Ordering};

use shmem::SharedSlice;

use super::ring::{Chain, Descriptor, Parts, Piece, Ring, Word, flags, passed};
use super::{Fault, Features, QueueError};

/// Bit 15 of a position: the wrap counter.
pub(super) const WRAP: u16 = 1 << 15;
/// Event suppression flags (virtio 1.2, 2.8.10), in the upper half of the word.
const ENABLE: u32 = 0;
const DISABLE: u32 = 1 << 16;
const AT_POSITION: u32 = 2 << 16;
const EVENT_FLAGS: u32 = 3 << 16;

/// A packed queue.
#[derive(Debug)]
pub(super) struct Packed {
    descriptors: SharedSlice<Descriptor>,
    /// The device's event suppression.
    device: SharedSlice<AtomicU32>,
    parts: Parts,
    size: u16,
    taken: u16,
    put: u16,
    /// The first used descriptor that was not published, which is stored last.
    first_put: Option<(u16, Word)>,
}

/// The flags of a descriptor in the round of this wrap counter: available, or used.
#[inline(always)]
pub(super) fn round_flags(position: u16, used: bool) -> u16 {
    let wrap = position & WRAP != 0;
    let available = if wrap { flags::AVAILABLE } else { 0 };
    let used = if wrap == used { flags::USED } else { 0 };
    available | used
}

/// The position `slots` after `position`.
#[inline(always)]
pub(super) fn advance(position: u16, slots: u16, size: u16) -> u16 {
    // At most 2 * 32,767 + 1: no overflow.
    let index = (position & !WRAP) + slots;
    let wrap = position & WRAP;
    if index >= size { (index - size) | (wrap ^ WRAP) } else { index | wrap }
}

/// Slots from `from` to `to`, which is at most a round later.
#[inline(always)]
pub(super) fn distance(from: u16, to: u16, size: u16) -> u16 {
    let slots = (to & !WRAP).wrapping_sub(from & !WRAP);
    if (from ^ to) & WRAP == 0 { slots } else { slots.wrapping_add(size) }
}

impl Packed {
    #[inline(always)]
    fn is_available(&self) -> bool {
        let word = self.descriptors[usize::from(self.taken & !WRAP)].word(Ordering::Acquire);
        word.fourth() & (flags::AVAILABLE | flags::USED) == round_flags(self.taken, false)
    }

    /// Slots that may be taken.
    #[inline(always)]
    fn free(&self) -> u16 {
        self.size - distance(self.put, self.taken, self.size)
    }

    fn read_table(&self, table: Piece, pieces: &mut Vec<Piece>) -> Result<(), Fault> {
        let (mut next, count) = (0, table.len / 16);
        self.parts.walk_table(table, |at, word| {
            self.parts.append(pieces, Piece { at, len: word.len() }, word.fourth())?;
            next += 1;
            Ok((next < count).then_some(next))
        })
    }

    /// A position from the state, if it is one.
    fn checked(position: u32, size: u16) -> u16 {
        let position = position as u16;
        if position & !WRAP < size { position } else { WRAP }
    }
}

impl Ring for Packed {
    fn new(parts: Parts) -> Result<Self, QueueError> {
        let layout = parts.layout;
        layout.check_size(true)?;
        let size = layout.size;
        // The driver's event suppression is looked at by `Interrupts`.
        let descriptors: SharedSlice<Descriptor> =
            parts.area("descriptors", layout.descriptors, usize::from(size))?;
        let (done, moving) = (parts.state.done.own(), parts.state.moving.own());
        let (done, moving) = (Self::checked(done, size), Self::checked(moving, size));
        // A predecessor may have died between publishing and saying so.
        let first = descriptors[usize::from(done & !WRAP)].word(Ordering::Acquire).fourth();
        let used = first & (flags::AVAILABLE | flags::USED) == round_flags(done, true);
        let done = if used { moving } else { done };
        parts.state.done.publish(u32::from(done));
        Ok(Self {
            descriptors,
            device: parts.area("device's event suppression", layout.device, 1)?,
            parts,
            size,
            taken: done,
            put: done,
            first_put: None,
        })
    }

    fn has_work(&self) -> bool {
        self.free() > 0 && self.is_available()
    }

    #[inline(always)]
    fn singles(&mut self, most: usize) -> Result<impl Iterator<Item = (Piece, u16)>, Fault> {
        const KIND: u16 =
            flags::AVAILABLE | flags::USED | flags::NEXT | flags::WRITE | flags::INDIRECT;
        let most = most.min(usize::from(self.free()));
        let want = round_flags(self.taken, false) | self.parts.direction.flag();
        let run = &self.descriptors[usize::from(self.taken & !WRAP)..];
        Ok(run.iter().take(most).map_while(move |descriptor| {
            let word = descriptor.word(Ordering::Acquire);
            if word.fourth() & KIND != want {
                return None;
            }
            let piece = Piece { at: descriptor.address(), len: word.len() };
            Some((piece, word.third()))
        }))
    }

    #[inline(always)]
    fn take(&mut self, count: usize) {
        self.taken = advance(self.taken, count as u16, self.size);
    }

    fn take_chain(&mut self, pieces: &mut Vec<Piece>) -> Result<Option<Chain>, Fault> {
        let free = self.free();
        if free == 0 || !self.is_available() {
            return Ok(None);
        }
        let mut at = self.taken;
        for slots in 1..=free {
            // Those after the first were written before it became available, as available too.
            let descriptor = &self.descriptors[usize::from(at & !WRAP)];
            let word = descriptor.word(Ordering::Acquire);
            if word.fourth() & (flags::AVAILABLE | flags::USED) != round_flags(at, false) {
                return Err(Fault::EndlessChain);
            }
            let piece = Piece { at: descriptor.address(), len: word.len() };
            let more = word.fourth() & flags::NEXT != 0;
            if word.fourth() & flags::INDIRECT == 0 {
                self.parts.append(pieces, piece, word.fourth())?;
            } else if more {
                return Err(Fault::BadIndirect);
            } else {
                self.read_table(piece, pieces)?;
            }
            at = advance(at, 1, self.size);
            if !more {
                self.taken = at;
                return Ok(Some(Chain { id: word.third(), slots }));
            }
        }
        Err(Fault::EndlessChain)
    }

    fn taken(&self) -> u16 {
        self.taken
    }

    fn is_before(&self, position: u16) -> bool {
        (1..=self.size).contains(&distance(self.taken, position, self.size))
    }

    fn rewind(&mut self, to: u16) {
        self.taken = to;
    }

    #[inline(always)]
    fn put(&mut self, mut chains: impl Iterator<Item = (Chain, u32)>) {
        let used = |round: u16, (chain, written): (Chain, u32)| {
            let wrote = if written > 0 { flags::WRITE } else { 0 };
            Word::new(written, chain.id, round | wrote)
        };
        if self.first_put.is_none() {
            let Some(first) = chains.next() else { return };
            let word = used(round_flags(self.put, true), first);
            self.first_put = Some((self.put & !WRAP, word));
            self.put = advance(self.put, first.0.slots, self.size);
        }
        let (descriptors, size) = (&*self.descriptors, self.size);
        let (mut at, mut wrap) = (self.put & !WRAP, self.put & WRAP);
        let mut round = round_flags(self.put, true);
        for chain in chains {
            if let Some(descriptor) = descriptors.get(usize::from(at)) {
                descriptor.store_word(used(round, chain), Ordering::Relaxed);
            }
            at += chain.0.slots;
            if at >= size {
                (at, wrap) = (at - size, wrap ^ WRAP);
                round ^= flags::AVAILABLE | flags::USED;
            }
        }
        self.put = at | wrap;
    }

    #[inline(always)]
    fn publish(&mut self) {
        let Some((at, word)) = self.first_put.take() else { return };
        let state = &self.parts.state;
        state.moving.publish(u32::from(self.put));
        self.descriptors[usize::from(at)].store_word(word, Ordering::Release);
        state.done.publish(u32::from(self.put));
        self.parts.log(self.parts.layout.descriptors, 16 * u64::from(self.size));
    }

    fn arm(&self) {
        let position = self.parts.has(Features::EVENT_IDX).then_some(self.taken);
        let word = event_word(true, position);
        self.device[0].store(word.to_le(), Ordering::Relaxed);
        self.parts.log(self.parts.layout.device, 4);
    }

    fn disarm(&self) {
        self.device[0].store(event_word(false, None).to_le(), Ordering::Relaxed);
        self.parts.log(self.parts.layout.device, 4);
    }
}

/// What the driver of a packed queue says about interrupts.
#[derive(Debug)]
pub(super) struct Interrupts {
    driver: SharedSlice<AtomicU32>,
    size: u16,
}

impl Interrupts {
    pub fn new(parts: &Parts) -> Result<Self, QueueError> {
        let driver = parts.area("driver's event suppression", parts.layout.driver, 1)?;
        Ok(Self { driver, size: parts.layout.size })
    }

    /// Whether it wants one for what was published since `old`, up to `new`.
    #[inline(always)]
    pub fn wanted(&self, old: u16, new: u16) -> bool {
        event_wanted(self.driver[0].load(Ordering::Relaxed), old, new, self.size)
    }
}

/// What a side of a queue writes to be notified, or not; with a position, when that is passed.
pub(super) fn event_word(wanted: bool, position: Option<u16>) -> u32 {
    match (wanted, position) {
        (true, Some(position)) => AT_POSITION | u32::from(position),
        (true, None) => ENABLE,
        (false, _) => DISABLE,
    }
}

/// Whether a side that wrote `word` is to be notified of what was published since `old`, up to `new`.
#[inline(always)]
pub(super) fn event_wanted(word: u32, old: u16, new: u16, size: u16) -> bool {
    let word = u32::from_le(word);
    if old == new {
        return false;
    }
    match word & EVENT_FLAGS {
        ENABLE => true,
        AT_POSITION => {
            // As far from the newest position as their places in the rounds say.
            let place = |at: u16| {
                let index = at & !WRAP;
                if (at ^ new) & WRAP == 0 { index } else { index.wrapping_sub(size) }
            };
            passed(place(word as u16), new & !WRAP, place(old))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_wrap_with_their_counter() {
        for size in [1, 2, 7, 256, 32_768] {
            let mut at = WRAP;
            for step in [0, 1, size, size - 1, 1] {
                let next = advance(at, step, size);
                assert_eq!(distance(at, next, size), step, "size {size}, step {step}");
                at = next;
            }
        }
        assert_eq!(advance(WRAP | 6, 1, 7), 0);
        assert_eq!(advance(6, 3, 7), WRAP | 2);
    }
}
