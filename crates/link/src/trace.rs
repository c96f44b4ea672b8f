//! Traces: how a link changes with time, as recorded on a real one.
//!
//! Two formats. *Bandwidth* is mahimahi's: each line is a time in milliseconds, never earlier than
//! the line before, at which the link can carry 1,504 bytes; the trace starts again after its last
//! time. A *series* has the delay, and the loss from there on: `TIME DELAY LOSS` in each line, as
//! in `0.5s 40ms 1%`; it starts again after the time of its last line, whose other words are
//! ignored. Both may have empty lines, and comments after `#`.

use std::sync::Arc;

use port::Nanos;

use crate::words::{nanoseconds, share};

/// Bytes that an opportunity of a bandwidth trace carries: those of mahimahi.
pub const OPPORTUNITY: u64 = 1504;
/// The maximum number of lines of a trace.
const MAX_LINES: usize = 1 << 20;
/// The maximum number of entries of a table.
const MAX_TABLE: usize = 1 << 16;
/// Messages do not repeat the content of a file: the one who names it may not be allowed to read
/// it.
const NOT_A_ROW: &str = "it is not TIME DELAY LOSS, such as 0.5s 40ms 1%";
/// The longest trace, in milliseconds: a day.
const MAX_MS: u32 = 86_400_000;

/// The reason why a trace is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Line {line} of the trace: {reason}")]
pub struct TraceError {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

/// When a link can carry [`OPPORTUNITY`] bytes. It repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Times in milliseconds, ascending.
    at_ms: Box<[u32]>,
}

/// The delay and the loss of a link over time. It repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    rows: Box<[Row]>,
    period_ns: u64,
}

/// A row of a [`Series`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// From when on it holds, in nanoseconds from the trace's start.
    pub from_ns: u64,
    /// The delay in nanoseconds.
    pub delay_ns: u64,
    /// Lost frames in parts per million.
    pub loss_ppm: u32,
}

/// Reads a table of a distribution in netem's format: its quantiles, evenly spaced, in 8192ths of
/// the jitter, as numbers with spaces between them.
///
/// # Errors
/// Names the line that is wrong.
pub fn parse_table(text: &str) -> Result<Arc<[i16]>, TraceError> {
    let mut table = Vec::new();
    let mut last = 1;
    for line in lines(text) {
        let (number, line) = line?;
        last = number;
        for word in line.split_whitespace() {
            let sigma = word.parse().map_err(|_| {
                wrong(number, "it has a word that is no number from -32768 to 32767")
            })?;
            table.push(sigma);
        }
        if table.len() > MAX_TABLE {
            return Err(wrong(number, format!("the table has more than {MAX_TABLE} numbers")));
        }
    }
    match table.is_empty() {
        true => Err(wrong(last, "the table has no numbers")),
        false => Ok(table.into()),
    }
}

/// The lines of a trace that say something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = Result<(usize, &str), TraceError>> {
    let said = text.lines().enumerate().map(|(at, line)| {
        let line = line.split('#').next().unwrap_or_default().trim();
        (at + 1, line)
    });
    let said = said.filter(|(_, line)| !line.is_empty());
    said.enumerate().map(|(n, (number, line))| match n {
        MAX_LINES.. => Err(wrong(number, format!("it has more than {MAX_LINES}"))),
        _ => Ok((number, line)),
    })
}

fn wrong(line: usize, reason: impl Into<String>) -> TraceError {
    TraceError { line, reason: reason.into() }
}

impl Bandwidth {
    /// Reads a trace in mahimahi's format.
    ///
    /// # Errors
    /// Names the line that is wrong.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut at_ms = Vec::new();
        let mut last = (0, 0);
        for line in lines(text) {
            let (number, word) = line?;
            let at = word.parse().ok().filter(|at| *at <= MAX_MS);
            let at: u32 = at.ok_or_else(|| {
                wrong(number, format!("it is not a time in ms, at most {MAX_MS}"))
            })?;
            if at < last.1 {
                return Err(wrong(number, format!("{at} ms is before {} ms", last.1)));
            }
            last = (number, at);
            at_ms.push(at);
        }
        if last.1 == 0 {
            return Err(wrong(last.0.max(1), "the trace ends at 0 ms, so it cannot start again"));
        }
        Ok(Self { at_ms: at_ms.into() })
    }

    /// The mean rate in bits a second.
    #[must_use]
    pub fn mean_rate(&self) -> u64 {
        self.at_ms.len() as u64 * OPPORTUNITY * 8 * 1000 / self.period_ms()
    }

    fn period_ms(&self) -> u64 {
        u64::from(self.at_ms.last().copied().unwrap_or(1))
    }

    /// The time, from the trace's start, of an opportunity. They are counted from 0 through all
    /// repetitions.
    pub(crate) fn time(&self, number: u64) -> u64 {
        let count = self.at_ms.len() as u64;
        let (round, at) = (number / count, (number % count) as usize);
        (round * self.period_ms() + u64::from(self.at_ms[at])) * Nanos::MILLI
    }

    /// The first opportunity at `ns` or later.
    pub(crate) fn first_at(&self, ns: u64) -> u64 {
        let period = self.period_ms() * Nanos::MILLI;
        let (round, within) = (ns / period, ns % period);
        let count = self.at_ms.len() as u64;
        let at = self.at_ms.partition_point(|ms| u64::from(*ms) * Nanos::MILLI < within);
        // The end of a repetition is the start of the next: its last opportunities are at that
        // time.
        let first = round * count + at as u64;
        if within == 0 && round > 0 {
            let ending = self.at_ms.partition_point(|ms| u64::from(*ms) < self.period_ms());
            return (round - 1) * count + ending as u64;
        }
        first
    }
}

