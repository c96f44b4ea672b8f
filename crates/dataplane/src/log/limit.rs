//! One line in place of many similar ones.

use std::collections::HashMap;
use std::hash::Hash;

/// The number of ports (or other subjects) that get lines of their own for a reason before the next
/// tick.
const MOST: usize = 32;
/// The subject of lines that replace the lines of all other subjects.
const OTHERS: &str = "\0others";

/// Decides which lines are written, and counts the rest. Between two ticks, which are a second
/// apart, each reason and subject gets one line.
#[derive(Debug)]
pub struct Limiter<R> {
    reasons: HashMap<R, HashMap<String, Repeated>>,
}

/// Lines that were suppressed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    /// The first of the suppressed lines.
    pub what: String,
    /// How many lines were suppressed.
    pub times: u64,
}

impl<R> Default for Limiter<R> {
    fn default() -> Self {
        Self { reasons: HashMap::new() }
    }
}

impl<R: Eq + Hash> Limiter<R> {
    /// True if a line may be written. Otherwise the line is counted.
    pub fn admit(&mut self, reason: R, about: &str, what: impl FnOnce() -> String) -> bool {
        let lines = self.reasons.entry(reason).or_default();
        // With too many subjects, the others share one line.
        let about = if lines.len() < MOST || lines.contains_key(about) { about } else { OTHERS };
        let is_new = !lines.contains_key(about);
        let line = lines.entry(about.to_owned()).or_default();
        if is_new && about != OTHERS {
            return true;
        }
        if line.times == 0 {
            line.what = what();
        }
        line.times += 1;
        false
    }

    /// Ends a second; returns the lines suppressed in it.
    pub fn tick(&mut self) -> Vec<Repeated> {
        let lines = std::mem::take(&mut self.reasons).into_values().flat_map(HashMap::into_values);
        lines.filter(|line| line.times > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_is_counted() {
        let mut limiter = Limiter::default();
        let mut admitted = 0;
        for i in 0..1000 {
            admitted += u32::from(limiter.admit("refused", "p1", || format!("p1: {i}")));
            admitted += u32::from(limiter.admit("refused", "p2", || format!("p2: {i}")));
        }
        assert_eq!(admitted, 2);
        assert!(limiter.admit("stopped", "p1", String::new), "another reason");
        let mut repeated = limiter.tick();
        repeated.sort_by(|a, b| a.what.cmp(&b.what));
        let said: Vec<_> = repeated.iter().map(|r| (&r.what[..], r.times)).collect();
        assert_eq!(said, [("p1: 1", 999), ("p2: 1", 999)]);
        assert!(limiter.admit("refused", "p1", String::new), "a second later");
        assert!(limiter.tick().is_empty());
    }

    #[test]
    fn many_ports_have_few_lines_and_take_little_memory() {
        let mut limiter = Limiter::default();
        let all = 10_000;
        let lines = (0..all).filter(|i| limiter.admit(1, &format!("p{i}"), || format!("p{i}")));
        assert_eq!(lines.count(), MOST);
        assert_eq!(limiter.reasons[&1].len(), MOST + 1);
        let times = all - MOST as u64;
        let rest = Repeated { what: format!("p{MOST}"), times };
        assert_eq!(limiter.tick(), [rest]);
    }
}
