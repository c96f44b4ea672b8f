//! Samples in rounds over the whole list of rows, so that no row has all of its samples in the
//! machine's best or worst minute.
//!
//! A sample is a pair: ours and its peer's, next to each other. It counts where the cores were in
//! one state all the time; otherwise it is repeated, as one whose threads waited for a processor.

use anyhow::Result;

use super::distance::State;
use super::waiting;

/// The least number of samples whose median is compared with a bar: with six, the interval from
/// the lowest to the highest has the true median with a confidence of 97 %; with five, of 94 %.
pub const ENOUGH: u32 = 6;
/// A sample is measured at most as often as this.
const TRIES: u32 = 3;

/// What went on while a value was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    /// A cache line's round trip between the cores in nanoseconds, just before.
    pub before: Option<f64>,
    /// The same just after.
    pub after: Option<f64>,
    /// The greatest share of the time that a thread waited for a processor.
    pub waited: f64,
}

impl Conditions {
    /// The distance of the cores.
    pub fn state(&self) -> State {
        State::between(self.before, self.after)
    }

    /// The mean round trip in nanoseconds.
    fn ns(&self) -> Option<f64> {
        self.before.zip(self.after).map(|(before, after)| f64::midpoint(before, after))
    }
}

/// A value, and what went on meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub value: f64,
    pub conditions: Conditions,
}

/// Ours and the peers' values that were measured next to each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The state in which all of them were measured.
    pub state: State,
    /// The cores' distance in nanoseconds.
    pub ns: Option<f64>,
    /// The greatest share of the time that one of their threads waited for a processor.
    pub waited: f64,
    /// Our value.
    pub ours: f64,
    /// The peers' values, as far as they could be measured.
    pub peers: Vec<Option<f64>>,
}

impl Pair {
    fn new(ours: Reading, peers: &[Option<Reading>]) -> Self {
        let all = || peers.iter().flatten().chain([&ours]).map(|reading| reading.conditions);
        Self {
            state: State::of_all(all().map(|conditions| conditions.state())),
            ns: ours.conditions.ns(),
            waited: all().map(|conditions| conditions.waited).fold(0.0, f64::max),
            ours: ours.value,
            peers: peers.iter().map(|peer| peer.map(|reading| reading.value)).collect(),
        }
    }

    fn is_steady(&self) -> bool {
        self.state != State::Changed
    }

    fn is_good(&self) -> bool {
        self.is_steady() && self.waited <= waiting::LIMIT
    }

    /// Returns true if this is of more use than another one.
    fn is_better_than(&self, other: &Self) -> bool {
        (self.is_steady(), -self.waited) > (other.is_steady(), -other.waited)
    }
}

/// The samples of a row.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// One a round.
    pub pairs: Vec<Pair>,
    /// Why the row could not be measured.
    pub failure: Option<String>,
    /// Why peers could not be measured: number of the peer, reason.
    pub peer_failures: Vec<(usize, String)>,
    /// Measurements that were repeated.
    pub repeated: u32,
    /// What was noted in the last round.
    pub notes: Vec<String>,
}

impl Samples {
    /// The samples that were taken in a state.
    pub fn in_state(&self, state: State) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().filter(move |pair| pair.state == state)
    }

    /// The state with the most samples; `Changed` if no sample was in one.
    pub fn main_state(&self) -> State {
        let count = |state: &State| self.in_state(*state).count();
        let states = [State::Unknown, State::Far, State::Near];
        states
            .into_iter()
            .filter(|state| count(state) > 0)
            .max_by_key(count)
            .unwrap_or(State::Changed)
    }

    /// Returns true if the row needs further rounds to have `rounds` samples in one state.
    fn lacks(&self, rounds: u32) -> bool {
        let steady = self.in_state(self.main_state()).filter(|pair| pair.is_steady());
        self.failure.is_none() && steady.count() < rounds as usize
    }

    /// Adds a sample of `row`.
    fn add(&mut self, bench: &mut impl Bench, row: usize) {
        let mut best: Option<Pair> = None;
        for attempt in 0..TRIES {
            self.repeated += u32::from(attempt > 0);
            let Some(pair) = self.measure(bench, row) else { break };
            let is_good = pair.is_good();
            if best.as_ref().is_none_or(|best| pair.is_better_than(best)) {
                best = Some(pair);
            }
            if is_good {
                break;
            }
        }
        self.pairs.extend(best);
        self.notes = bench.notes();
    }

    fn measure(&mut self, bench: &mut impl Bench, row: usize) -> Option<Pair> {
        let ours = bench.ours(row).map_err(|why| self.failure = Some(format!("{why:#}"))).ok()?;
        let mut peers = Vec::new();
        for (at, peer) in bench.peers(row).into_iter().enumerate() {
            let reason = peer.as_ref().err().map(|why| format!("{why:#}"));
            if let Some(reason) =
                reason.filter(|_| self.peer_failures.iter().all(|(n, _)| *n != at))
            {
                self.peer_failures.push((at, reason));
            }
            peers.push(peer.ok());
        }
        Some(Pair::new(ours, &peers))
    }
}

/// What measures rows, by their numbers.
pub trait Bench {
    /// Our value.
    fn ours(&mut self, row: usize) -> Result<Reading>;
    /// The peers' values.
    fn peers(&mut self, row: usize) -> Vec<Result<Reading>>;
    /// Takes what was noted.
    fn notes(&mut self) -> Vec<String>;
    /// Says which round of a row begins.
    fn progress(&mut self, row: usize, round: u32);
}

