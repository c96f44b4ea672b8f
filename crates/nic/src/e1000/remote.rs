//! Rings of a guest whose memory is reached by messages ([`crate::remote`]).
//!
//! ```text
//!   receive:  pushed ........ head (RDH) ........ shown ........ tail (RDT)
//!             written, not yet    for frames to    not fetched
//!             in the guest's      come
//! ```
//!
//! The model looks at descriptors up to `shown`, wherever its driver's tail is. Transmit rings work
//! the same way, and their buffers are fetched with them. When a copy starts, descriptors between
//! `sent`, the place in state memory, and the head belonged to a predecessor. They are fetched.
//! Those that are not done are given back unsent, or as damaged.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use port::Nanos;

use super::copy::{Inner, Words};
use super::core::Core;
use super::registers::{Fault, NOT_SENT};
use super::ring::{DESCRIPTOR, rx, tx};
use super::table::{self, cause, rctl, tctl};
use super::transmit::data_len;
use crate::csb::Direction;
use crate::model::ring::{Place, of_queue};
use crate::remote::{AHEAD, Held, Out, Remote, Want};

/// The maximum number of descriptors of a transmit or receive queue that are fetched together.
const SENT: u32 = 32;
const RECEIVED: u32 = 128;
/// Length of the longest buffer that can hold a frame.
const LONGEST: u32 = 0x1_0100;

/// A ring that lies in memory.
#[derive(Clone, Copy, Debug)]
struct Ring {
    base: u64,
    size: u32,
}

impl Ring {
    fn at(self, place: u32) -> u64 {
        self.base + u64::from(place) * u64::from(DESCRIPTOR)
    }

    fn place(self, at: u32) -> Place {
        Place { at, len: self.size }
    }
}

impl Core {
    /// The place in state memory before which all descriptors have left.
    fn sent(&self, way: Direction, queue: usize) -> &AtomicU32 {
        match way {
            Direction::Send => &of_queue(&self.registers.tx, queue).sent,
            Direction::Receive => &of_queue(&self.registers.rx, queue).sent,
        }
    }

    fn head(&self, way: Direction, queue: usize) -> u32 {
        self.registers.get(table::words(way, queue).head)
    }

    /// Handles a ring that was replaced, or whose head moved: nothing of it was fetched, and
    /// nothing is pushed.
    pub fn start_copy(&self, way: Direction, queue: usize) {
        let Some(copied) = &self.copied else { return };
        let head = self.head(way, queue);
        copied.restart(way, queue, head);
        copied.pushed(way, queue).store(head, Relaxed);
        self.sent(way, queue).store(head, Relaxed);
    }

    /// Handles a reset of the device.
    pub fn reset_copy(&self) {
        self.copied.iter().for_each(|copied| copied.reset.store(true, Relaxed));
    }

    /// Resumes where a predecessor was, whose copy is gone. Without a copy, records that nothing is
    /// pushed.
    pub fn resume_copy(&self) {
        let registers = &self.registers;
        for (way, queue) in queues() {
            let (words, sent) = (table::words(way, queue), self.sent(way, queue));
            let Some(copied) = &self.copied else {
                sent.store(NOT_SENT, Relaxed);
                continue;
            };
            if way == Direction::Receive {
                // Frames that were about to be handed over are gone with the old copy.
                registers.rx[queue].moving.store(0, Relaxed);
            }
            let taken = registers.tx[queue].taken.load(Relaxed);
            if way == Direction::Send && taken != registers.get(words.head) {
                registers.publish(words.head, taken);
                let _ = self.raise(cause::TXDW | self.sent_cause(queue));
            }
            let (head, size) = (registers.get(words.head), registers.get(words.len) / DESCRIPTOR);
            copied.show(way, queue, head);
            copied.pushed(way, queue).store(head, Relaxed);
            let from = sent.load(Relaxed);
            if from >= size || from == head {
                sent.store(head, Relaxed);
            } else {
                copied.inner().lost[way as usize][queue] = Some(from);
            }
        }
    }

    /// The ring of a queue; `None` if it is not in memory.
    fn ring_of(&self, way: Direction, queue: usize) -> Option<Ring> {
        let words = table::words(way, queue);
        let (base, bytes) = (self.registers.address(words.base), self.registers.get(words.len));
        self.memory.bytes(base, bytes)?;
        let size = bytes / DESCRIPTOR;
        (size > 0).then_some(Ring { base, size })
    }

