//! Deaths of a switch's data processes: the pause before each restart, and how long the switch was
//! without one.

use std::time::{Duration, Instant};

use crate::api::RestartGaps;

/// The longest pause before a data process is restarted.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A data process that ran this long ends a row of deaths.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// The deaths of a switch's data processes. Every call says what the time is.
#[derive(Debug)]
pub struct Restarts {
    /// Deaths in a row.
    row: u32,
    /// When a data process was last started.
    started: Instant,
    /// Since when the switch is without one, because it died.
    since: Option<Instant>,
    /// The pauses since then.
    paused: Duration,
    gaps: RestartGaps,
}

impl Restarts {
    /// No data process has died yet.
    pub fn new(now: Instant) -> Self {
        let gaps = RestartGaps::default();
        Self { row: 0, started: now, since: None, paused: Duration::ZERO, gaps }
    }

    /// A data process is being started.
    pub fn starts(&mut self, now: Instant) {
        self.started = now;
    }

    /// The data process has died.
    pub fn died(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// True if the last data process ran for so long that no row of deaths goes on.
    pub fn ran_well(&self, now: Instant) -> bool {
        now - self.started > GOOD_RUN
    }

    /// The pause before the next start, and whether it is the first of a row.
    pub fn pause(&mut self, now: Instant) -> (Duration, bool) {
        if self.ran_well(now) {
            self.end_row();
        }
        self.row = self.row.saturating_add(1);
        let pause = pause_after(self.row);
        self.paused += pause;
        (pause, self.row == 1)
    }

    /// The next death is the first of a row.
    pub fn end_row(&mut self) {
        self.row = 0;
    }

    /// A data process forwards. Returns how long there was none, and which part of that was pause,
    /// if one had died.
    pub fn forwards(&mut self, now: Instant) -> Option<(Duration, Duration)> {
        let (gap, paused) = (now - self.since.take()?, std::mem::take(&mut self.paused));
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let gaps = &mut self.gaps;
        gaps.count += 1;
        (gaps.last_ms, gaps.last_pause_ms) = (ms(gap), ms(paused));
        gaps.longest_ms = gaps.longest_ms.max(ms(gap.saturating_sub(paused)));
        Some((gap, paused))
    }

    /// The gaps so far.
    pub fn gaps(&self) -> RestartGaps {
        self.gaps
    }
}

/// The pause after this many deaths in a row: none after the first, 50 ms after the second, then
/// twice as long each time, and at most two seconds. README.md and SECURITY.md say so.
fn pause_after(deaths: u32) -> Duration {
    match deaths {
        0 | 1 => Duration::ZERO,
        deaths => Duration::from_millis(50 << (deaths - 2).min(8)).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_restarts_begin_at_once_and_go_on_at_most_two_seconds_apart() {
        let pauses: Vec<_> = (1..1000).chain([u32::MAX]).map(pause_after).collect();
        let ms: Vec<_> = pauses.iter().take(9).map(Duration::as_millis).collect();
        assert_eq!(ms, [0, 50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&Duration::from_secs(2)));
        for document in
            [include_str!("../../../../../README.md"), include_str!("../../../../../SECURITY.md")]
        {
            let words = document.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                words.contains("0, 50, 100, 200, 400, 800, 1,600, then 2,000 ms"),
                "documented"
            );
        }
    }

    #[test]
    fn a_minute_without_a_death_ends_the_row() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut restarts = Restarts::new(start);
        let mut die = |after: Duration, now: &mut Instant| {
            restarts.starts(*now);
            *now += after;
            restarts.pause(*now).0.as_millis()
        };
        let mut now = start;
        let pauses = [1, 1, 1, 60, 61, 1].map(|ran| die(ran * second, &mut now));
        assert_eq!(pauses, [0, 50, 100, 200, 0, 50]);
    }

    #[test]
    fn a_gap_is_measured_from_the_death_and_its_pauses_are_told_apart() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut restarts = Restarts::new(start);
        assert_eq!(restarts.forwards(start + ms(5)), None, "the first start is no gap");
        restarts.died(start + ms(100));
        assert_eq!(restarts.pause(start + ms(100)), (ms(0), true));
        assert_eq!(restarts.forwards(start + ms(130)), Some((ms(30), ms(0))));
        restarts.died(start + ms(200));
        assert_eq!(restarts.pause(start + ms(200)), (ms(50), false));
        // Its successor dies as it starts.
        restarts.starts(start + ms(260));
        restarts.died(start + ms(270));
        assert_eq!(restarts.pause(start + ms(270)), (ms(100), false));
        assert_eq!(restarts.forwards(start + ms(390)), Some((ms(190), ms(150))));
        let gaps = RestartGaps { count: 2, last_ms: 190, last_pause_ms: 150, longest_ms: 40 };
        assert_eq!(restarts.gaps(), gaps);
        assert_eq!(restarts.forwards(start + ms(400)), None, "an upgrade is no death");
    }
}
