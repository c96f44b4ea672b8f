//! When a monitor's frames crossed the switch.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::Received;

/// Frames are no older than this when they are read; the word of an older one is none of ours.
const OLDEST: Duration = Duration::from_secs(60);

/// A moment, by the clock of captures and by the one of the switch.
#[derive(Clone, Copy, Debug)]
pub struct FrameClock {
    /// Since 1970.
    now: Duration,
    monotonic: Duration,
}

impl FrameClock {
    /// The present.
    #[must_use]
    pub fn now() -> Self {
        let read = |clock| since(clock_gettime(clock));
        Self { now: read(ClockId::Realtime), monotonic: read(ClockId::Monotonic) }
    }

    /// When a frame crossed the switch, since 1970. It is this moment for a frame that says
    /// nothing, or what cannot be.
    #[must_use]
    pub fn time(&self, frame: &Received<'_>) -> Duration {
        self.time_of(frame.crossed_at())
    }

    fn time_of(&self, crossed_at: u64) -> Duration {
        let ago = self.monotonic.checked_sub(Duration::from_nanos(crossed_at));
        let ago = ago.filter(|ago| *ago <= OLDEST && crossed_at != 0);
        self.now.saturating_sub(ago.unwrap_or_default())
    }
}

fn since(time: Timespec) -> Duration {
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_cannot_be_are_now() {
        let [now, monotonic] = [1_700_000_000, 1000].map(Duration::from_secs);
        let clock = FrameClock { now, monotonic };
        let second = 1_000_000_000;
        assert_eq!(clock.time_of(999 * second), now - Duration::from_secs(1));
        for wrong in [0, 1, 900 * second, 1001 * second, u64::MAX] {
            assert_eq!(clock.time_of(wrong), now, "{wrong}");
        }
    }
}
