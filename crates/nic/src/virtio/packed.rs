//! Packed queues (virtio 1.2, 2.8), the device's side.
//!
//! ```text
//!   one ring of descriptors; a descriptor is available when its AVAILABLE flag equals the wrap counter of
//!   that round and its USED flag does not, and used when both do
//!
//!   put ........ taken ........           positions: index, wrap counter in bit 15
//!   | lent       | available?
//! ```

use std::sync::atomic::{AtomicU32, Ordering, fence};

use abi::virtio::packed::{
    WRAP, advance, distance, event_wanted, event_word, is_in_round, round_flags,
};
use abi::virtio::{Descriptor, Word, flags};
use shmem::SharedSlice;

use super::inflight::{Adopted, PackedJournal};
use super::ring::{Chain, MAX_CHAIN, Parts, Piece, Pieces, Ring};
use super::{Fault, Features, Inflight, QueueError};
use crate::walk;

/// A packed queue.
#[derive(Debug)]
pub(super) struct Packed {
    descriptors: SharedSlice<Descriptor>,
    /// The device's event suppression.
    device: SharedSlice<AtomicU32>,
    parts: Parts,
    journal: Option<PackedJournal>,
    size: u16,
    taken: u16,
    put: u16,
    /// The first used descriptor that was not published; it is stored last.
    first_put: Option<(u16, Word)>,
}

impl Packed {
    #[inline(always)]
    fn is_available(&self) -> bool {
        is_in_round(self.word(self.taken), self.taken, false)
    }

    /// How many slots may be taken.
    #[inline(always)]
    fn free(&self) -> u16 {
        self.size - distance(self.put, self.taken, self.size)
    }

    fn read_table(&self, table: Piece, pieces: &mut Pieces) -> Result<(), Fault> {
        let (mut next, count) = (0, table.len / 16);
        self.parts.walk_table(table, |at, word| {
            self.parts.append(pieces, Piece { at, len: word.len() }, word.fourth())?;
            next += 1;
            Ok((next < count).then_some(next))
        })
    }

    #[inline(always)]
    fn word(&self, position: u16) -> Word {
        self.descriptors[usize::from(position & !WRAP)].word(Ordering::Acquire)
    }

    /// The number of slots and the id of the available chain that begins at `at`. The chain may be
    /// the rest of a longer one.
    fn chain_at(&self, mut at: u16) -> Option<(u16, u16)> {
        for slots in 1..=self.size.min(MAX_CHAIN) {
            let word = self.word(at);
            if !is_in_round(word, at, false) {
                return None;
            }
            if word.fourth() & flags::NEXT == 0 {
                return Some((slots, word.third()));
            }
            at = advance(at, 1, self.size);
        }
        None
    }

    /// How many slots from `self.put` on hold chains that were put and not published. The first
    /// chain's descriptor does not show it, because it is stored last.
    fn unpublished(&self) -> Option<u16> {
        let (first, _) = self.chain_at(self.put)?;
        let mut slots = first;
        while slots < self.size {
            let at = advance(self.put, slots, self.size);
            let word = self.word(at);
            if !is_in_round(word, at, true) {
                break;
            }
            // In a chain of several descriptors, only the first is overwritten.
            let rest = self.chain_at(advance(at, 1, self.size));
            let rest = rest.filter(|(_, id)| *id == word.third()).map_or(0, |(rest, _)| rest);
            slots = slots.saturating_add(1 + rest);
        }
        (first < slots && slots <= self.size).then_some(slots)
    }

    /// Finishes for a predecessor that died with chains put, or with chains published but not
    /// recorded.
    fn finish_predecessor(&mut self) {
        let state = &self.parts.state;
        let moving = Self::checked(state.moving.own(), self.size);
        // Since then, the driver may have made the slot available for the next round.
        let used = self.word(self.put).fourth() & flags::USED != 0;
        if moving != self.put && used == (self.put & WRAP != 0) {
            state.done.publish(u32::from(moving));
            self.put = moving;
        } else if let Some(slots) = self.unpublished() {
            let word = Word::from_bits(state.first_put.load(Ordering::Relaxed));
            self.first_put = Some((self.put & !WRAP, word));
            self.put = advance(self.put, slots, self.size);
            self.publish();
        }
        self.taken = self.put;
    }

