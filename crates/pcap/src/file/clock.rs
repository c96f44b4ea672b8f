//! The times of a recording: when a frame is due after the first one.

/// A pause of more than a day (ns) is a jump of the clock, as from 1970 to today.
const LONGEST_PAUSE: u64 = 86_400 * 1_000_000_000;
/// Frames that were captured on several processors may be swapped by less than this (ns).
const SWAPPED: u64 = 1_000_000_000;

/// Turns the clock's times into times since the first frame that never decrease.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The time of the frame before, by the file's clock.
    last: Option<u64>,
    /// The latest time by the file's clock since it last jumped ahead.
    highest: u64,
    /// The time since the first frame that `highest` stands for.
    at: u64,
    jumps: u64,
}

impl Clock {
    /// Times since the first frame at which a frame of this time is due; without a time, with the
    /// frame before.
    pub(super) fn due(&mut self, time: Option<u64>) -> u64 {
        let Some(time) = time else { return self.at };
        let Some(last) = self.last.replace(time) else {
            self.highest = time;
            return self.at;
        };
        if time.saturating_add(SWAPPED) < last || time > last.saturating_add(LONGEST_PAUSE) {
            self.jumps += 1;
            // After a jump back, a clock that is set right again comes to `highest`.
            self.highest = self.highest.max(time);
            return self.at;
        }
        let was_set_back = last.saturating_add(SWAPPED) < self.highest;
        let from = if was_set_back && time < self.highest { last } else { self.highest };
        self.at = self.at.saturating_add(time.saturating_sub(from));
        self.highest = self.highest.max(time);
        self.at
    }

    /// How often the clock jumped.
    pub(super) const fn jumps(&self) -> u64 {
        self.jumps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// When frames of these seconds are due, in seconds, and how often the clock jumped.
    fn due(times: &[u64]) -> (Vec<u64>, u64) {
        let mut clock = Clock::default();
        let due = times.iter().map(|time| clock.due(Some(time * S)) / S).collect();
        (due, clock.jumps())
    }

    #[test]
    fn pauses_are_kept_and_jumps_are_left_out() {
        assert_eq!(due(&[7, 8, 8, 86_408]), (vec![0, 1, 1, 86_401], 0));
        assert_eq!(due(&[0, 1, 1_700_000_000, 1_700_000_002]), (vec![0, 1, 1, 3], 1));
        // Set back by an hour for good: its pauses remain.
        assert_eq!(due(&[9000, 9001, 5400, 5402, 5405]), (vec![0, 1, 1, 3, 6], 1));
        // Set back, and set right again.
        assert_eq!(due(&[9000, 9001, 5400, 9002, 9003]), (vec![0, 1, 1, 2, 3], 1));
    }

    #[test]
    fn swapped_frames_keep_their_order_and_the_pace() {
        let mut clock = Clock::default();
        let due = [5, 7, 6, 8].map(|us| clock.due(Some(us * 1000)));
        assert_eq!((due, clock.jumps()), ([0, 2000, 2000, 3000], 0));
        assert_eq!(clock.due(None), 3000, "without a time, at once");
    }

    #[test]
    fn the_largest_times_do_not_overflow() {
        let mut clock = Clock::default();
        for time in [u64::MAX, 0, u64::MAX, 1, u64::MAX - 1] {
            assert_eq!(clock.due(Some(time)), 0);
        }
    }
}
