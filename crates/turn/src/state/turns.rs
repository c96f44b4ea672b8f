//! How long a worker's turns took: a histogram in state memory, written by one worker.
//!
//! Each power of two of nanoseconds has eight buckets, so that a bucket's bounds differ by 12.5 %
//! at most.

use port::Counter;
use port::stats::TurnTime;

/// Turns shorter than this share the first bucket.
const SHORTEST_LOG2: u32 = 10;
/// Turns from here on share the last bucket: a minute.
const LONGEST_LOG2: u32 = 36;
/// Buckets of a power of two, as a power of two.
const STEPS_LOG2: u32 = 3;
const BUCKETS: usize = 1 + (((LONGEST_LOG2 - SHORTEST_LOG2) << STEPS_LOG2) as usize);

/// The histogram.
#[derive(Debug)]
#[repr(transparent)]
pub struct Turns([Counter; BUCKETS]);

impl Default for Turns {
    fn default() -> Self {
        Self([const { Counter::zero() }; BUCKETS])
    }
}

impl Turns {
    /// Counts a turn of `ns` nanoseconds.
    #[inline]
    pub fn add(&self, ns: u64) {
        if let Some(bucket) = self.0.get(bucket(ns)) {
            bucket.add(1);
        }
    }

    /// The number of turns that took `ns` nanoseconds or longer.
    #[must_use]
    pub fn from(&self, ns: u64) -> u64 {
        self.0[bucket(ns)..].iter().map(Counter::get).fold(0, u64::wrapping_add)
    }

    /// The buckets that have turns, shortest first.
    #[must_use]
    pub fn read(&self) -> Vec<TurnTime> {
        let all = self.0.iter().enumerate().map(|(i, n)| (end(i), n.get()));
        let used = all.filter(|(_, turns)| *turns > 0);
        used.map(|(under_ns, turns)| TurnTime { under_ns, turns }).collect()
    }
}

#[inline]
fn bucket(ns: u64) -> usize {
    let ns = ns.max(1 << SHORTEST_LOG2);
    let log2 = ns.ilog2();
    let step = (ns >> (log2 - STEPS_LOG2)) as usize & ((1 << STEPS_LOG2) - 1);
    let power = ((log2 - SHORTEST_LOG2) << STEPS_LOG2) as usize;
    (power + step).min(BUCKETS - 1)
}

/// The least number of nanoseconds beyond the bucket.
fn end(bucket: usize) -> u64 {
    let (power, step) = (bucket >> STEPS_LOG2, bucket & ((1 << STEPS_LOG2) - 1));
    let unit = 1u64 << (power as u32 + SHORTEST_LOG2 - STEPS_LOG2);
    unit * ((1 << STEPS_LOG2) + step as u64 + 1)
}

#[cfg(test)]
mod tests {
    use port::stats::percentile;

    use super::*;

    #[test]
    fn each_time_lies_in_a_bucket_that_ends_beyond_it_by_an_eighth_at_most() {
        let times = (10..36).flat_map(|log2| (0..64).map(move |part| (64 + part) << (log2 - 6)));
        for ns in times {
            let end = end(bucket(ns));
            assert!(ns < end && end - ns <= ns / 8 + 1, "{ns} ends at {end}");
        }
        assert_eq!((bucket(0), bucket(1023), bucket(1024)), (0, 0, 0));
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn long_turns_are_told_from_short_ones() {
        let turns = Turns::default();
        [1_000_000, 1_900_000, 2_100_000, u64::MAX].into_iter().for_each(|ns| turns.add(ns));
        assert_eq!((turns.from(2_097_152), turns.from(0)), (2, 4));
    }

    #[test]
    fn percentiles_are_of_the_turns_between_two_readings() {
        let turns = Turns::default();
        turns.add(1_000_000);
        let before = turns.read();
        (0..99).for_each(|_| turns.add(5_000));
        turns.add(3_000_000);
        let after = turns.read();
        let at = |share| percentile(&before, &after, share).unwrap();
        assert!((5_001..5_700).contains(&at(0.99)), "{}", at(0.99));
        assert!((3_000_001..3_400_000).contains(&at(1.0)), "{}", at(1.0));
        assert_eq!(percentile(&after, &after, 0.5), None);
    }
}
