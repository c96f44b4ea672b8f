//! A hierarchical timer wheel (Varghese and Lauck, 1987): deadlines by index, at most one per
//! index.
//!
//! A tick is 65.5 us. A level has 64 slots, and one slot is as long as the whole level below. An
//! entry moves down a level when its slot is due, so it moves at most five times.

use alloc::vec;
use alloc::vec::Vec;

use crate::time::Nanos;

const TICK_SHIFT: u32 = 16;
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Number of levels. The wheel turns once in 2^36 ticks, which is 52 days.
const LEVELS: usize = 6;
const LAST_TICK: u64 = (1 << (BITS as u64 * LEVELS as u64)) - 1;

/// Fields of a link: next index plus 1, previous index plus 1, slot plus 1. All zero if not
/// scheduled.
type Link = [u32; 3];

pub(crate) struct Wheel {
    tick: u64,
    /// A bit for each slot that has entries.
    occupied: [u64; LEVELS],
    heads: [u32; LEVELS * SLOTS],
    links: Vec<Link>,
    ticks: Vec<u64>,
    /// Entries that have fired or moved to a lower level.
    pub visited: u64,
}

impl Wheel {
    /// A wheel for indexes below `len`.
    pub fn new(len: usize) -> Self {
        Self {
            tick: 0,
            occupied: [0; LEVELS],
            heads: [0; LEVELS * SLOTS],
            links: vec![[0; 3]; len],
            ticks: vec![0; len],
            visited: 0,
        }
    }

    /// Sets or moves the deadline of `index`. It fires at the first [`pop`](Self::pop) at or after
    /// `at`, rounded up to a tick, and never at `now`.
    pub fn schedule(&mut self, index: u32, at: Nanos, now: Nanos) {
        self.cancel(index);
        let at = at.0.max(now.0.saturating_add(1));
        let tick = (at >> TICK_SHIFT) + u64::from(at & ((1 << TICK_SHIFT) - 1) != 0);
        self.put(index, tick.max(self.tick + 1));
    }

    /// Returns when the timer of `index` fires, if it is set.
    #[cfg(test)]
    fn scheduled(&self, index: u32) -> Option<Nanos> {
        let set = self.links.get(index as usize)?[2] != 0;
        set.then(|| Nanos(self.ticks[index as usize] << TICK_SHIFT))
    }

    fn put(&mut self, index: u32, tick: u64) {
        // A deadline beyond one turn of the wheel waits in the last slot and moves on from there.
        let near = tick.clamp(self.tick, self.tick | LAST_TICK);
        let distance = (near ^ self.tick) | 1;
        let level = ((63 - distance.leading_zeros()) / BITS) as usize;
        let slot = (near >> (BITS as usize * level)) as usize & (SLOTS - 1);
        let place = level * SLOTS + slot;
        let head = self.heads[place];
        if let Some(link) = self.links.get_mut(index as usize) {
            *link = [head, 0, place as u32 + 1];
            self.ticks[index as usize] = tick;
            self.heads[place] = index + 1;
            self.occupied[level] |= 1 << slot;
            if head != 0 {
                self.links[head as usize - 1][1] = index + 1;
            }
        }
    }

    /// Cancels the timer of `index`, if it is set.
    pub fn cancel(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index as usize) else { return };
        let [next, previous, place] = core::mem::take(link);
        if place == 0 {
            return;
        }
        let place = place as usize - 1;
        match previous {
            0 => self.heads[place] = next,
            previous => self.links[previous as usize - 1][0] = next,
        }
        if next != 0 {
            self.links[next as usize - 1][1] = previous;
        }
        if self.heads[place] == 0 {
            self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
        }
    }

    /// The first slot with entries: level, slot, and the tick at which it starts.
    fn first(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = BITS as usize * level;
        let above = self.tick >> (shift + BITS as usize) << (shift + BITS as usize);
        Some((level, slot, above | (slot as u64) << shift))
    }

    /// Returns when [`pop`](Self::pop) next has work: never later than the first deadline, rounded
    /// up.
    pub fn deadline(&self) -> Option<Nanos> {
        self.first().map(|(.., tick)| Nanos(tick << TICK_SHIFT))
    }

    /// Returns an index whose deadline is past. Call it until it returns none.
    pub fn pop(&mut self, now: Nanos) -> Option<u32> {
        let until = now.0 >> TICK_SHIFT;
        while let Some((level, slot, start)) = self.first().filter(|(.., start)| *start <= until) {
            self.tick = self.tick.max(start);
            let place = level * SLOTS + slot;
            if level == 0 {
                let index = self.heads[place] - 1;
                self.cancel(index);
                self.visited += 1;
                return Some(index);
            }
            // The whole slot moves down before anything fires, so that order is kept.
            while let Some(index) = self.heads[place].checked_sub(1) {
                self.cancel(index);
                self.visited += 1;
                self.put(index, self.ticks[index as usize]);
            }
        }
        self.tick = self.tick.max(until);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_timer_fires_once_and_not_early() {
        let mut wheel = Wheel::new(2);
        wheel.schedule(1, Nanos(100_000_000), Nanos(0));
        assert!(wheel.deadline().unwrap() <= Nanos(100_000_000 + (1 << TICK_SHIFT)));
        assert_eq!(wheel.pop(Nanos(99_999_999)), None);
        assert_eq!(wheel.pop(Nanos(100_100_000)), Some(1));
        assert_eq!(wheel.pop(Nanos(u64::MAX >> 1)), None);
        assert_eq!(wheel.deadline(), None);
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map(steps in proptest::collection::vec((0u8..3, 0u32..8, 0u32..46, any::<u64>()), 1..300)) {
            let mut wheel = Wheel::new(8);
            let mut model = BTreeMap::new();
            let mut now = Nanos(0);
            for (step, index, bits, value) in steps {
                let delay = value & ((1u64 << bits) - 1);
                match step {
                    0 => {
                        wheel.schedule(index, now + delay, now);
                        model.insert(index, (now + delay).max(now + 1));
                    }
                    1 => {
                        wheel.cancel(index);
                        model.remove(&index);
                    }
                    _ => {
                        now = now + delay;
                        while let Some(index) = wheel.pop(now) {
                            let at = model.remove(&index).unwrap();
                            prop_assert!(at <= now, "early");
                        }
                        for (index, at) in &model {
                            prop_assert!(at.0 + (1 << TICK_SHIFT) > now.0, "late");
                            prop_assert!(wheel.scheduled(*index).unwrap() >= *at);
                        }
                    }
                }
                if let Some(first) = model.values().min() {
                    prop_assert!(wheel.deadline().unwrap().0 < first.0 + (1 << TICK_SHIFT));
                } else {
                    prop_assert_eq!(wheel.deadline(), None);
                }
            }
        }
    }
}