    /// The `count` descriptors at `place`, as the copy has them.
    fn read_ring(&self, ring: Ring, place: u32, count: u32) -> Vec<u8> {
        let bytes = self.memory.bytes(ring.at(place), count * DESCRIPTOR);
        bytes.map_or_else(Vec::new, |bytes| bytes.to_vec())
    }

    /// Fetches descriptors before the head that may not have left, and finishes those that are not
    /// done. Descriptors that were done and made available again belong to the driver.
    fn find_lost(&self, inner: &mut Inner, held: &mut Held, way: Direction, queue: usize, at: u32) {
        let (words, head) = (table::words(way, queue), self.head(way, queue));
        let ring = self.ring_of(way, queue).filter(|ring| at < ring.size && head < ring.size);
        let Some(ring) = ring.filter(|_| at != head) else {
            inner.lost[way as usize][queue] = None;
            return;
        };
        let run = ring.place(at).run(head).min(RECEIVED);
        let Want::Here(bytes) = held.want_run(ring.at(at), (run * DESCRIPTOR) as usize) else {
            return;
        };
        let descriptors = self::words(bytes);
        let next = ring.place(at).after(descriptors.len() as u32);
        inner.lost[way as usize][queue] = Some(next).filter(|next| *next != head);
        let mut filling = self.lock(queue);
        filling.notice_filters(self);
        let (extended, split) = (filling.filter.extended, filling.filter.split.is_some());
        let status = if way == Direction::Receive && (extended || split) { 0 } else { 32 };
        let tail = self.registers.observe(words.tail).min(ring.size - 1);
        // Drivers also write the descriptor at the tail.
        let is_offered = |at: u32| ring.place(head).distance(at) <= ring.place(head).distance(tail);
        for (at, [first, second]) in (at..).zip(descriptors) {
            let is_done = second >> status & u64::from(rx::DD) != 0;
            let done = match way {
                _ if is_done || is_offered(at) => continue,
                Direction::Send if second & (tx::RS | tx::RPS) == 0 => continue,
                Direction::Send => [first, second | tx::DD],
                // The first descriptor of a pair describes both.
                Direction::Receive if split && ring.place(at).distance(head) % 2 == 1 => continue,
                Direction::Receive => [if status == 0 { 0 } else { first }, filling.damaged()],
            };
            inner.mended[way as usize][queue].push_back((ring.at(at), done));
        }
    }

    /// The causes that tell the driver that a queue has moved.
    fn moved_causes(&self, way: Direction, queue: usize) -> u32 {
        match way {
            Direction::Send => cause::TXDW | self.sent_cause(queue),
            Direction::Receive => cause::RXT0 | self.received_cause(queue),
        }
    }

    /// Fetches descriptors that the driver has made available, with the buffers of those to be
    /// sent.
    fn fetch_ring(&self, inner: &mut Inner, held: &mut Held, way: Direction, queue: usize) {
        let Some(copied) = &self.copied else { return };
        let at = copied.shown(way, queue);
        let tail = self.registers.observe(table::words(way, queue).tail);
        if at == tail || !self.is_on(way) {
            return;
        }
        let ring = self.ring_of(way, queue).filter(|ring| at < ring.size && tail < ring.size);
        // The model itself reports what is wrong with the ring.
        let Some(ring) = ring else { return copied.show(way, queue, tail) };
        let pushed = copied.pushed(way, queue).load(Relaxed).min(ring.size);
        if ring.place(pushed).distance(at) >= AHEAD {
            return;
        }
        let most = if way == Direction::Send { SENT } else { RECEIVED };
        let run = ring.place(at).run(tail).min(most);
        let Want::Here(bytes) = held.want_run(ring.at(at), (run * DESCRIPTOR) as usize) else {
            return;
        };
        let words = words(bytes);
        let count = match way {
            Direction::Send => {
                let buffers: Vec<_> = words.iter().map(|words| buffer(*words)).collect();
                let Some(ready) = held.lay(&self.memory, &buffers, LONGEST) else { return };
                ready
            }
            Direction::Receive => {
                inner.offered[queue].resize(ring.size as usize, [0; 2]);
                let to = inner.offered[queue].iter_mut().skip(at as usize);
                to.zip(&words).for_each(|(to, words)| *to = *words);
                words.len()
            }
        };
        for (n, words) in (0..).zip(&words[..count]) {
            self.memory.put(ring.at(at + n), words.map(u64::to_le_bytes).as_flattened());
        }
        copied.show(way, queue, ring.place(at).after(count as u32));
    }

