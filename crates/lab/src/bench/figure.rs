//! Turns the samples of a row into its figure.

use serde::Serialize;

use super::rows::{Better, Row, Summary};

/// The table's columns; `>` marks those of numbers.
pub const COLUMNS: [&str; 10] = [
    "id",
    ">value",
    ">low to high",
    "unit",
    "peer",
    ">peer",
    ">low to high",
    ">ratio",
    ">low to high",
    "bar",
];

/// The values of the repetitions, or the failure.
#[derive(Debug, Default)]
pub struct Sample {
    values: Vec<f64>,
    failure: Option<String>,
}

impl Sample {
    /// Adds a repetition; the first failure is kept.
    pub fn add(&mut self, value: anyhow::Result<f64>) {
        match value {
            Ok(value) => self.values.push(value),
            Err(error) if self.failure.is_none() => self.failure = Some(format!("{error:#}")),
            Err(_) => {}
        }
    }

    /// Returns why the row could not be measured.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the median and its interval; `None` without values, or after a failure.
    fn summary(&self) -> Option<(f64, f64, f64)> {
        let mut sorted = self.values.clone();
        let (low, high) = interval(&mut sorted)?;
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        self.failure.is_none().then_some((median, low, high))
    }
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
         {percent:.0} %; the ratio's: likewise, of pairs that were measured next to each other\n"
    )
}

/// A row's result, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The row.
    pub id: &'static str,
    /// The median, or `None` if it could not be measured; `how` then says why.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// Repetitions.
    pub median_of: usize,
    /// The lower end of the median's [`interval`]: with up to eight repetitions, the lowest value.
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
    /// The interval of the ratios of adjacent repetitions, widened to include
    /// [`ratio`](Self::ratio).
    pub ratio_of_pairs: Option<(f64, f64)>,
    /// The profile of our program: `dist` for figures to publish.
    pub profile: &'static str,
    /// What each core did, and how the peer was measured.
    pub how: String,
}

/// Describes what was done, what was noted meanwhile, and what could not be measured.
fn how(row: &Row, ours: &Sample, peers: &[Sample], notes: &[String]) -> String {
    let mut how = row.how.to_owned();
    if let Some(command) = row.peer.command() {
        how += &format!("; peer: {command}");
    }
    for note in notes {
        how += &format!("; {note}");
    }
    if let Some(reason) = ours.failure() {
        how += &format!("; not measured: {reason}");
    }
    for (at, peer) in peers.iter().enumerate() {
        if let Some(reason) = peer.failure() {
            how += &format!("; peer not measured: {}: {reason}", row.peer.name_of(at));
        }
    }
    how
}

impl Figure {
    /// Makes the figure of a row's samples, with the notes taken meanwhile.
    pub fn new(row: &Row, ours: &Sample, peers: &[Sample], notes: &[String]) -> Self {
        let gain = |ours: f64, theirs: f64| match row.better {
            Better::More => ours / theirs,
            Better::Less => theirs / ours,
        };
        let nothing = Sample::default();
        let medians = peers.iter().enumerate().filter_map(|(at, s)| Some((at, s.summary()?.0)));
        let best = medians.min_by(|a, b| gain(1.0, a.1).total_cmp(&gain(1.0, b.1)));
        let best = best.map_or(0, |(at, _)| at);
        let theirs = peers.get(best).unwrap_or(&nothing);
        let (summary, peer) = (ours.summary(), theirs.summary());
        let ratio = summary.zip(peer).map(|((ours, ..), (theirs, ..))| gain(ours, theirs));
        let ratio = ratio.filter(|ratio| ratio.is_finite());
        let pairs = ours.values.iter().zip(&theirs.values);
        let mut pairs: Vec<f64> = pairs.map(|(ours, theirs)| gain(*ours, *theirs)).collect();
        let ratio_of_pairs = ratio.and_then(|ratio| {
            let (low, high) = interval(&mut pairs)?;
            Some((low.min(ratio), high.max(ratio)))
        });
        Self {
            id: row.id,
            value: summary.map(|s| s.0),
            unit: row.unit,
            median_of: ours.values.len(),
            low: summary.map(|s| s.1),
            high: summary.map(|s| s.2),
            peer: row.peer.name_of(best),
            peer_value: peer.map(|p| p.0),
            peer_interval: peer.map(|p| (p.1, p.2)),
            ratio,
            ratio_of_pairs,
            profile: control::PROFILE,
            how: how(row, ours, peers, notes),
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
            let number =
                |value: Option<f64>| value.map_or_else(|| "null".into(), |v| format!("{v:.2}"));
            let ratio = part.ratio.map(|ratio| format!(", ratio {ratio:.2}")).unwrap_or_default();
            format!("{} {} {}{ratio}", part.id, number(part.value), part.unit)
        };
        let all: Vec<String> = parts.iter().map(said).collect();
        let how = format!("{}: {}; of all: {}", shown.id, shown.how, all.join("; "));
        Some(Self { id: summary.id, how, ..shown.clone() })
    }

