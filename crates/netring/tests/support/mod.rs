//! A core that plays the switch in tests: it takes what a port sends, and gives it to a port.
#![allow(dead_code, reason = "every test file uses its part of it")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use netring::layout::{Fault, RingMemory, SlotWord, advance, distance, next, previous, slot_flags};
use netring::{Port, Rings};

/// The core's side of a port's first send and first receive ring, with receive buffers handed out
/// last in, first out.
pub struct FakeCore {
    rings: Rings,
    tx: RingMemory,
    rx: RingMemory,
    taken: u32,
    filled: u32,
    reclaimed: u32,
    spare: Vec<u32>,
}

impl FakeCore {
    pub fn of(port: &Port) -> Self {
        let rings = port.rings();
        let ring = |first, slots| {
            RingMemory::of(&rings.mapping, &rings.geometry, first, slots).expect("rings are mapped")
        };
        let (tx, rx) = (ring(rings.tx.first, rings.tx.slots), ring(rings.rx.first, rings.rx.slots));
        let mut core = Self { rings, tx, rx, taken: 0, filled: 0, reclaimed: 0, spare: Vec::new() };
        core.start();
        core
    }

    /// All receive buffers except that of the slot that stays empty.
    fn start(&mut self) {
        (self.taken, self.filled, self.reclaimed) = (0, 0, previous(0, self.rings.rx.slots));
        let slots = &self.rx.slots[..self.rings.rx.slots as usize - 1];
        self.spare = slots.iter().map(|slot| slot.load().buf).collect();
    }

    fn bytes(&self, word: SlotWord) -> Vec<u8> {
        let geometry = self.rings.geometry;
        let at = geometry.buf_offset() + u64::from(word.buf) * u64::from(geometry.buf_size);
        let window = self.rings.mapping.bytes(at as usize, usize::from(word.len));
        window.expect("the buffer is mapped").to_vec()
    }

    /// Takes up to `max` frames that the port sent.
    pub fn take(&mut self, max: usize) -> Vec<Vec<u8>> {
        let head = self.tx.control.owner.0.observe();
        let (mut frames, mut frame) = (Vec::new(), Vec::new());
        while self.taken != head && frames.len() < max {
            let word = self.tx.slots[self.taken as usize].load();
            assert!(word.buf >= 2 && word.buf < self.rings.geometry.buf_num, "{word:?}");
            frame.extend(self.bytes(word));
            self.taken = next(self.taken, self.rings.tx.slots);
            if word.flags & slot_flags::MOREFRAG == 0 {
                frames.push(std::mem::take(&mut frame));
            }
        }
        assert!(frame.is_empty(), "only complete frames are published");
        self.tx.control.core.0.publish(self.taken);
        frames
    }

    /// Gives a frame to the port; false if there is no room.
    pub fn give(&mut self, frame: &[u8]) -> bool {
        let n = self.rings.rx.slots;
        let owner = self.rx.control.owner.0.observe();
        while self.reclaimed != previous(owner, n) {
            self.spare.push(self.rx.slots[next(self.reclaimed, n) as usize].load().buf);
            self.reclaimed = next(self.reclaimed, n);
        }
        let size = self.rings.buf_usable as usize;
        let count = frame.len().div_ceil(size).max(1);
        if distance(self.filled, previous(owner, n), n) < count as u32 {
            return false;
        }
        for (i, piece) in frame.chunks(size).enumerate() {
            let buf = self.spare.pop().expect("as many buffers as slots");
            let more = if i + 1 < count { slot_flags::MOREFRAG } else { 0 };
            let word = SlotWord { buf, len: piece.len() as u16, flags: more };
            let geometry = self.rings.geometry;
            let at = geometry.buf_offset() + u64::from(buf) * u64::from(geometry.buf_size);
            self.rings.mapping.bytes(at as usize, size).expect("mapped").copy_in(piece);
            self.rx.slots[advance(self.filled, i as u32, n) as usize].store(word);
        }
        self.filled = advance(self.filled, count as u32, n);
        self.rx.control.core.0.publish(self.filled);
        true
    }

    /// Sends all frames of the port back to it.
    pub fn reflect(&mut self) -> usize {
        let frames = self.take(usize::MAX);
        frames.iter().filter(|frame| self.give(frame)).count()
    }

    /// Puts the port into its error state.
    pub fn fail(&self, fault: Fault) {
        self.tx.control.core_flags.0.fault.store(fault as u32, Relaxed);
    }

    /// Carries out a reset if one was asked for.
    pub fn reset_if_wanted(&mut self) -> bool {
        let wanted = self.tx.control.owner_flags.0.reset_wanted.load(Acquire);
        let flags = &self.tx.control.core_flags.0;
        if wanted == flags.reset_done.load(Relaxed) {
            return false;
        }
        flags.fault.store(0, Relaxed);
        self.tx.control.core.0.publish(0);
        self.rx.control.core.0.publish(0);
        self.start();
        self.tx.control.core_flags.0.reset_done.store(wanted, Release);
        true
    }

    /// True if the port asked to be woken for frames.
    pub fn reader_sleeps(&self, answered: &mut u32) -> bool {
        self.rx.control.owner_flags.0.wake.must_kick(answered)
    }

    pub fn positions(&self) -> [u32; 4] {
        let of =
            |ring: &RingMemory| [ring.control.owner.0.observe(), ring.control.core.0.observe()];
        let ([a, b], [c, d]) = (of(&self.tx), of(&self.rx));
        [a, b, c, d]
    }
}
