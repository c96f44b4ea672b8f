//! The area of a packed queue. Its entries are a pool: each taken descriptor is written to a free
//! entry. A change is committed by copying the free list's head and the position over their old
//! values.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use abi::virtio::Descriptor;
use abi::virtio::packed::{WRAP, advance, distance};

use super::super::ring::Chain;
use super::{INFLIGHT, Inflight, VERSION, fields, word};

/// The inflight area of a packed queue.
#[derive(Debug)]
pub struct Journal {
    area: Inflight,
    /// For each entry: the next free one. The front end's own list is not trusted.
    next: Box<[u16]>,
    free: u16,
    /// Marked chains, in the order in which they were taken.
    marked: VecDeque<Marked>,
    /// How many of the marked chains are being published.
    moving: usize,
    counter: u64,
    /// The positions up to which chains were published, and up to which they were taken and marked.
    used: u16,
    taken: u16,
    /// Slots of the queue.
    size: u16,
}

/// A marked chain: the entries of its first and last descriptor.
#[derive(Clone, Copy, Debug)]
struct Marked {
    first: u16,
    last: u16,
    slots: u16,
}

/// The contents of an adopted area.
#[derive(Debug)]
pub struct Adopted {
    /// The area, with the marks of these chains.
    pub journal: Journal,
    /// The position where used chains end.
    pub position: u16,
    /// Chains in flight, oldest first.
    pub chains: Vec<Chain>,
}

/// Words of an entry: state, counter, descriptor without its address, address.
fn entry(at: u16) -> usize {
    4 + 4 * usize::from(at)
}

impl Journal {
    /// Starts over for a queue of `size` slots whose position is `position`.
    pub fn new(area: Inflight, size: u16, position: u16) -> Self {
        let entries = area.size();
        for at in 0..entries {
            area.store(entry(at), word([0, at + 1, 0, 0]));
        }
        let this = Self {
            next: (1..=entries).collect(),
            free: 0,
            marked: VecDeque::with_capacity(entries.into()),
            moving: 0,
            counter: 0,
            used: position,
            taken: position,
            size,
            area,
        };
        this.write_heads(this.free, this.used);
        this
    }

    /// Takes over what an area has in flight; `None` if it fits no queue of `size` slots.
    /// `is_waiting` says whether the descriptor at a position is not used yet.
    pub fn adopt(area: &Inflight, size: u16, is_waiting: impl Fn(u16) -> bool) -> Option<Adopted> {
        let [_, _, new_free, old_free] = area.fields(1);
        let [new_index, old_index, wraps, _] = area.fields(2);
        let position = |index: u16, wrap: u16| index | if wrap & 0xff != 0 { WRAP } else { 0 };
        let (new, old) = (position(new_index, wraps), position(old_index, wraps >> 8));
        let counted = (0..area.size()).any(|at| area.word(entry(at) + 1) != 0);
        let begun = counted || [new, old, new_free, old_free] != [WRAP, WRAP, 0, 0];
        if !area.is_to_adopt() || !begun || new_index >= size || old_index >= size {
            return None;
        }
        // The last batch was published, but not committed.
        let committed = new != old && !is_waiting(old);
        let (used, free) = if committed { (new, new_free) } else { (old, old_free) };
        Self::of_lists(area, size, used, free)
    }

