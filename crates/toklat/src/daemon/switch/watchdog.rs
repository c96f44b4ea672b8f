//! Detects workers that make no progress.
//!
//! A worker that is stuck in a port's turn serves none of its other ports. Its process lives and
//! answers commands, so only an outside check notices: the supervisor compares the passes that each
//! worker counts in state memory.

use std::time::{Duration, Instant};

use dataplane::config::PortId;

/// A worker that serves one port for this long in one pass is stuck. Even delayed pages and a busy
/// machine take less.
const STUCK: Duration = Duration::from_secs(10);

/// The last observations of a switch's workers.
#[derive(Debug, Default)]
pub struct Watchdog {
    /// By worker: its pass count, and when that count was first seen.
    seen: Vec<(u64, Instant)>,
}

impl Watchdog {
    /// Checks each worker ([`dataplane::state::State::at_work`]). Returns a stuck worker, and the
    /// port it serves.
    pub fn look(
        &mut self,
        at_work: &[(u64, Option<PortId>)],
        now: Instant,
    ) -> Option<(usize, PortId)> {
        self.seen.resize(at_work.len(), (u64::MAX, now));
        let mut stuck = None;
        for (number, (seen, (passes, port))) in self.seen.iter_mut().zip(at_work).enumerate() {
            match port {
                Some(port) if seen.0 == *passes => {
                    if now - seen.1 >= STUCK && stuck.is_none() {
                        stuck = Some((number, *port));
                    }
                }
                // A worker that serves no port sleeps, or is about to begin a pass.
                _ => *seen = (*passes, now),
            }
        }
        stuck
    }

    /// Forgets the observations, because another data process is watched next.
    pub fn begin(&mut self) {
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stays_in_a_turn_is_stuck_and_one_that_sleeps_is_not() {
        let (mut watchdog, start) = (Watchdog::default(), Instant::now());
        let mut look = |second: u64, at_work: &[(u64, Option<PortId>)]| {
            watchdog.look(at_work, start + Duration::from_secs(second))
        };
        assert_eq!(look(0, &[(5, None), (7, Some(3))]), None);
        for second in 1..10 {
            assert_eq!(look(second, &[(5, None), (7, Some(3))]), None, "{second}");
        }
        assert_eq!(look(10, &[(5, None), (7, Some(3))]), Some((1, 3)));
        assert_eq!(look(11, &[(5, None), (8, Some(3))]), None, "it went on");
        for second in 12..60 {
            let passes = 8 + second;
            assert_eq!(look(second, &[(5, None), (passes, Some(3))]), None, "busy with one port");
        }
    }
}
