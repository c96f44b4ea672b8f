//! What the switch remembers between batches about a sending port, and about each of its send
//! queues.

use port::{FrameIdx, Nanos};

use crate::Fdb;

/// The value of the last source before there is any.
const NO_SOURCE: u64 = u64::MAX;

/// Usual number of receivers that a batch waits for at once. More of them need an allocation.
const WAITS: usize = 16;

/// State of a port that holds for all its send queues. The worker that serves the port owns it.
#[derive(Debug, Default)]
pub struct PortMemory {
    /// The one source of a locked port without configured addresses.
    pub(crate) first_source: Option<u64>,
    flood: FloodBucket,
}

impl PortMemory {
    /// How many of `frames` flooded frames may pass, at a limit of `rate` per second.
    pub(crate) fn admit_floods(&mut self, frames: usize, rate: u32, now: Nanos) -> usize {
        self.flood.take(frames, rate, now)
    }
}

/// State of a send queue. The worker that serves the queue owns it.
#[derive(Debug)]
pub struct Sender {
    /// The port's number.
    pub(crate) port: u16,
    /// The send queue's number in its port.
    pub(crate) queue: u16,
    /// The last source, with its filter, so that a run of frames from one address is learned once.
    pub(crate) last_source: u64,
    fdb_generation: u64,
    second: u64,
    pub(crate) stalled: Vec<Stalled>,
    /// The receive queues that stalled frames wait for.
    pub(crate) waits: Vec<Wait>,
    /// When the stalled batch was gathered.
    pub(crate) gathered_at: Nanos,
    /// How many frames of the stalled batch were gathered.
    pub(crate) gathered: usize,
    /// How many frames of the stalled batch were completed.
    pub(crate) completed: usize,
}

/// A sender: a port, and one of its send queues.
#[derive(Debug)]
pub struct Sending<'a> {
    /// The port's memory.
    pub memory: &'a mut PortMemory,
    /// The queue's.
    pub queue: &'a mut Sender,
}

/// A frame that waits for a lossless receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stalled {
    /// The gathered frame.
    pub frame: FrameIdx,
    /// What to deliver: the frame or a variant of it.
    pub variant: FrameIdx,
    pub port: u16,
    pub instance: u32,
    pub queue: u16,
    /// How many segments of the frame are already delivered.
    pub segments: u16,
}

/// The progress of a receive queue for which frames wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub port: u16,
    pub queue: u16,
    /// How many frames the queue had received at the last check.
    pub frames: u64,
    /// Since when the number of received frames has not changed.
    pub since: Nanos,
}

impl Sender {
    /// The state of send queue `queue` of port `port`.
    #[must_use]
    pub fn new(port: u16, queue: u16) -> Self {
        Self {
            port,
            queue,
            last_source: NO_SOURCE,
            fdb_generation: 0,
            second: 0,
            stalled: Vec::new(),
            waits: Vec::with_capacity(WAITS),
            gathered_at: Nanos(0),
            gathered: 0,
            completed: 0,
        }
    }

    /// True while frames of the last batch wait for a lossless receiver. Then keep its scratch,
    /// gather nothing, and retry.
    #[inline]
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// The receive queue for which the first stalled frame waits: its port's number, and its own.
    #[must_use]
    pub fn waits_for(&self) -> Option<(u16, u16)> {
        self.stalled.first().map(|stalled| (stalled.port, stalled.queue))
    }

    /// Drops the stalled frames. Returns how many, for the caller to count.
    pub fn abandon(&mut self) -> usize {
        self.waits.clear();
        self.stalled.drain(..).len()
    }

    /// Forgets the last source, because its address may have moved.
    pub(crate) fn forget_source(&mut self) {
        self.last_source = NO_SOURCE;
    }

    /// Forgets the last source when the table dropped entries, and once a second, so that the table
    /// learns that the address is alive.
    #[inline]
    pub(crate) fn refresh(&mut self, fdb: &Fdb, now: Nanos) {
        let (generation, second) = (fdb.generation(), now.seconds());
        if generation != self.fdb_generation || second != self.second {
            self.fdb_generation = generation;
            self.second = second;
            self.last_source = NO_SOURCE;
        }
    }
}

/// A token bucket: `rate` tokens a second, a tenth of a second's worth at most.
#[derive(Debug, Default)]
struct FloodBucket {
    /// Tokens, in billionths.
    tokens: u128,
    filled: Option<Nanos>,
}

impl FloodBucket {
    fn take(&mut self, frames: usize, rate: u32, now: Nanos) -> usize {
        const TOKEN: u128 = Nanos::SECOND as u128;
        let most = u128::from(rate / 10).max(64) * TOKEN;
        self.tokens = match self.filled {
            None => most,
            Some(then) => most.min(self.tokens + u128::from(now - then) * u128::from(rate)),
        };
        self.filled = Some(now);
        let taken = frames.min((self.tokens / TOKEN) as usize);
        self.tokens -= taken as u128 * TOKEN;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_are_limited_to_a_rate_and_a_burst() {
        let mut bucket = FloodBucket::default();
        assert_eq!(bucket.take(5000, 10_000, Nanos(0)), 1000, "a tenth of a second at once");
        assert_eq!(bucket.take(10, 10_000, Nanos(0)), 0);
        assert_eq!(bucket.take(10, 10_000, Nanos(300_000)), 3, "one each 100 us");
        assert_eq!(bucket.take(9999, 10_000, Nanos(60 * Nanos::SECOND)), 1000);
    }
}