    /// Starts to keep an area for chains in flight. If another process served the queue with it,
    /// the queue resumes there. Chains in flight are given back, because they may have been
    /// delivered or written.
    fn adopt(&mut self, area: Inflight) {
        let is_waiting = |at| is_in_round(self.word(at), at, false);
        let Some(adopted) = PackedJournal::adopt(&area, self.size, is_waiting) else {
            self.finish_predecessor();
            self.journal = Some(PackedJournal::new(area, self.size, self.put));
            return;
        };
        let Adopted { journal, position, chains } = adopted;
        self.parts.state.start_at(u32::from(position));
        self.journal = Some(journal);
        self.put = position;
        self.put(chains.into_iter().map(|chain| (chain, 0)));
        self.taken = self.put;
        self.publish();
        self.parts.state.taken.publish(u32::from(self.taken));
    }

    /// The position from the state, if it is valid.
    fn checked(position: u32, size: u16) -> u16 {
        let position = position as u16;
        if position & !WRAP < size { position } else { WRAP }
    }
}

impl Ring for Packed {
    fn new(mut parts: Parts) -> Result<Self, QueueError> {
        let layout = parts.layout;
        super::check_size(&layout, true)?;
        let size = layout.size;
        // `Interrupts` reads the driver's event suppression.
        let descriptors: SharedSlice<Descriptor> =
            parts.area("descriptors", layout.descriptors, usize::from(size))?;
        let done = Self::checked(parts.state.done.own(), size);
        let inflight = parts.take_inflight()?;
        let mut this = Self {
            descriptors,
            device: parts.area("device's event suppression", layout.device, 1)?,
            parts,
            journal: None,
            size,
            taken: done,
            put: done,
            first_put: None,
        };
        match inflight {
            None => this.finish_predecessor(),
            Some(area) => this.adopt(area),
        }
        Ok(this)
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
            walk::note(1);
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

    fn take_chain(&mut self, pieces: &mut Pieces) -> Result<Option<Chain>, Fault> {
        let free = self.free();
        if free == 0 || !self.is_available() {
            return Ok(None);
        }
        let mut at = self.taken;
        pieces.start_chain();
        for slots in 1..=free.min(MAX_CHAIN) {
            // The driver wrote the later descriptors as available too, before this one became
            // available.
            let descriptor = &self.descriptors[usize::from(at & !WRAP)];
            let word = descriptor.word(Ordering::Acquire);
            if !is_in_round(word, at, false) {
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

    fn pass_chain(&mut self) -> Option<Chain> {
        let (slots, id) = self.chain_at(self.taken).filter(|(slots, _)| *slots <= self.free())?;
        self.take(slots.into());
        Some(Chain { id, slots })
    }

    fn ends_at(&self, position: u16) -> bool {
        !is_in_round(self.word(position), position, false)
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
            // A successor must know it before any other descriptor is stored.
            self.parts.state.first_put.store(word.bits(), Ordering::Relaxed);
            fence(Ordering::Release);
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

    fn mark(&mut self, chains: &[Chain]) {
        if let Some(journal) = &mut self.journal {
            chains.iter().for_each(|chain| journal.take(*chain, &self.descriptors));
        }
    }

    #[inline(always)]
    fn publish(&mut self) {
        let Some((at, word)) = self.first_put.take() else { return };
        if let Some(journal) = &mut self.journal {
            journal.link(self.put);
        }
        let state = &self.parts.state;
        state.moving.publish(u32::from(self.put));
        self.descriptors[usize::from(at)].store_word(word, Ordering::Release);
        state.done.publish(u32::from(self.put));
        if let Some(journal) = &mut self.journal {
            journal.unmark();
        }
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

/// What the driver of a packed queue asks for about interrupts.
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

    /// True if the driver wants an interrupt for what was published since `old`, up to `new`.
    #[inline(always)]
    pub fn wanted(&self, old: u16, new: u16) -> bool {
        event_wanted(self.driver[0].load(Ordering::Relaxed), old, new, self.size)
    }

    /// True if the driver wants an interrupt for anything published in the round before `now`.
    pub fn awaited(&self, now: u16) -> bool {
        self.wanted(now ^ WRAP, now)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use shmem::{GuestMemory, Mapping, Shared};

    use super::super::ring::Direction;
    use super::super::{QueueConfig, QueueState};
    use super::*;
    use driver::virtio::{Buffer, Driver, layout_at};

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

    const SIZE: u16 = 16;

    fn queue() -> (Driver, impl Fn() -> Packed) {
        let mapping = Mapping::private(1 << 16).unwrap();
        let memory = Arc::new(GuestMemory::of(mapping, 0).unwrap());
        let (layout, features) = (layout_at(0, SIZE), Features::RING_PACKED);
        let state: Shared<QueueState> = Shared::private().unwrap();
        state.start_at(u32::from(WRAP));
        let driver = Driver::new(&memory, layout, features).unwrap();
        let device = move || {
            let (memory, state) = (Arc::clone(&memory), state.clone());
            let config = QueueConfig::new(memory, layout, features, state);
            Packed::new(Parts::new(config, Direction::ToGuest)).unwrap()
        };
        (driver, device)
    }

    fn add(driver: &mut Driver, buffers: usize) -> Option<u16> {
        driver.add(&vec![Buffer { at: 0x8000, len: 100, writable: true }; buffers], None)
    }

    /// A device takes chains, puts `put` of them, and dies before it publishes them, or before it
    /// records that. Its successor resumes so that the driver gets every chain once.
    fn dies(turned: usize, lens: &[usize], put: usize, published: bool) {
        let what = format!("{turned} {lens:?} {put} {published}");
        let (mut driver, device) = queue();
        let mut dead = device();
        let use_one = |ring: &mut Packed| {
            let chain = ring.take_chain(&mut Pieces::new(8)).unwrap().unwrap();
            ring.put(std::iter::once((chain, 1)));
            ring.publish();
            chain.id
        };
        for turn in 0..turned {
            let number = add(&mut driver, 1 + turn % 3).unwrap();
            driver.publish();
            use_one(&mut dead);
            assert_eq!(driver.used(), Some((number, 1)));
        }
        let done = dead.parts.state.done.own();
        let mut numbers: VecDeque<u16> =
            lens.iter().map(|len| add(&mut driver, *len).unwrap()).collect();
        driver.publish();
        let taken: Vec<Chain> =
            (0..put).map(|_| dead.take_chain(&mut Pieces::new(8)).unwrap().unwrap()).collect();
        dead.put(taken.into_iter().zip(2..));
        if published {
            dead.publish();
            dead.parts.state.done.publish(done);
            // In the meantime the driver continues.
            for _ in 0..put {
                let (number, _) = driver.used().unwrap();
                assert_eq!(Some(number), numbers.pop_front(), "{what}");
            }
            numbers.extend(std::iter::from_fn(|| add(&mut driver, 1)));
            driver.publish();
        }
        std::mem::forget(dead);
        let mut successor = device();
        if !published && put > 1 {
            for written in (2..).take(put) {
                let number = numbers.pop_front().unwrap();
                assert_eq!(driver.used(), Some((number, written)), "{what}");
            }
        }
        assert_eq!(driver.used(), None, "{what}");
        while let Some(number) = numbers.pop_front() {
            assert_eq!(use_one(&mut successor), number, "{what}");
            assert_eq!(driver.used(), Some((number, 1)), "{what}");
        }
        assert!(!successor.has_work(), "{what}");
    }

    #[test]
    fn a_successor_goes_on_wherever_its_predecessor_died() {
        for turned in 0..2 * usize::from(SIZE) {
            for lens in [&[1; 5][..], &[3, 1, 2, 1], &[1, 4, 4, 1], &[1; SIZE as usize]] {
                for put in 1..=lens.len() {
                    dies(turned, lens, put, false);
                    dies(turned, lens, put, true);
                }
            }
        }
    }
}
