//! Turns the samples of a row into its figure.

use serde::Serialize;

use super::bar::Measured;
use super::distance::State;
use super::rounds::{ENOUGH, Pair, Samples};
use super::rows::{Row, Summary};
use super::waiting;

/// The table's columns; `>` marks those of numbers.
pub const COLUMNS: [&str; 11] = [
    "id",
    ">value",
    ">low to high",
    "unit",
    "peer",
    ">peer",
    ">low to high",
    ">ratio",
    ">low to high",
    "cores",
    "bar",
];

/// A median, and the ends of its [`interval`].
type Median = (f64, f64, f64);

/// The median of values; `None` without any.
fn summary(values: impl IntoIterator<Item = f64>) -> Option<Median> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    let (low, high) = interval(&mut sorted)?;
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    Some((median, low, high))
}

/// Returns the narrowest interval that contains the true median with a confidence of 95 %. Its ends
/// are two of `values`, equally far from either end of their order. With too few values, it is the
/// lowest and the highest. Sorts `values`.
fn interval(values: &mut [f64]) -> Option<(f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let from_end = from_end(values.len());
    Some((*values.get(from_end)?, *values.get(values.len().checked_sub(1 + from_end)?)?))
}

/// Returns how many of `count` values lie outside of the [`interval`] at either end.
fn from_end(count: usize) -> usize {
    (1..count / 2).take_while(|outside| confidence(count, *outside) >= 0.95).last().unwrap_or(0)
}

/// Returns the confidence that the median lies between two values with `outside` others beyond
/// each.
///
/// The median lies below the lower value with the probability that at most `outside` of `count`
/// coins show heads; the same holds at the upper end.
fn confidence(count: usize, outside: usize) -> f64 {
    let (mut ways, mut sum) = (1.0, 1.0);
    for heads in 1..=outside {
        ways *= (count + 1 - heads) as f64 / heads as f64;
        sum += ways;
    }
    1.0 - 2.0 * sum * 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

/// Describes the table's intervals, for the line beneath it.
pub fn about_intervals(repetitions: u32) -> String {
    let count = repetitions as usize;
    let percent = (100.0 * confidence(count, from_end(count))).max(0.0);
    format!(
        "low to high: the median of all repetitions that there could be lies there with a confidence of \
         {percent:.0} %; the ratio's: likewise, of pairs that were measured next to each other\n\
         cores: a cache line's round trip between cores 0 and 1, before and after each sample; ours and the peer's \
         are compared in one state only; waited: a thread waited for a processor for so much of its time\n"
    )
}

/// A row's result, as `--json` prints it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    /// The row.
    pub id: &'static str,
    /// The median, or `None` if it could not be measured; `how` then says why.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// Samples: those in the state of [`distance`](Self::distance).
    pub median_of: usize,
    /// The lower end of the median's [`interval`]: with up to eight samples, the lowest value.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
    /// The name of the peer that the row is compared with.
    pub peer: &'static str,
    /// The peer's median.
    pub peer_value: Option<f64>,
    /// The peer's interval.
    pub peer_interval: Option<(f64, f64)>,
    /// Our value relative to the peer's, inverted where less is better, so that more is better.
    pub ratio: Option<f64>,
    /// The interval of the ratios of adjacent samples, widened to include [`ratio`](Self::ratio).
    pub ratio_of_pairs: Option<(f64, f64)>,
    /// What the row must clear; `None` if it is only reported.
    pub bar: Option<String>,
    /// Whether it misses its bar; `None` if it has none here, or could not be measured.
    pub missed: Option<bool>,
    /// Whether its bar counts on this machine.
    #[serde(skip)]
    pub is_judged: bool,
    /// The distance of the cores.
    pub distance: Distance,
    /// The greatest share of a sample that a thread waited for a processor.
    pub waited: f64,
    /// The profile of our program: `dist` for figures to publish.
    pub profile: &'static str,
    /// What each core did, and how the peer was measured.
    pub how: String,
}

/// The distance of the cores meanwhile, and the figures by distance.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Distance {
    /// The state of the row's figure: that of the most samples.
    pub state: &'static str,
    /// Figures with the cores near to each other.
    pub near: Option<Part>,
    /// Figures with the cores far from each other.
    pub far: Option<Part>,
    /// Samples in which the distance changed, in all tries.
    pub changed: usize,
    /// Measurements that were repeated.
    pub repeated: u32,
}

