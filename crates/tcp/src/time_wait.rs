//! Connections in TIME-WAIT, 32 bytes each (RFC 9293, 3.6; RFC 1337; RFC 6191).
//!
//! All wait equally long, so the entries form a queue: a ring of fixed size that evicts its oldest
//! entry. A flow is identified by its ports and 64 bits of its keyed hash.

use alloc::vec;
use alloc::vec::Vec;

use crate::flow::Flow;
use crate::seq::Seq;
use crate::time::Nanos;

const PAGE: usize = 128;

/// The state that is kept for a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    ports: u32,
    send_next: Seq,
    receive_next: Seq,
    ts_recent: u32,
    /// When the entry ends, in milliseconds; the highest bit tells that timestamps are in use.
    ends: u32,
    /// The chain's next entry plus 1.
    next: u32,
}

const _: () = assert!(size_of::<Entry>() == 32);

const STAMPED: u32 = 1 << 31;
/// Value of `next` in an entry that is out of its chain.
const DEAD: u32 = u32::MAX;

/// What is known about a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub send_next: Seq,
    pub receive_next: Seq,
    pub ts_recent: Option<u32>,
}

pub(crate) struct TimeWait {
    heads: Vec<u32>,
    /// The ring, in pages that are allocated on first use.
    pages: Vec<Vec<Entry>>,
    /// Free-running positions; an entry's place is its position modulo `max`.
    first: u64,
    end: u64,
    max: usize,
    /// Length of TIME-WAIT in milliseconds.
    millis: u32,
    pub evicted: u64,
}

impl TimeWait {
    pub fn new(max: usize, nanos: u64) -> Self {
        let max = max.max(1);
        Self {
            heads: vec![0; max.next_power_of_two()],
            pages: Vec::new(),
            first: 0,
            end: 0,
            max,
            millis: (nanos / Nanos::MILLI).min(1 << 30) as u32,
            evicted: 0,
        }
    }

    fn entry(&mut self, index: usize) -> Option<&mut Entry> {
        self.pages.get_mut(index / PAGE)?.get_mut(index % PAGE)
    }

    fn head_of(&self, hash: u64) -> usize {
        hash as usize & (self.heads.len() - 1)
    }

    pub fn len(&self) -> usize {
        (self.end - self.first) as usize
    }

    /// Adds a connection that has just ended.
    pub fn insert(&mut self, hash: u64, flow: &Flow, waiting: &Waiting, now: Nanos) {
        self.remove(hash, flow);
        self.expire(now);
        if self.len() == self.max {
            self.drop_first();
            self.evicted += 1;
        }
        let index = (self.end % self.max as u64) as usize;
        let head = self.head_of(hash);
        let stamped = if waiting.ts_recent.is_some() { STAMPED } else { 0 };
        let entry = Entry {
            hash,
            ports: flow.ports(),
            send_next: waiting.send_next,
            receive_next: waiting.receive_next,
            ts_recent: waiting.ts_recent.unwrap_or(0),
            ends: now.millis().wrapping_add(self.millis) & !STAMPED | stamped,
            next: self.heads[head],
        };
        if index / PAGE == self.pages.len() {
            self.pages.push(Vec::with_capacity(PAGE.min(self.max)));
        }
        match self.entry(index) {
            Some(place) => *place = entry,
            None => self.pages[index / PAGE].push(entry),
        }
        self.heads[head] = index as u32 + 1;
        self.end += 1;
    }

    /// Returns the entry of a flow, if it is in TIME-WAIT.
    pub fn find(&mut self, hash: u64, flow: &Flow, now: Nanos) -> Option<Waiting> {
        self.expire(now);
        if self.len() == 0 {
            return None;
        }
        let mut link = self.heads[self.head_of(hash)];
        while link != 0 {
            let entry = *self.entry(link as usize - 1)?;
            if entry.hash == hash && entry.ports == flow.ports() {
                return Some(Waiting {
                    send_next: entry.send_next,
                    receive_next: entry.receive_next,
                    ts_recent: (entry.ends & STAMPED != 0).then_some(entry.ts_recent),
                });
            }
            link = entry.next;
        }
        None
    }

    /// Ends a flow's TIME-WAIT early. Its entry stays occupied until its original end.
    pub fn remove(&mut self, hash: u64, flow: &Flow) {
        let mut link = self.heads[self.head_of(hash)];
        while link != 0 {
            let Some(entry) = self.entry(link as usize - 1) else { return };
            if entry.hash == hash && entry.ports == flow.ports() {
                return self.unlink(link as usize - 1);
            }
            link = entry.next;
        }
    }

    fn unlink(&mut self, index: usize) {
        let Some(entry) = self.entry(index) else { return };
        let after = core::mem::replace(&mut entry.next, DEAD);
        let hash = entry.hash;
        let head = self.head_of(hash);
        let mut link = self.heads[head];
        if link as usize == index + 1 {
            self.heads[head] = after;
            return;
        }
        while link != 0 {
            let Some(entry) = self.entry(link as usize - 1) else { return };
            if entry.next as usize == index + 1 {
                entry.next = after;
                return;
            }
            link = entry.next;
        }
    }

    fn drop_first(&mut self) {
        let index = (self.first % self.max as u64) as usize;
        self.first += 1;
        if self.entry(index).is_some_and(|entry| entry.next != DEAD) {
            self.unlink(index);
        }
    }

    /// Removes expired entries. Each is removed once, so each insertion pays for one removal.
    fn expire(&mut self, now: Nanos) {
        while self.first < self.end {
            let index = (self.first % self.max as u64) as usize;
            let Some(ends) = self.entry(index).map(|entry| entry.ends) else { return };
            // Modulo 2^31.
            let left = (ends.wrapping_sub(now.millis()) << 1) as i32;
            if left > 0 {
                return;
            }
            self.drop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::net::{IpAddr, Ipv4Addr};

    fn flow(port: u16) -> Flow {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Flow::new((address, 80), (address, port)).unwrap()
    }

    proptest! {
        #[test]
        fn it_is_a_queue_with_a_time_limit(steps in proptest::collection::vec((0u8..4, 0u16..12, 0u64..40), 0..200)) {
            let mut table = TimeWait::new(5, 100 * Nanos::MILLI);
            let mut model: VecDeque<(u16, Nanos, u32, bool)> = VecDeque::new();
            // Starts close to the moment when milliseconds wrap.
            let mut now = Nanos(((1u64 << 31) - 300) * Nanos::MILLI);
            for (i, (step, port, wait)) in steps.into_iter().enumerate() {
                let hash = u64::from(port % 3);
                now = now + wait * Nanos::MILLI;
                while model.front().is_some_and(|e| e.1.0 + 100 * Nanos::MILLI <= now.0) {
                    model.pop_front();
                }
                match step {
                    0 | 1 => {
                        let waiting = Waiting { send_next: Seq(i as u32), receive_next: Seq(1), ts_recent: Some(7) };
                        table.insert(hash, &flow(port), &waiting, now);
                        model.iter_mut().filter(|e| e.0 == port).for_each(|e| e.3 = false);
                        if model.len() == 5 {
                            model.pop_front();
                        }
                        model.push_back((port, now, i as u32, true));
                    }
                    2 => {
                        table.remove(hash, &flow(port));
                        model.iter_mut().filter(|e| e.0 == port).for_each(|e| e.3 = false);
                    }
                    _ => {}
                }
                let expected = model.iter().find(|e| e.0 == port && e.3).map(|e| Seq(e.2));
                prop_assert_eq!(table.find(hash, &flow(port), now).map(|w| w.send_next), expected);
            }
        }
    }
}