impl Series {
    /// Reads a series.
    ///
    /// # Errors
    /// Names the line that is wrong.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut rows: Vec<Row> = Vec::new();
        let mut end = (1, 0);
        for line in lines(text) {
            let (number, line) = line?;
            let mut words = line.split_whitespace();
            let mut word = || words.next().unwrap_or_default();
            let from_ns = nanoseconds(word()).map_err(|_| wrong(number, NOT_A_ROW))?;
            let delay_ns = nanoseconds(word()).map_err(|_| wrong(number, NOT_A_ROW))?;
            let loss_ppm = share(word()).map_err(|_| wrong(number, NOT_A_ROW))?;
            if words.next().is_some() {
                return Err(wrong(number, "it has more than TIME DELAY LOSS"));
            }
            if from_ns > u64::from(MAX_MS) * Nanos::MILLI {
                return Err(wrong(number, format!("its time is beyond {MAX_MS} ms")));
            }
            if delay_ns > crate::LinkConfig::MAX_DELAY_NS {
                return Err(wrong(number, "its delay is beyond 10 s"));
            }
            match rows.last() {
                None if from_ns != 0 => return Err(wrong(number, "the first time is not 0s")),
                Some(row) if from_ns <= row.from_ns => {
                    return Err(wrong(number, "its time is not after the line before"));
                }
                _ => {}
            }
            end = (number, from_ns);
            rows.push(Row { from_ns, delay_ns, loss_ppm });
        }
        if rows.len() < 2 {
            return Err(wrong(end.0, "a series needs two lines: the last one ends it"));
        }
        rows.pop();
        Ok(Self { rows: rows.into(), period_ns: end.1 })
    }

    /// The row that holds at `ns` from the trace's start.
    #[must_use]
    pub fn at(&self, ns: u64) -> Row {
        let within = ns % self.period_ns.max(1);
        let after = self.rows.partition_point(|row| row.from_ns <= within);
        self.rows[after.saturating_sub(1)]
    }

    /// The longest delay in nanoseconds.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.rows.iter().map(|row| row.delay_ns).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = Nanos::MILLI;

    #[test]
    fn opportunities_repeat_after_the_last() {
        let trace = Bandwidth::parse("# a comment\n1\n1\n\n3 # two at once, then one\n").unwrap();
        let times: Vec<u64> = (0..7).map(|n| trace.time(n) / MS).collect();
        assert_eq!(times, [1, 1, 3, 4, 4, 6, 7]);
        for ns in (0..20 * MS).step_by(100_000) {
            let slow = (0..).find(|n| trace.time(*n) >= ns).unwrap();
            assert_eq!(trace.first_at(ns), slow, "at {ns}");
        }
        assert_eq!(trace.mean_rate(), 3 * 1504 * 8 * 1000 / 3);
        let zero = Bandwidth::parse("0\n0\n2\n2").unwrap();
        for ns in (0..20 * MS).step_by(100_000) {
            let slow = (0..).find(|n| zero.time(*n) >= ns).unwrap();
            assert_eq!(zero.first_at(ns), slow, "at {ns}");
        }
    }

    #[test]
    fn a_series_holds_until_its_next_row_and_repeats() {
        let text = "0s 40ms 0%\n500ms 80ms 2.5%\n2s 0ms 0%";
        let series = Series::parse(text).unwrap();
        let at = |ms: u64| (series.at(ms * MS).delay_ns / MS, series.at(ms * MS).loss_ppm);
        assert_eq!(
            [0, 499, 500, 1999, 2000, 2500].map(at),
            [(40, 0), (40, 0), (80, 25_000), (80, 25_000), (40, 0), (80, 25_000)]
        );
        assert_eq!(series.longest(), 80 * MS);
    }

    #[test]
    fn tables_are_numbers_of_two_bytes() {
        assert_eq!(*parse_table("# netem\n -100 0\n 100\n").unwrap(), [-100, 0, 100]);
        for wrong in ["", "1 x", "40000"] {
            assert!(parse_table(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_name_their_line() {
        let table = [
            ("", 1, "ends at 0 ms"),
            ("0\n0", 2, "ends at 0 ms"),
            ("5\n\n4", 3, "4 ms is before 5 ms"),
            ("1\nfast", 2, "it is not a time"),
            ("1\n86400001", 2, "not a time in ms, at most"),
            ("-1", 1, "not a time"),
        ];
        for (text, line, reason) in table {
            let error = Bandwidth::parse(text).unwrap_err();
            assert!(error.line == line && error.reason.contains(reason), "{text:?}: {error}");
        }
        let table = [
            ("0s 1ms 0%", 1, "needs two lines"),
            ("1s 1ms 0%\n2s 1ms 0%", 1, "the first time is not 0s"),
            ("0s 1ms 0%\n0s 1ms 0%", 2, "not after"),
            ("0s 1ms\n1s 1ms 0%", 1, "TIME DELAY LOSS"),
            ("0s 1ms 101%\n1s 1ms 0%", 1, "TIME DELAY LOSS"),
            ("0s 11s 0%\n1s 1ms 0%", 1, "beyond 10 s"),
            ("0s 1ms 0% x\n1s 1ms 0%", 1, "more than TIME"),
        ];
        for (text, line, reason) in table {
            let error = Series::parse(text).unwrap_err();
            assert!(error.line == line && error.reason.contains(reason), "{text:?}: {error}");
        }
    }
}