/// The figures of the samples in one state.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Part {
    /// The median round trip of a cache line, in nanoseconds.
    pub ns: Option<f64>,
    /// Samples.
    pub median_of: usize,
    /// The median.
    pub value: Option<f64>,
    /// Its interval.
    pub interval: Option<(f64, f64)>,
    /// Which of several peers is the best by its median.
    #[serde(skip)]
    best: usize,
    /// The peer's median.
    pub peer_value: Option<f64>,
    /// The peer's interval.
    pub peer_interval: Option<(f64, f64)>,
    /// The ratio, of which more is better.
    pub ratio: Option<f64>,
    /// The interval of the ratios of adjacent samples.
    pub ratio_of_pairs: Option<(f64, f64)>,
    /// Whether this misses the row's bar.
    pub missed: Option<bool>,
}

impl Part {
    /// The figures of a row's samples in `state`; `None` if there are none. Where the distance
    /// changed, ours and the peer's make no pair, and no ratio.
    fn new(row: &Row, samples: &Samples, state: State) -> Option<Self> {
        let pairs: Vec<&Pair> = samples.in_state(state).collect();
        let ours = summary(pairs.iter().map(|pair| pair.ours))?;
        let best = best_peer(row, samples, &pairs);
        let steady = best.filter(|_| state != State::Changed);
        let ratio = steady.map(|(_, peer)| row.better.gain(ours.0, peer.0));
        let ratio = ratio.filter(|ratio| ratio.is_finite());
        let ratio_of_pairs = ratio.zip(best).and_then(|(ratio, (at, _))| {
            let both = |pair: &&Pair| Some(row.better.gain(pair.ours, (*pair.peers.get(at)?)?));
            let (low, high) = interval(&mut pairs.iter().filter_map(both).collect::<Vec<_>>())?;
            Some((low.min(ratio), high.max(ratio)))
        });
        let peer_of = |best: Option<(usize, Median)>| best.map(|(_, peer)| peer.0);
        let compared = Measured { value: Some(ours.0), peer: peer_of(steady), ratio };
        Some(Self {
            ns: summary(pairs.iter().filter_map(|pair| pair.ns)).map(|(median, ..)| median),
            median_of: pairs.len(),
            value: Some(ours.0),
            interval: Some((ours.1, ours.2)),
            best: best.map_or(0, |(at, _)| at),
            peer_value: peer_of(best),
            peer_interval: best.map(|(_, peer)| (peer.1, peer.2)),
            ratio,
            ratio_of_pairs,
            missed: row.bar.missed(compared),
        })
    }
}

/// The peer whose median is best, among those that could be measured each time.
fn best_peer(row: &Row, samples: &Samples, pairs: &[&Pair]) -> Option<(usize, Median)> {
    let of = |peer: usize| pairs.iter().filter_map(move |pair| *pair.peers.get(peer)?);
    let failed = |peer: &usize| samples.peer_failures.iter().any(|(at, _)| at == peer);
    let peers = 0..pairs.iter().map(|pair| pair.peers.len()).max().unwrap_or(0);
    let medians = peers.filter(|peer| !failed(peer)).filter_map(|at| Some((at, summary(of(at))?)));
    let gain = |(_, median): &(usize, Median)| row.better.gain(1.0, median.0);
    medians.min_by(|a, b| gain(a).total_cmp(&gain(b)))
}

impl Distance {
    /// Returns true if a state with enough samples misses the bar.
    fn misses(&self) -> bool {
        let parts = [&self.near, &self.far].into_iter().flatten();
        parts.filter(|part| part.median_of >= ENOUGH as usize).any(|it| it.missed == Some(true))
    }
}

/// Describes what was done, what was noted meanwhile, and what could not be measured.
fn how(row: &Row, samples: &Samples) -> String {
    let mut how = row.how.to_owned();
    if let Some(command) = row.peer.command() {
        how += &format!("; peer: {command}");
    }
    for note in &samples.notes {
        how += &format!("; {note}");
    }
    if let Some(reason) = &samples.failure {
        how += &format!("; not measured: {reason}");
    }
    for (at, reason) in &samples.peer_failures {
        how += &format!("; peer not measured: {}: {reason}", row.peer.name_of(*at));
    }
    let changed = samples.in_state(State::Changed).count();
    if changed > 0 {
        how += &format!("; the distance of the cores changed in {changed} samples");
    }
    how
}