    /// True if a direction is enabled, and memory may be used.
    fn is_on(&self, way: Direction) -> bool {
        let registers = &self.registers;
        registers.may_access_memory()
            && match way {
                Direction::Send => registers.get(table::TCTL) & tctl::EN != 0,
                Direction::Receive => registers.get(table::RCTL) & rctl::EN != 0,
            }
    }

    /// Pushes the descriptors of sent frames, if the driver wants to know.
    fn push_sent(&self, queue: usize, ring: Ring, out: &mut dyn Out) -> u32 {
        let Some(copied) = &self.copied else { return 0 };
        let (pushed, head) =
            (copied.pushed(Direction::Send, queue), self.head(Direction::Send, queue));
        let mut causes = 0;
        while pushed.load(Relaxed) != head && out.has_room() {
            let at = pushed.load(Relaxed);
            let count = ring.place(at).run(head).min(RECEIVED);
            let bytes = self.read_ring(ring, at, count);
            let is_done = |[_, second]: &Words| second & tx::DD != 0;
            let done = words(&bytes).iter().rposition(is_done).map_or(0, |last| last + 1);
            if done > 0 {
                out.write(ring.at(at), &bytes[..done * DESCRIPTOR as usize]);
                causes |= self.moved_causes(Direction::Send, queue);
            }
            pushed.store(ring.place(at).after(count), Relaxed);
        }
        causes
    }

    /// Pushes received frames, and then their descriptors.
    fn push_received(&self, inner: &Inner, queue: usize, ring: Ring, out: &mut dyn Out) -> u32 {
        let Some(copied) = &self.copied else { return 0 };
        let filling = self.lock(queue);
        let (pushed, head) =
            (copied.pushed(Direction::Receive, queue), self.head(Direction::Receive, queue));
        let step = if filling.filter.split.is_some() { 2 } else { 1 };
        let mut causes = 0;
        while pushed.load(Relaxed) != head && out.has_room() {
            let at = pushed.load(Relaxed);
            let bytes = self.read_ring(ring, at, ring.place(at).run(head).min(RECEIVED));
            let written = words(&bytes);
            let offered = inner.offered[queue].get(at as usize..).unwrap_or_default();
            let mut count = 0;
            while count < written.len() && out.has_room() {
                let pair = |all: &[Words], n| all.get(n).copied().unwrap_or_default();
                let both = |all: &[Words]| [pair(all, count), pair(all, count + 1)];
                let (offered, written) = (both(offered), both(&written));
                for (to, len) in filling.filter.filled(offered, written) {
                    self.memory.read_each(to, len, |to, bytes| out.write(to, &bytes.to_vec()));
                }
                count += step;
            }
            let count = count.min(written.len());
            if count == 0 {
                break;
            }
            let bytes = &bytes[..count * DESCRIPTOR as usize];
            if step == 2 {
                // Lengths go first, so that no driver finds a done descriptor without its length.
                let mut lengths = bytes.to_vec();
                lengths.chunks_mut(32).for_each(|pair| pair[8] = 0);
                out.write(ring.at(at), &lengths);
            }
            out.write(ring.at(at), bytes);
            causes |= self.moved_causes(Direction::Receive, queue);
            pushed.store(ring.place(at).after(count as u32), Relaxed);
        }
        causes
    }
}

impl super::filter::Filter {
    /// The buffers that a descriptor was filled into, with their byte counts. Takes two
    /// descriptors, as offered and as written. With packet split, the second belongs to the first.
    fn filled(&self, offered: [Words; 2], written: [Words; 2]) -> Vec<(u64, u32)> {
        let [_, second] = written[0];
        let len =
            if self.extended || self.split.is_some() { second >> 32 } else { second } & 0xffff;
        let filled = match self.split {
            None => vec![(offered[0][0], len.min(self.buffer as u64) as u32)],
            Some(sizes) => {
                let more = |n: u32| written[1][0] >> (16 * n) & 0xffff;
                let lens = [len, more(1), more(2), more(3)];
                let buffers = offered.as_flattened().iter().zip(lens).zip(sizes);
                buffers.map(|((at, len), size)| (*at, len.min(size.into()) as u32)).collect()
            }
        };
        filled.into_iter().filter(|(at, len)| *at != 0 && *len > 0).collect()
    }
}

