//! An impaired link in operation: the frames in flight on it.

use std::collections::VecDeque;

use port::{Nanos, Offload, Picked, Scratch};
use shmem::Bytes;

use crate::Impairment;

/// The maximum number of bytes in flight, apart from the batch that crosses this limit.
const MAX_BYTES: usize = 16 << 20;
/// A buffer that is kept for reuse is no longer than this.
const KEPT: usize = 4096;

/// One direction of one queue of an impaired link. It copies frames, so that their owner gets them
/// back at once. It lends its copies out when they are due.
#[derive(Debug)]
pub struct Channel {
    config: Impairment,
    queue: usize,
    random: Random,
    /// Frames in flight, ordered by due time; reordered ones go in front.
    under_way: VecDeque<Copied>,
    /// Frames lent out and not yet completed.
    lent: VecDeque<Copied>,
    spare: Vec<Vec<u8>>,
    /// Bytes of both.
    bytes: usize,
    /// When the latest frame that is not reordered is due.
    latest: Nanos,
    tally: ImpairmentCounts,
    /// Frames that were lost so far.
    lost: u64,
}

#[derive(Debug)]
struct Copied {
    due: Nanos,
    offload: Offload,
    /// The host behind the port that sent the frame; 0 for the port itself.
    via: u16,
    bytes: Vec<u8>,
}

/// Counts of frames since the last [`take_tally`](Channel::take_tally).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairmentCounts {
    /// Frames that were lost.
    pub lost: u64,
    /// Copies that were added.
    pub duplicated: u64,
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a short generator that never changes, so a seed
/// always means the same sequence.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn of(seed: u64, queue: usize) -> Self {
        Self(seed.wrapping_add((queue as u64).wrapping_mul(0xd134_2543_de82_ef95)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns true with a probability of `ppm` parts per million.
    fn hits(&mut self, ppm: u32) -> bool {
        self.below(u64::from(Impairment::ALL)) < u64::from(ppm)
    }
}

impl Channel {
    /// A channel for queue number `queue` of a port. Each queue has its own random numbers.
    #[must_use]
    pub fn new(config: Impairment, queue: usize) -> Self {
        Self {
            config,
            queue,
            random: Random::of(config.seed, queue),
            under_way: VecDeque::new(),
            lent: VecDeque::new(),
            spare: Vec::new(),
            bytes: 0,
            latest: Nanos(0),
            tally: ImpairmentCounts::default(),
            lost: 0,
        }
    }

    /// How many frames the channel accepts now.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.bytes >= MAX_BYTES {
            return 0;
        }
        (self.config.limit as usize).saturating_sub(self.under_way.len() + self.lent.len())
    }

    /// True if the channel holds no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.lent.is_empty()
    }

    /// When the next frame is due.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        self.under_way.front().map(|frame| frame.due)
    }

    /// Puts a frame in flight, with `beside` it: its request, and the host behind its port that
    /// sent it. Call it for at most [`room`](Self::room) frames. Returns false if it is lost.
    pub fn admit(&mut self, frame: Picked<'_>, beside: (Offload, u16), now: Nanos) -> bool {
        let Impairment { loss_ppm, duplicate_ppm, reorder_ppm, delay_us, jitter_us, .. } =
            self.config;
        // Every frame draws all its numbers, so one setting does not change the outcome of another.
        let lost = self.random.hits(loss_ppm);
        let twice = self.random.hits(duplicate_ppm);
        let overtakes = self.random.hits(reorder_ppm);
        let jitter = self.random.below(2 * u64::from(jitter_us) * 1000 + 1);
        if lost {
            self.tally.lost += 1;
            self.lost += 1;
            return false;
        }
        let delay = u64::from(delay_us - jitter_us.min(delay_us)) * 1000 + jitter;
        let due = if overtakes { now } else { self.latest.max(now + delay) };
        self.put(frame, beside, due, overtakes);
        if twice && self.room() > 0 {
            self.tally.duplicated += 1;
            self.put(frame, beside, due, overtakes);
        }
        true
    }

    /// How many frames were lost so far.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    fn put(
        &mut self,
        frame: Picked<'_>,
        (offload, via): (Offload, u16),
        due: Nanos,
        overtakes: bool,
    ) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(frame.len(), 0);
        frame.copy_to(Bytes::of(&mut bytes));
        self.bytes += bytes.len();
        let copied = Copied { due, offload, via, bytes };
        if overtakes {
            self.under_way.push_front(copied);
        } else {
            self.latest = due;
            self.under_way.push_back(copied);
        }
    }

    /// Lends out the frames that are due, up to `max`. Returns how many. Their bytes stay in place
    /// until they are [completed](Self::complete) or [put back](Self::put_back).
    pub fn release(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        let mut released = 0;
        while released < max && scratch.has_room() && self.due().is_some_and(|due| due <= now) {
            let Some(mut frame) = self.under_way.pop_front() else { break };
            scratch.push(Bytes::of(&mut frame.bytes).span());
            if frame.offload != Offload::NONE {
                scratch.set_offload(frame.offload);
            }
            if frame.via != 0 {
                scratch.set_via(frame.via);
            }
            self.lent.push_back(frame);
            released += 1;
        }
        released
    }

    /// Takes back the oldest frames that were lent out, after their delivery.
    pub fn complete(&mut self, frames: usize) {
        for frame in self.lent.drain(..frames.min(self.lent.len())) {
            self.bytes -= frame.bytes.len();
            if frame.bytes.capacity() <= KEPT {
                self.spare.push(frame.bytes);
            }
        }
    }

    /// Takes back all frames that are lent out; they stay due.
    pub fn put_back(&mut self) {
        while let Some(frame) = self.lent.pop_back() {
            self.under_way.push_front(frame);
        }
    }

    /// Drops the frames in flight that are not lent out. Returns how many.
    pub fn abandon(&mut self) -> usize {
        let lent: usize = self.lent.iter().map(|frame| frame.bytes.len()).sum();
        self.bytes = lent;
        self.under_way.drain(..).count()
    }

    /// Applies `config` to later frames. With `None`, the link is perfect again, and the frames in
    /// flight are due at once.
    pub fn set(&mut self, config: Option<Impairment>) {
        match config {
            Some(config) => {
                self.random = Random::of(config.seed, self.queue);
                self.config = config;
            }
            None => {
                self.config = Impairment { limit: self.config.limit, ..Impairment::default() };
                self.make_all_due();
            }
        }
    }

    /// Makes all frames due at once.
    pub fn make_all_due(&mut self) {
        self.latest = Nanos(0);
        self.under_way.iter_mut().for_each(|frame| frame.due = Nanos(0));
    }

    /// True if the channel neither impairs frames nor holds any.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.config.is_off() && self.is_empty()
    }

    /// Returns the counts of frames since the last call.
    pub fn take_tally(&mut self) -> ImpairmentCounts {
        std::mem::take(&mut self.tally)
    }
}

#[cfg(test)]
mod tests;