impl Figure {
    /// Makes the figure of a row's samples. Bars with that condition count if there is KVM.
    pub fn new(row: &Row, samples: &Samples, has_kvm: bool) -> Self {
        let is_judged = row.bar.counts(has_kvm);
        let part = |state: State| {
            let part = Part::new(row, samples, state).filter(|_| samples.failure.is_none())?;
            Some(Part { missed: part.missed.filter(|_| is_judged), ..part })
        };
        let state = samples.main_state();
        let main = part(state).unwrap_or_default();
        let distance = Distance {
            state: state.name(),
            near: part(State::Near),
            far: part(State::Far),
            changed: samples.in_state(State::Changed).count(),
            repeated: samples.repeated,
        };
        Self {
            id: row.id,
            value: main.value,
            unit: row.unit,
            median_of: main.median_of,
            low: main.interval.map(|(low, _)| low),
            high: main.interval.map(|(_, high)| high),
            peer: row.peer.name_of(main.best),
            peer_value: main.peer_value,
            peer_interval: main.peer_interval,
            ratio: main.ratio,
            ratio_of_pairs: main.ratio_of_pairs,
            bar: row.bar.text(),
            missed: main.missed.map(|missed| missed || distance.misses()),
            is_judged,
            distance,
            waited: samples.in_state(state).map(|pair| pair.waited).fold(0.0, f64::max),
            profile: client::PROFILE,
            how: how(row, samples),
        }
    }

    /// Makes the figure of a summary, if `measured` has all of its parts and ends with one of them.
    pub fn of_parts(summary: &Summary, measured: &[Self]) -> Option<Self> {
        let last = measured.last().filter(|last| summary.parts.contains(&last.id))?;
        let find = |id: &&str| measured.iter().find(|figure| figure.id == *id);
        let parts: Vec<&Self> = summary.parts.iter().filter_map(find).collect();
        if parts.len() < summary.parts.len() {
            return None;
        }
        let ratio = |figure: &&&Self| figure.ratio.unwrap_or(f64::INFINITY);
        let worst = parts.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let missing = parts.iter().find(|part| part.value.is_none());
        let shown = missing.or(worst).map_or(last, |figure| *figure);
        let said = |part: &&Self| {
            let value = part.value.map_or_else(|| "null".into(), number);
            let ratio = part.ratio.map(|it| format!(", ratio {}", number(it))).unwrap_or_default();
            format!("{} {value} {}{ratio}", part.id, part.unit)
        };
        let all: Vec<String> = parts.iter().map(said).collect();
        let how = format!("{}: {}; of all: {}", shown.id, shown.how, all.join("; "));
        // Its parts are judged; a line that repeats one of them is not.
        let missed = parts.iter().filter_map(|part| part.missed).reduce(|one, other| one | other);
        Some(Self { id: summary.id, how, missed, is_judged: false, ..shown.clone() })
    }

    /// Formats the figure as lines of the table, of [cells](COLUMNS): a second one has the state
    /// of the fewer samples.
    pub fn lines(&self) -> Vec<[String; COLUMNS.len()]> {
        let all = [("near", &self.distance.near), ("far", &self.distance.far)];
        let mut cores = self.distance.state.to_owned();
        let mut lines = Vec::new();
        for (name, part) in all {
            let Some(part) = part else { continue };
            let ns = part.ns.map(|ns| format!(", {ns:.0} ns")).unwrap_or_default();
            if name == self.distance.state {
                cores += &ns;
            } else {
                let of = format!("{name}{ns}, {} samples", part.median_of);
                let mark = if part.missed == Some(true) { "MISSED" } else { "" };
                lines.push(self.line(format!("  {}, {name}", self.id), part, of, mark.into()));
            }
        }
        if self.waited > waiting::LIMIT {
            cores += &format!(", waited {:.0} %", 100.0 * self.waited);
        }
        let main = Part {
            value: self.value,
            interval: self.low.zip(self.high),
            peer_value: self.peer_value,
            peer_interval: self.peer_interval,
            ratio: self.ratio,
            ratio_of_pairs: self.ratio_of_pairs,
            ..Part::default()
        };
        lines.insert(0, self.line(self.id.into(), &main, cores, self.marked_bar()));
        lines
    }

