//! What a link counts, for its own use and for those who look.

use std::sync::Arc;

use port::Counter;
use serde::{Deserialize, Serialize};

/// Why a link dropped a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The queue was full.
    Full,
    /// The queue discipline dropped it.
    Early,
    /// It was lost on the line.
    Lost,
    /// There was no memory for it.
    Memory,
}

/// Counts of frames since the last [`take_tally`](crate::Link::take_tally).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames that found the queue full.
    pub full: u64,
    /// Frames that the queue discipline dropped.
    pub early: u64,
    /// Frames that were lost on the line.
    pub lost: u64,
    /// Frames without memory.
    pub memory: u64,
    /// Copies that were added.
    pub duplicated: u64,
    /// Frames that overtook others.
    pub reordered: u64,
    /// Frames with a changed bit.
    pub corrupted: u64,
    /// Frames in which congestion was marked.
    pub marked: u64,
}

impl Tally {
    pub(crate) fn drop_frame(&mut self, cause: Cause) {
        match cause {
            Cause::Full => self.full += 1,
            Cause::Early => self.early += 1,
            Cause::Lost => self.lost += 1,
            Cause::Memory => self.memory += 1,
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.full += other.full;
        self.early += other.early;
        self.lost += other.lost;
        self.memory += other.memory;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.marked += other.marked;
    }

    /// Frames that were dropped because they would have had to wait.
    #[must_use]
    pub fn queue_drops(&self) -> u64 {
        self.full + self.early + self.memory
    }
}

/// Bits of a time below its highest that a bucket tells apart.
const FINE: u32 = 2;
/// Buckets of the histogram of times in the queue: four for each power of two, up to 2^40 ns.
const BUCKETS: usize = 40 << FINE;

/// The counters of a link. The link writes them; any thread reads them.
///
/// # Protocol: `link::Meter`
/// - Writer: the thread that holds the link
/// - Reader: control thread
/// - Ordering: relaxed load and store, not read-modify-write
/// - Without it: a statistic is a little old
/// - Shown by: link tests
#[derive(Debug)]
pub struct Meter {
    queue_frames: Counter,
    queue_bytes: Counter,
    most_bytes: Counter,
    flight: Counter,
    memory: Counter,
    sent_frames: Counter,
    sent_bytes: Counter,
    tally: [Counter; 8],
    sojourn: [Counter; BUCKETS],
}

impl Default for Meter {
    fn default() -> Self {
        let zero = Counter::zero;
        Self {
            queue_frames: zero(),
            queue_bytes: zero(),
            most_bytes: zero(),
            flight: zero(),
            memory: zero(),
            sent_frames: zero(),
            sent_bytes: zero(),
            tally: std::array::from_fn(|_| zero()),
            sojourn: std::array::from_fn(|_| zero()),
        }
    }
}

/// A meter that a link writes.
pub type SharedMeter = Arc<Meter>;

/// What a link holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holding {
    pub frames: u64,
    pub bytes: u64,
    pub flight: u64,
    pub memory: u64,
}

/// A link's counters at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct LinkStats {
    /// Frames in the queue.
    pub queue_frames: u64,
    /// Bytes of frames in the queue.
    pub queue_bytes: u64,
    /// The most bytes that were in the queue.
    pub queue_most_bytes: u64,
    /// Frames on their way behind the queue.
    pub flight_frames: u64,
    /// Bytes of memory that frames take.
    pub memory: u64,
    /// Frames that the line carried.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that found the queue full.
    pub dropped_full: u64,
    /// Frames that the queue discipline dropped.
    pub dropped_early: u64,
    /// Frames lost on the line.
    pub dropped_lost: u64,
    /// Frames without memory.
    pub dropped_memory: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames that overtook others.
    pub reordered: u64,
    /// Frames with a changed bit.
    pub corrupted: u64,
    /// Frames in which congestion was marked.
    pub marked: u64,
    /// The time in the queue that half of the frames did not exceed, in nanoseconds.
    pub sojourn_p50_ns: u64,
    /// The same for 90 of 100 frames.
    pub sojourn_p90_ns: u64,
    /// The same for 99 of 100 frames.
    pub sojourn_p99_ns: u64,
    /// The same for all frames.
    pub sojourn_max_ns: u64,
}

/// The bucket of a time in nanoseconds.
fn bucket(ns: u64) -> usize {
    let ns = ns.max(1 << FINE);
    let high = ns.ilog2();
    let part = ns >> (high - FINE) & ((1 << FINE) - 1);
    (((high - FINE) << FINE) as usize + part as usize).min(BUCKETS - 1)
}

/// The end of a bucket in nanoseconds.
fn end_of(bucket: usize) -> u64 {
    let (high, part) = ((bucket >> FINE) as u32, (bucket & ((1 << FINE) - 1)) as u64);
    ((1 << FINE) + part + 1) << high
}

impl Meter {
    /// Counts a frame that left the queue after `ns` nanoseconds.
    #[inline]
    pub(crate) fn sent(&self, bytes: usize, ns: u64) {
        self.sent_frames.add(1);
        self.sent_bytes.add(bytes as u64);
        self.sojourn[bucket(ns)].add(1);
    }

