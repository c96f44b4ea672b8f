//! From samples to a figure.

use serde::Serialize;

use super::rows::{Better, Row};

/// Values of repetitions, or why there are none.
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

    /// Why it could not be measured.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Median, lowest and highest value; `None` without any, or after a failure.
    fn summary(&self) -> Option<(f64, f64, f64)> {
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        self.failure.is_none().then_some((median, low, high))
    }
}

/// A row's result, as it is printed with `--json`.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// The row.
    pub id: &'static str,
    /// Median, or `None` if it could not be measured: `how` says why.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// Repetitions.
    pub median_of: usize,
    /// The lowest repetition.
    pub low: Option<f64>,
    /// The highest repetition.
    pub high: Option<f64>,
    /// What it is compared with.
    pub peer: &'static str,
    /// The peer's median.
    pub peer_value: Option<f64>,
    /// Ours over the peer's, turned so that more is better.
    pub ratio: Option<f64>,
    /// What each core did, and what measured the peer.
    pub how: String,
}

impl Figure {
    /// The figure of a row's samples.
    pub fn new(row: &Row, ours: &Sample, theirs: &Sample) -> Self {
        let (summary, peer) = (ours.summary(), theirs.summary());
        let ratio = summary.zip(peer).and_then(|((ours, ..), (theirs, ..))| {
            let ratio = match row.better {
                Better::More => ours / theirs,
                Better::Less => theirs / ours,
            };
            ratio.is_finite().then_some(ratio)
        });
        let mut how = row.how.to_owned();
        if let Some(command) = row.peer.command() {
            how += &format!("; peer: {command}");
        }
        for (what, sample) in [("not measured", ours), ("peer not measured", theirs)] {
            if let Some(reason) = sample.failure() {
                how += &format!("; {what}: {reason}");
            }
        }
        Self {
            id: row.id,
            value: summary.map(|s| s.0),
            unit: row.unit,
            median_of: ours.values.len(),
            low: summary.map(|s| s.1),
            high: summary.map(|s| s.2),
            peer: row.peer.name(),
            peer_value: peer.map(|p| p.0),
            ratio,
            how,
        }
    }

    /// As cells of the table.
    pub fn cells(&self, bar: &str) -> [String; 9] {
        let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
        [
            self.id.into(),
            number(self.value),
            self.unit.into(),
            number(self.low),
            number(self.high),
            self.peer.into(),
            number(self.peer_value),
            number(self.ratio),
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
        let (ours, theirs) = (sample(&[9.0, 2.0, 1.0]), sample(&[4.0, 4.0]));
        let figure = Figure::new(&row(Better::More), &ours, &theirs);
        assert_eq!((figure.value, figure.low, figure.high), (Some(2.0), Some(1.0), Some(9.0)));
        assert_eq!((figure.median_of, figure.ratio), (3, Some(0.5)));
        assert_eq!(Figure::new(&row(Better::Less), &ours, &theirs).ratio, Some(2.0));
    }

    #[test]
    fn what_could_not_be_measured_is_null_with_its_reason() {
        let mut ours = sample(&[1.0]);
        ours.add(Err(anyhow::anyhow!("no daemon")));
        let figure = Figure::new(&row(Better::More), &ours, &Sample::default());
        let json = serde_json::to_value(&figure).unwrap();
        assert!(json["value"].is_null() && json["ratio"].is_null());
        assert_eq!(json["how"], "alone; not measured: no daemon");
    }
}