    fn line(&self, id: String, part: &Part, cores: String, bar: String) -> [String; COLUMNS.len()] {
        [
            id,
            cell(part.value),
            span(part.interval),
            self.unit.into(),
            self.peer.into(),
            cell(part.peer_value),
            span(part.peer_interval),
            cell(part.ratio),
            span(part.ratio_of_pairs),
            cores,
            bar,
        ]
    }

    /// The bar, with a mark if the row misses it or could not be measured.
    fn marked_bar(&self) -> String {
        let bar = self.bar.as_deref().unwrap_or("-");
        match (self.missed, self.is_judged) {
            (Some(true), _) => format!("{bar} MISSED"),
            (None, true) => format!("{bar} NOT MEASURED"),
            _ => bar.to_owned(),
        }
    }
}

/// Says which rows miss their bars or could not be measured; `None` if all clear them.
pub fn judge(figures: &[Figure]) -> Option<String> {
    let judged = || figures.iter().filter(|figure| figure.is_judged);
    let ids = |missed: Option<bool>| {
        let ids = judged().filter(|figure| figure.missed == missed).map(|figure| figure.id);
        ids.collect::<Vec<_>>().join(", ")
    };
    let of = |words: &str, ids: &str| (!ids.is_empty()).then(|| format!("{words}: {ids}"));
    let missed = of("these rows miss their bars", &ids(Some(true)));
    let unknown = of("these rows have bars and could not be measured", &ids(None));
    let said: Vec<String> = [missed, unknown].into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// A number with two decimals; small ones with two digits that count.
fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 0.01 || size == 0.0 {
        return format!("{value:.2}");
    }
    let decimals = (1.0 - size.log10().floor()).min(12.0) as usize;
    format!("{value:.decimals$}")
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), number)
}

fn span(ends: Option<(f64, f64)>) -> String {
    ends.map_or_else(|| "-".into(), |(low, high)| format!("{} to {}", number(low), number(high)))
}

#[cfg(test)]
mod tests {
    use super::super::bar::Bar;
    use super::super::peer::Peer;
    use super::super::rows::Better;
    use super::*;

    fn row(better: Better, bar: Bar) -> Row {
        let (ours, peer) = (|_: &_| Ok(0.0), Peer::None);
        Row { id: "x", unit: "us", bar, better, how: "alone", ours, peer }
    }

    fn pair(state: State, ours: f64, peers: &[f64]) -> Pair {
        let ns = Some(if state == State::Far { 540.0 } else { 120.0 });
        Pair { state, ns, waited: 0.0, ours, peers: peers.iter().copied().map(Some).collect() }
    }

    fn near(values: &[(f64, &[f64])]) -> Samples {
        let pairs = values.iter().map(|(ours, peers)| pair(State::Near, *ours, peers)).collect();
        Samples { pairs, ..Samples::default() }
    }

    fn figure(better: Better, samples: &Samples) -> Figure {
        Figure::new(&row(better, Bar::NONE), samples, false)
    }

    #[test]
    fn the_median_counts_and_the_ratio_is_turned_so_that_more_is_better() {
        let samples = near(&[(9.0, &[9.0, 4.0]), (2.0, &[3.0, 4.0]), (1.0, &[2.0, 4.0])]);
        let more = figure(Better::More, &samples);
        assert_eq!((more.value, more.low, more.high), (Some(2.0), Some(1.0), Some(9.0)));
        assert_eq!((more.median_of, more.ratio), (3, Some(0.5)));
        assert_eq!(more.peer_value, Some(4.0), "the best by their medians");
        assert_eq!(more.ratio_of_pairs, Some((0.25, 2.25)));
        let samples = near(&[(9.0, &[4.0, 5.0]), (2.0, &[4.0, 5.0]), (1.0, &[4.0, 5.0])]);
        let less = figure(Better::Less, &samples);
        assert_eq!((less.peer_value, less.ratio), (Some(4.0), Some(2.0)));
    }