    /// Formats the figure as [cells](COLUMNS) of the table.
    pub fn cells(&self, bar: &str) -> [String; COLUMNS.len()] {
        let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
        let interval = |ends: Option<(f64, f64)>| {
            ends.map_or_else(|| "-".into(), |(low, high)| format!("{low:.2} to {high:.2}"))
        };
        [
            self.id.into(),
            number(self.value),
            interval(self.low.zip(self.high)),
            self.unit.into(),
            self.peer.into(),
            number(self.peer_value),
            interval(self.peer_interval),
            number(self.ratio),
            interval(self.ratio_of_pairs),
            bar.into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::peer::Peer;
    use super::*;

    fn row(better: Better) -> Row {
        let (ours, peer) = (|_: &_| Ok(0.0), Peer::None);
        Row { id: "x", unit: "us", bar: "", better, how: "alone", ours, peer }
    }

    fn sample(values: &[f64]) -> Sample {
        Sample { values: values.to_vec(), failure: None }
    }

    #[test]
    fn the_median_counts_and_the_ratio_is_turned_so_that_more_is_better() {
        let ours = sample(&[9.0, 2.0, 1.0]);
        let theirs = [sample(&[9.0, 3.0, 2.0]), sample(&[4.0, 4.0]), sample(&[5.0, 5.0])];
        let figure = Figure::new(&row(Better::More), &ours, &theirs[..2], &[]);
        assert_eq!((figure.value, figure.low, figure.high), (Some(2.0), Some(1.0), Some(9.0)));
        assert_eq!((figure.median_of, figure.ratio), (3, Some(0.5)));
        assert_eq!(figure.peer_value, Some(4.0), "the best by their medians");
        assert_eq!(figure.ratio_of_pairs, Some((0.5, 2.25)));
        let figure = Figure::new(&row(Better::Less), &ours, &theirs[1..], &[]);
        assert_eq!((figure.peer_value, figure.ratio), (Some(4.0), Some(2.0)));
    }

    #[test]
    fn regression_the_table_shows_the_intervals_of_values_and_ratio() {
        let theirs = [sample(&[18.0, 3.0, 1.0])];
        let figure = Figure::new(&row(Better::More), &sample(&[9.0, 2.0, 1.0]), &theirs, &[]);
        let cells = figure.cells("ratio >= 1").join("|");
        let want = "x|2.00|1.00 to 9.00|us|-|3.00|1.00 to 18.00|0.67|0.50 to 1.00|ratio >= 1";
        assert_eq!(cells, want);
        let alone = Figure::new(&row(Better::More), &sample(&[2.0]), &[], &[]).cells("");
        assert_eq!(alone.join("|"), "x|2.00|2.00 to 2.00|us|-|-|-|-|-|");
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
        let summary = Summary { id: "x", parts: &["x.a", "x.b"], bar: "" };
        let part = |id, value: &[f64]| {
            let row = Row { id, ..row(Better::Less) };
            let mut ours = sample(value);
            if value.is_empty() {
                ours.add(Err(anyhow::anyhow!("no daemon")));
            }
            Figure::new(&row, &ours, &[sample(&[6.0])], &[])
        };
        let of = |parts: &[Figure]| Figure::of_parts(&summary, parts);
        assert!(of(&[part("x.a", &[1.0])]).is_none());
        assert!(of(&[part("x.a", &[1.0]), part("x.b", &[1.0]), part("y", &[1.0])]).is_none());
        let worst = of(&[part("x.a", &[3.0]), part("x.b", &[2.0])]).unwrap();
        assert_eq!((worst.id, worst.value, worst.ratio), ("x", Some(3.0), Some(2.0)));
        assert!(worst.how.ends_with("x.a 3.00 us, ratio 2.00; x.b 2.00 us, ratio 3.00"));
        let null = of(&[part("x.a", &[3.0]), part("x.b", &[])]).unwrap();
        assert_eq!((null.value, null.how.contains("no daemon")), (None, true));
    }

    #[test]
    fn what_could_not_be_measured_is_null_with_its_reason() {
        let mut ours = sample(&[1.0]);
        ours.add(Err(anyhow::anyhow!("no daemon")));
        let figure = Figure::new(&row(Better::More), &ours, &[], &["cold".to_owned()]);
        let json = serde_json::to_value(&figure).unwrap();
        assert!(json["value"].is_null() && json["ratio"].is_null());
        assert_eq!(json["how"], "alone; cold; not measured: no daemon");
    }
}