/// All queues, by direction and number.
fn queues() -> impl Iterator<Item = (Direction, usize)> {
    [Direction::Send, Direction::Receive].into_iter().flat_map(|way| [(way, 0), (way, 1)])
}

/// The buffer of a transmit descriptor, unless that is a context.
fn buffer([first, second]: Words) -> Option<(u64, u32)> {
    let is_context = second & (tx::DEXT | tx::DTYP) == tx::DEXT;
    (!is_context).then(|| (first, data_len(second)))
}

/// Descriptors, as two words each.
fn words(bytes: &[u8]) -> Vec<Words> {
    let longs = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let longs: Vec<u64> = longs.collect();
    longs.as_chunks::<2>().0.to_vec()
}

impl Remote for Core {
    fn fetch(&self, held: &mut Held, _now: Nanos) {
        let Some(copied) = &self.copied else { return };
        let mut inner = copied.inner();
        if copied.reset.swap(false, Relaxed) {
            held.restart();
        }
        for (way, queue) in queues() {
            let moved = copied.moved[way as usize][queue].load(Relaxed);
            if std::mem::replace(&mut inner.moved[way as usize][queue], moved) != moved {
                held.clear();
                inner.lost[way as usize][queue] = None;
                inner.mended[way as usize][queue].clear();
            }
        }
        for (way, queue) in queues() {
            match inner.lost[way as usize][queue] {
                Some(_) if !self.registers.may_access_memory() => {}
                Some(at) => self.find_lost(&mut inner, held, way, queue, at),
                None => self.fetch_ring(&mut inner, held, way, queue),
            }
        }
    }

    fn push(&self, out: &mut dyn Out) -> u32 {
        let Some(copied) = self.copied.as_ref().filter(|_| self.registers.may_access_memory())
        else {
            return 0;
        };
        let mut inner = copied.inner();
        let mut causes = 0;
        for (way, queue) in queues() {
            while out.has_room()
                && let Some((at, words)) = inner.mended[way as usize][queue].pop_front()
            {
                out.write(at, words.map(u64::to_le_bytes).as_flattened());
                causes |= self.moved_causes(way, queue);
            }
            let places = [copied.pushed(way, queue).load(Relaxed), self.head(way, queue)];
            if places[0] == places[1] {
                continue;
            }
            let is_inside = |ring: &Ring| places.iter().all(|place| *place < ring.size);
            causes |= match (way, self.ring_of(way, queue).filter(is_inside)) {
                (Direction::Send, Some(ring)) => self.push_sent(queue, ring, out),
                (Direction::Receive, Some(ring)) => self.push_received(&inner, queue, ring, out),
                (_, None) => 0,
            };
        }
        causes
    }

    fn confirm_pushed(&self, causes: u32) {
        let _ = self.raise(causes);
    }

    fn confirm_all_pushed(&self) {
        let all = queues().fold(0, |all, (way, queue)| all | self.moved_causes(way, queue));
        let _ = self.raise(all);
    }

    fn note_sent(&self) {
        let Some(copied) = &self.copied else { return };
        let inner = copied.inner();
        for (way, queue) in queues().filter(|(way, queue)| !inner.has_lost(*way, *queue)) {
            let pushed = copied.pushed(way, queue).load(Relaxed);
            self.sent(way, queue).store(pushed, Relaxed);
        }
    }

    fn forget(&self) -> bool {
        let Some(copied) = &self.copied else { return false };
        let inner = copied.inner();
        let unused = [self.lock(0), self.lock(1)];
        let is_whole = |(way, queue): (Direction, usize)| {
            let pushed = copied.pushed(way, queue).load(Relaxed);
            pushed == self.head(way, queue) && !inner.has_lost(way, queue)
        };
        let is_lent = |queue: usize| {
            self.registers.tx[queue].taken.load(Relaxed) != self.head(Direction::Send, queue)
        };
        if !queues().all(is_whole) || is_lent(0) || is_lent(1) {
            return false;
        }
        queues().for_each(|(way, queue)| copied.restart(way, queue, self.head(way, queue)));
        // The copy shows no descriptors now, so no thread reads or awaits what is discarded here.
        drop(unused);
        self.memory.discard();
        true
    }

    fn fail(&self) {
        self.registers.fail(Fault::Unreachable);
    }
}