    #[test]
    fn regression_the_table_shows_the_intervals_of_values_and_ratio() {
        let samples = near(&[(9.0, &[18.0]), (2.0, &[3.0]), (1.0, &[1.0])]);
        let cleared = Figure::new(&row(Better::More, Bar::ratio(0.5)), &samples, false);
        let want = "x|2.00|1.00 to 9.00|us|-|3.00|1.00 to 18.00|0.67|0.50 to 1.00|near, 120 ns|ratio >= 0.5";
        assert_eq!(cleared.lines().concat_cells(), [want]);
        let alone = figure(Better::More, &near(&[(2.0, &[])]));
        assert_eq!(
            alone.lines().concat_cells(),
            ["x|2.00|2.00 to 2.00|us|-|-|-|-|-|near, 120 ns|-"]
        );
    }

    trait Cells {
        fn concat_cells(&self) -> Vec<String>;
    }

    impl Cells for Vec<[String; COLUMNS.len()]> {
        fn concat_cells(&self) -> Vec<String> {
            self.iter().map(|line| line.join("|")).collect()
        }
    }

    #[test]
    fn both_states_are_shown_and_ours_is_compared_with_the_peer_in_the_same_one() {
        let mut samples = near(&[(10.0, &[10.0]), (12.0, &[10.0])]);
        samples.pairs.push(pair(State::Far, 2.0, &[4.0]));
        samples.pairs.push(pair(State::Changed, 99.0, &[1.0]));
        let it = Figure::new(&row(Better::More, Bar::ratio(0.9)), &samples, false);
        assert_eq!((it.value, it.ratio, it.median_of), (Some(11.0), Some(1.1), 2));
        let json = serde_json::to_value(&it).unwrap();
        assert_eq!(
            (&json["distance"]["state"], &json["distance"]["changed"]),
            (&"near".into(), &1.into())
        );
        assert_eq!(json["distance"]["near"]["ns"], 120.0);
        assert_eq!(json["distance"]["far"]["value"], 2.0);
        assert_eq!(json["distance"]["far"]["ratio"], 0.5);
        assert_eq!(json["distance"]["far"]["missed"], true);
        assert_eq!(json["missed"], false, "one sample is too few to judge by");
        let lines = it.lines().concat_cells();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[1].starts_with("  x, far|2.00|")
                && lines[1].ends_with("far, 540 ns, 1 samples|MISSED")
        );
    }

    #[test]
    fn a_bar_is_missed_in_the_other_state_too_if_that_has_enough_samples() {
        let mut samples = near(&[(10.0, &[10.0][..]); 7]);
        samples.pairs.extend((0..6).map(|_| pair(State::Far, 2.0, &[4.0])));
        let it = Figure::new(&row(Better::More, Bar::ratio(0.9)), &samples, false);
        assert_eq!((it.ratio, it.missed, it.distance.state), (Some(1.0), Some(true), "near"));
    }

    #[test]
    fn samples_in_which_the_distance_changed_make_a_value_but_no_ratio() {
        let pairs = vec![pair(State::Changed, 5.0, &[4.0])];
        let samples = Samples { pairs, ..Samples::default() };
        let it = Figure::new(&row(Better::More, Bar::ratio(0.9)), &samples, false);
        assert_eq!((it.value, it.ratio, it.missed), (Some(5.0), None, None));
        assert!(it.how.contains("changed in 1 samples"));
        assert!(judge(&[it]).unwrap().contains("could not be measured: x"));
    }

    #[test]
    fn the_judge_names_rows_that_miss_their_bars_or_could_not_be_measured() {
        let of = |bar: Bar, value: f64| {
            Figure::new(&row(Better::Less, bar), &near(&[(value, &[])]), false)
        };
        let failed = Samples { failure: Some("no daemon".into()), ..Samples::default() };
        let failed = Figure::new(&row(Better::Less, Bar::most(1.0)), &failed, false);
        assert_eq!(judge(&[of(Bar::most(2.0), 2.0), of(Bar::NONE, 9.0)]), None);
        assert_eq!(judge(&[of(Bar::ratio(9.0).with_kvm(), 9.0)]), None, "there is no KVM");
        assert_eq!(judge(&[of(Bar::most(2.0), 3.0)]).unwrap(), "these rows miss their bars: x");
        let unknown = "these rows have bars and could not be measured: x";
        assert_eq!(judge(std::slice::from_ref(&failed)).unwrap(), unknown);
        assert_eq!(judge(&[of(Bar::ratio(0.5), 3.0)]).unwrap(), unknown, "the peer is missing");
        let marks: Vec<_> = [of(Bar::most(2.0), 3.0), of(Bar::most(2.0), 1.0), failed]
            .map(|figure| figure.lines()[0][10].clone())
            .into();
        assert_eq!(marks, ["<= 2 MISSED", "<= 2", "<= 1 NOT MEASURED"]);
        let json = serde_json::to_value(of(Bar::most(2.0), 3.0)).unwrap();
        assert_eq!((&json["bar"], &json["missed"]), (&"<= 2".into(), &true.into()));
    }

    #[test]
    fn a_row_whose_threads_waited_is_marked() {
        let mut samples = near(&[(1.0, &[])]);
        samples.pairs[0].waited = 0.074;
        let it = figure(Better::More, &samples);
        assert_eq!(it.lines()[0][9], "near, 120 ns, waited 7 %");
        samples.pairs[0].waited = 0.05;
        assert_eq!(figure(Better::More, &samples).lines()[0][9], "near, 120 ns");
    }

    #[test]
    fn regression_small_numbers_keep_two_digits_that_count() {
        let said = [0.0, 0.01, 0.0099, 0.00234, -0.000_041, 12.345].map(number);
        assert_eq!(said, ["0.00", "0.01", "0.0099", "0.0023", "-0.000041", "12.35"]);
    }

    #[test]
    fn an_interval_leaves_outside_what_95_in_100_allow() {
        let of =
            |count: usize| interval(&mut (1..=count).rev().map(|i| i as f64).collect::<Vec<_>>());
        assert_eq!((of(0), of(1)), (None, Some((1.0, 1.0))));
        assert_eq!((of(5), of(8)), (Some((1.0, 5.0)), Some((1.0, 8.0))));
        assert_eq!(
            (of(9), of(11), of(12)),
            (Some((2.0, 8.0)), Some((2.0, 10.0)), Some((3.0, 10.0)))
        );
        // Tables of the sign test.
        let close = |a: f64, b: f64| (a - b).abs() < 1e-4;
        assert!(close(confidence(5, 0), 0.9375) && close(confidence(7, 0), 0.9844));
        assert!(close(confidence(9, 1), 0.9609) && close(confidence(11, 1), 0.9883));
        assert!(about_intervals(5).contains("94 %") && about_intervals(1).contains("0 %"));
    }

    #[test]
    fn a_summary_shows_the_worst_of_its_parts_or_the_one_that_is_missing() {
        let summary = Summary { id: "x", parts: &["x.a", "x.b"] };
        let part = |id, value: Option<f64>| {
            let row = Row { id, ..row(Better::Less, Bar::ratio(2.5)) };
            let mut samples = value.map_or_else(Samples::default, |value| near(&[(value, &[6.0])]));
            samples.failure = value.is_none().then(|| "no daemon".to_owned());
            Figure::new(&row, &samples, false)
        };
        let of = |parts: &[Figure]| Figure::of_parts(&summary, parts);
        assert!(of(&[part("x.a", Some(1.0))]).is_none());
        let other = [part("x.a", Some(1.0)), part("x.b", Some(1.0)), part("y", Some(1.0))];
        assert!(of(&other).is_none());
        let worst = of(&[part("x.a", Some(3.0)), part("x.b", Some(2.0))]).unwrap();
        assert_eq!((worst.id, worst.value, worst.ratio), ("x", Some(3.0), Some(2.0)));
        assert_eq!(
            (worst.missed, judge(std::slice::from_ref(&worst))),
            (Some(true), None),
            "its parts are judged"
        );
        assert!(worst.how.ends_with("x.a 3.00 us, ratio 2.00; x.b 2.00 us, ratio 3.00"));
        let null = of(&[part("x.a", Some(3.0)), part("x.b", None)]).unwrap();
        assert_eq!((null.value, null.how.contains("no daemon")), (None, true));
    }

    #[test]
    fn what_could_not_be_measured_is_null_with_its_reason() {
        let mut samples = near(&[(1.0, &[])]);
        samples.failure = Some("no daemon".into());
        samples.notes = vec!["cold".into()];
        let json = serde_json::to_value(figure(Better::More, &samples)).unwrap();
        assert!(json["value"].is_null() && json["ratio"].is_null());
        assert_eq!(json["how"], "alone; cold; not measured: no daemon");
    }
}