/// Measures each row once in each of `rounds`. Rows that lack samples in one state then get up to
/// as many rounds again.
pub fn measure(bench: &mut impl Bench, rows: usize, rounds: u32) -> Vec<Samples> {
    let mut all = vec![Samples::default(); rows];
    for round in 0..2 * rounds {
        for (row, samples) in all.iter_mut().enumerate() {
            let wanted =
                if round < rounds { samples.failure.is_none() } else { samples.lacks(rounds) };
            if wanted {
                bench.progress(row, round + 1);
                samples.add(bench, row);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const NEAR: f64 = 120.0;
    const FAR: f64 = 540.0;

    /// Readings that are given, by row, and what was asked for.
    #[derive(Default)]
    struct Given {
        ours: Vec<VecDeque<Reading>>,
        peers: Vec<VecDeque<Reading>>,
        asked: Vec<usize>,
    }

    impl Bench for Given {
        fn ours(&mut self, row: usize) -> Result<Reading> {
            self.asked.push(row);
            self.ours[row].pop_front().ok_or_else(|| anyhow::anyhow!("no daemon"))
        }

        fn peers(&mut self, row: usize) -> Vec<Result<Reading>> {
            self.peers.get_mut(row).and_then(VecDeque::pop_front).into_iter().map(Ok).collect()
        }

        fn notes(&mut self) -> Vec<String> {
            Vec::new()
        }

        fn progress(&mut self, _: usize, _: u32) {}
    }

    fn reading(value: f64, before: f64, after: f64) -> Reading {
        let (before, after) = (Some(before), Some(after));
        Reading { value, conditions: Conditions { before, after, waited: 0.0 } }
    }

    fn near(value: f64) -> Reading {
        reading(value, NEAR, NEAR)
    }

    fn waiting(value: f64, waited: f64) -> Reading {
        let it = near(value);
        Reading { conditions: Conditions { waited, ..it.conditions }, ..it }
    }

    fn values(samples: &Samples) -> Vec<f64> {
        samples.pairs.iter().map(|pair| pair.ours).collect()
    }

    #[test]
    fn rows_alternate_in_rounds_over_the_whole_list() {
        let row = || (0..6).map(|n| near(f64::from(n))).collect();
        let mut given = Given { ours: vec![row(), row(), row()], ..Given::default() };
        let samples = measure(&mut given, 3, ENOUGH);
        assert_eq!(given.asked, [0, 1, 2].repeat(6));
        assert!(samples.iter().all(|row| values(row) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    }

    #[test]
    fn a_sample_in_which_the_distance_changed_is_measured_again() {
        let ours = [reading(1.0, NEAR, FAR), reading(2.0, FAR, FAR)];
        let mut given = Given { ours: vec![ours.into()], ..Given::default() };
        let samples = &measure(&mut given, 1, 1)[0];
        assert_eq!((values(samples), samples.repeated), (vec![2.0], 1));
        assert_eq!((samples.main_state(), samples.pairs[0].ns), (State::Far, Some(FAR)));
    }

    #[test]
    fn ours_and_a_peer_in_unlike_states_are_no_pair() {
        let ours = [near(1.0), reading(2.0, FAR, FAR)];
        let peers = [reading(7.0, FAR, FAR), reading(8.0, FAR, FAR)];
        let mut given =
            Given { ours: vec![ours.into()], peers: vec![peers.into()], ..Given::default() };
        let samples = &measure(&mut given, 1, 1)[0];
        assert_eq!((samples.pairs.len(), samples.pairs[0].state), (1, State::Far));
        assert_eq!((samples.pairs[0].ours, &samples.pairs[0].peers), (2.0, &vec![Some(8.0)]));
    }

    #[test]
    fn a_distance_that_never_rests_bounds_the_tries_and_leaves_no_state() {
        let ours = (0..20).map(|n| reading(f64::from(n), NEAR, FAR)).collect();
        let mut given = Given { ours: vec![ours], ..Given::default() };
        let samples = &measure(&mut given, 1, 2)[0];
        // Two rounds and two more, of three tries each.
        assert_eq!((given.asked.len(), samples.repeated, samples.pairs.len()), (12, 8, 4));
        assert_eq!(samples.main_state(), State::Changed);
    }

    #[test]
    fn a_sample_whose_threads_waited_is_repeated_twice_and_the_quietest_is_kept() {
        let ours = [waiting(1.0, 0.3), waiting(2.0, 0.1), waiting(3.0, 0.2), near(4.0)];
        let mut given = Given { ours: vec![ours.into()], ..Given::default() };
        let samples = &measure(&mut given, 1, 1)[0];
        assert_eq!((values(samples), samples.repeated), (vec![2.0], 2));
        assert!((samples.pairs[0].waited - 0.1).abs() < 1e-9);
    }

    #[test]
    fn rows_with_both_states_get_further_rounds_until_one_has_enough() {
        let ours = [near(1.0), reading(2.0, FAR, FAR), near(3.0), near(4.0), near(5.0)];
        let mut given = Given { ours: vec![ours.into()], ..Given::default() };
        let samples = &measure(&mut given, 1, 3)[0];
        assert_eq!(values(samples), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!((samples.main_state(), samples.in_state(State::Far).count()), (State::Near, 1));
    }

    #[test]
    fn a_row_that_fails_is_not_measured_again_and_others_are() {
        let rows = vec![[near(1.0)].into(), (0..6).map(|n| near(f64::from(n))).collect()];
        let mut given = Given { ours: rows, ..Given::default() };
        let samples = measure(&mut given, 2, ENOUGH);
        assert_eq!(samples[0].failure.as_deref(), Some("no daemon"));
        assert_eq!(given.asked.iter().filter(|row| **row == 0).count(), 2);
        assert_eq!((samples[1].pairs.len(), &samples[1].failure), (6, &None));
    }
}
