//! Random numbers: one generator for each kind of fate.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a short generator that never changes, so a seed
/// always means the same sequence.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
    step: u64,
}

/// What a generator decides about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Loss,
    Duplicate,
    Reorder,
    Jitter,
    /// From the good to the bad state of a Gilbert-Elliott model, and back.
    State,
    Corrupt,
    /// Early drops of a queue discipline.
    Early,
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// The kinds that share a sequence: each takes every fourth number of it.
const SHARING: u64 = 4;

impl Random {
    /// The generator of a kind for queue number `queue` of a port. Each queue has its own.
    pub fn of(seed: u64, queue: usize, kind: Kind) -> Self {
        let base = seed.wrapping_add((queue as u64).wrapping_mul(0xd134_2543_de82_ef95));
        let kind = kind as u64;
        if kind < SHARING {
            let step = GAMMA.wrapping_mul(SHARING);
            let first = base.wrapping_add(GAMMA.wrapping_mul(kind + 1));
            return Self { state: first.wrapping_sub(step), step };
        }
        Self { state: mix(base ^ kind.wrapping_mul(GAMMA)), step: GAMMA }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(self.step);
        mix(self.state)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns true with a probability of `ppm` parts per million.
    pub fn hits(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }
}

/// A hash of a word that changes about half of its bits for each bit that differs.
pub(crate) fn mix(word: u64) -> u64 {
    let mixed = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sequence gave four numbers to each frame in earlier versions. Seeds keep their meaning.
    #[test]
    fn four_kinds_take_turns_in_one_sequence() {
        let mut whole = 7u64;
        let mut next = || {
            whole = whole.wrapping_add(GAMMA);
            mix(whole)
        };
        let kinds = [Kind::Loss, Kind::Duplicate, Kind::Reorder, Kind::Jitter];
        let mut each = kinds.map(|kind| Random::of(7, 0, kind));
        for _ in 0..100 {
            each.iter_mut().for_each(|random| assert_eq!(random.next(), next()));
        }
    }

    #[test]
    fn kinds_and_queues_differ() {
        let kinds = [Kind::Loss, Kind::State, Kind::Corrupt, Kind::Early];
        let firsts: std::collections::BTreeSet<u64> = kinds
            .into_iter()
            .flat_map(|kind| [0, 1].map(|queue| Random::of(1, queue, kind).next()))
            .collect();
        assert_eq!(firsts.len(), 8);
    }
}