    /// Reads the free list and the chains in flight.
    fn of_lists(area: &Inflight, size: u16, used: u16, free: u16) -> Option<Adopted> {
        let entries = area.size();
        let state = |at: u16| fields(area.word(entry(at)));
        let next: Box<[u16]> = (0..entries).map(|at| state(at)[1]).collect();
        let mut is_free = vec![false; entries.into()];
        let mut at = free;
        while let Some(seen) = is_free.get_mut(usize::from(at)).filter(|seen| !**seen) {
            *seen = true;
            area.store(entry(at), area.word(entry(at)) & !0xff);
            at = next[usize::from(at)];
        }
        let heads = (0..entries).filter(|at| !is_free[usize::from(*at)]);
        let heads = heads.filter(|at| u64::from(state(*at)[0]) & 0xff == INFLIGHT);
        let mut heads: Vec<_> = heads.map(|at| (area.word(entry(at) + 1), at)).collect();
        heads.sort_unstable();
        let mut slots_left = size;
        let (mut marked, mut chains) = (VecDeque::with_capacity(entries.into()), Vec::new());
        for (_, first) in &heads {
            let [_, _, last, slots] = state(*first);
            slots_left = slots_left.checked_sub(slots).filter(|_| slots > 0 && last < entries)?;
            let [id, ..] = fields(area.word(entry(last) + 2));
            chains.push(Chain { id, slots });
            marked.push_back(Marked { first: *first, last, slots });
        }
        let counter = heads.last().map_or(0, |(counter, _)| *counter);
        let taken = advance(used, size - slots_left, size);
        let area = area.clone();
        let journal = Self { area, next, free, marked, moving: 0, counter, used, taken, size };
        journal.write_heads(free, used);
        Some(Adopted { journal, position: used, chains })
    }

    /// Writes the free list's head and the position, next to their old values.
    fn write_heads(&self, old_free: u16, old_used: u16) {
        let index = |position: u16| position & !WRAP;
        let wrap = |position: u16| u16::from(position & WRAP != 0);
        let wraps = wrap(self.used) | wrap(old_used) << 8;
        self.area.store(2, word([index(self.used), index(old_used), wraps, 0]));
        self.area.store(1, word([VERSION, self.area.size(), self.free, old_free]));
    }

    /// Marks a taken chain: the next one in the ring.
    pub fn take(&mut self, chain: Chain, ring: &[Descriptor]) {
        let (first, mut last, mut free) = (self.free, self.free, self.free);
        for _ in 0..chain.slots {
            let descriptor = ring.get(usize::from(self.taken & !WRAP));
            let (Some(next), Some(descriptor)) = (self.next.get(usize::from(free)), descriptor)
            else {
                return;
            };
            let words = descriptor.word(Ordering::Relaxed);
            let [id, flags] = [words.third(), words.fourth()];
            self.area
                .store(entry(free) + 2, u64::from(words.len()) << 32 | word([id, flags, 0, 0]));
            self.area.store(entry(free) + 3, descriptor.address());
            self.taken = advance(self.taken, 1, self.size);
            (last, free) = (free, *next);
        }
        self.counter = self.counter.wrapping_add(1);
        self.area.store(entry(first) + 1, self.counter);
        let next = self.next.get(usize::from(first)).copied().unwrap_or_default();
        self.area.store(entry(first), word([INFLIGHT as u16, next, last, chain.slots]));
        fence(Ordering::Release);
        self.free = free;
        self.write_heads(self.free, self.used);
        self.marked.push_back(Marked { first, last, slots: chain.slots });
    }

    /// Prepares to publish the oldest chains, up to position `to`.
    pub fn link(&mut self, to: u16) {
        let (old_free, old_used) = (self.free, self.used);
        let mut slots = distance(self.used, to, self.size);
        for chain in &self.marked {
            let Some(left) = slots.checked_sub(chain.slots) else { break };
            slots = left;
            if let Some(next) = self.next.get_mut(usize::from(chain.last)) {
                *next = self.free;
                let state = self.area.word(entry(chain.last)) & !(0xffff << 16);
                self.area.store(entry(chain.last), state | u64::from(self.free) << 16);
            }
            self.free = chain.first;
            self.moving += 1;
        }
        self.used = to;
        if self.marked.is_empty() {
            self.taken = to;
        }
        fence(Ordering::Release);
        self.write_heads(old_free, old_used);
        fence(Ordering::Release);
    }

    /// Removes the marks of the oldest chains after these were published.
    pub fn unmark(&mut self) {
        fence(Ordering::Release);
        let moved = self.marked.drain(..std::mem::take(&mut self.moving));
        for chain in moved {
            let state = self.area.word(entry(chain.first)) & !0xff;
            self.area.store(entry(chain.first), state);
        }
        fence(Ordering::Release);
        self.write_heads(self.free, self.used);
    }
}