    /// Sets what the link holds, and adds what it has counted.
    pub(crate) fn publish(&self, holding: Holding, tally: &Tally) {
        self.queue_frames.set(holding.frames);
        self.queue_bytes.set(holding.bytes);
        self.flight.set(holding.flight);
        self.memory.set(holding.memory);
        let Tally { full, early, lost, memory, duplicated, reordered, corrupted, marked } = *tally;
        let more = [full, early, lost, memory, duplicated, reordered, corrupted, marked];
        self.tally.iter().zip(more).filter(|(_, n)| *n > 0).for_each(|(count, n)| count.add(n));
    }

    /// Notes how long the queue was.
    #[inline]
    pub(crate) fn note_queue(&self, bytes: u64) {
        if bytes > self.most_bytes.get() {
            self.most_bytes.set(bytes);
        }
    }

    /// The time that a share of frames, in percent, did not exceed.
    fn percentile(&self, counts: &[u64], percent: u64) -> u64 {
        let wanted = (counts.iter().sum::<u64>() * percent).div_ceil(100);
        let mut sum = 0;
        let reached = counts.iter().position(|count| {
            sum += count;
            sum >= wanted && wanted > 0
        });
        // The first bucket also has frames that did not wait.
        reached.map_or(0, |at| if at == 0 { 0 } else { end_of(at) })
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        let counts: Vec<u64> = self.sojourn.iter().map(Counter::get).collect();
        let [full, early, lost, memory, duplicated, reordered, corrupted, marked] =
            std::array::from_fn(|at| self.tally[at].get());
        LinkStats {
            queue_frames: self.queue_frames.get(),
            queue_bytes: self.queue_bytes.get(),
            queue_most_bytes: self.most_bytes.get(),
            flight_frames: self.flight.get(),
            memory: self.memory.get(),
            sent_frames: self.sent_frames.get(),
            sent_bytes: self.sent_bytes.get(),
            dropped_full: full,
            dropped_early: early,
            dropped_lost: lost,
            dropped_memory: memory,
            duplicated,
            reordered,
            corrupted,
            marked,
            sojourn_p50_ns: self.percentile(&counts, 50),
            sojourn_p90_ns: self.percentile(&counts, 90),
            sojourn_p99_ns: self.percentile(&counts, 99),
            sojourn_max_ns: self.percentile(&counts, 100),
        }
    }
}

impl LinkStats {
    /// Adds the counters of another queue of the same port. Percentiles become the larger ones.
    pub fn add(&mut self, other: &Self) {
        let sums: [(&mut u64, u64); 15] = [
            (&mut self.queue_frames, other.queue_frames),
            (&mut self.queue_bytes, other.queue_bytes),
            (&mut self.queue_most_bytes, other.queue_most_bytes),
            (&mut self.flight_frames, other.flight_frames),
            (&mut self.memory, other.memory),
            (&mut self.sent_frames, other.sent_frames),
            (&mut self.sent_bytes, other.sent_bytes),
            (&mut self.dropped_full, other.dropped_full),
            (&mut self.dropped_early, other.dropped_early),
            (&mut self.dropped_lost, other.dropped_lost),
            (&mut self.dropped_memory, other.dropped_memory),
            (&mut self.duplicated, other.duplicated),
            (&mut self.reordered, other.reordered),
            (&mut self.corrupted, other.corrupted),
            (&mut self.marked, other.marked),
        ];
        sums.into_iter().for_each(|(sum, more)| *sum += more);
        let maxima = [
            (&mut self.sojourn_p50_ns, other.sojourn_p50_ns),
            (&mut self.sojourn_p90_ns, other.sojourn_p90_ns),
            (&mut self.sojourn_p99_ns, other.sojourn_p99_ns),
            (&mut self.sojourn_max_ns, other.sojourn_max_ns),
        ];
        maxima.into_iter().for_each(|(most, more)| *most = (*most).max(more));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use port::Nanos;

    #[test]
    fn times_fall_into_buckets_a_quarter_of_a_power_wide() {
        for ns in (0..60).flat_map(|shift| [1u64 << shift, (1 << shift) + 1, (3 << shift) - 1]) {
            let end = end_of(bucket(ns));
            assert!(end > ns || bucket(ns) == BUCKETS - 1, "{ns} {end}");
            assert!(!(4..1 << 40).contains(&ns) || end <= ns + ns / 4 + 1, "{ns} {end}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_frames() {
        let meter = Meter::default();
        (1..=100).for_each(|ms| meter.sent(100, ms * Nanos::MILLI));
        let stats = meter.stats();
        assert_eq!((stats.sent_frames, stats.sent_bytes), (100, 10_000));
        for (is, ms) in [
            (stats.sojourn_p50_ns, 50),
            (stats.sojourn_p90_ns, 90),
            (stats.sojourn_p99_ns, 99),
            (stats.sojourn_max_ns, 100),
        ] {
            let wanted = ms * Nanos::MILLI;
            assert!((wanted..wanted + wanted / 4).contains(&is), "{is} for {ms} ms");
        }
        assert_eq!(Meter::default().stats(), LinkStats::default());
    }
}
