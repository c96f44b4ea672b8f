//! Finds the port whose memory delays workers.
//!
//! If an owner makes a page of its memory unavailable, a worker that touches the page waits. A copy
//! goes from one port's memory to another's, and it does not show whose page it was. So there are
//! three steps, the first of which is free:
//!
//! ```text
//!   calm        turns are counted by how long they took, as ever
//!    | one took 2 ms
//!   measuring   for a second each pass notes whether the worker waited, or only had no processor
//!    | it waited
//!   watching    frames are copied into our own memory first, and out of it then: each touch is of one
//!               port's memory alone, is timed, and is charged to its user
//! ```
//!
//! Watched ports send through a [`link::Link`] that does nothing, and receive through
//! [`Timed`]. If the delays go on, the user is at fault ([`turn::user`]).

use std::sync::{Arc, Mutex, PoisonError};

use port::{Batch, Delivered, Effects, Egress, FrameIdx, Limits, Nanos, OffloadSet, Software};
use turn::attach::Exit;
use turn::user::Payer;

/// A turn of this length starts the measurement.
pub(crate) const SLOW_NS: u64 = 2 * Nanos::MILLI;
/// For how long ports are watched after the last touch that was held up.
const WATCH_NS: u64 = 5 * Nanos::SECOND;
/// For how long ports are not watched again if no suspicion was confirmed.
const REST_NS: u64 = 10 * Nanos::SECOND;

/// The counters since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Turns that took long.
    pub slow: u64,
    /// Passes with long waits, counted while workers measure.
    pub waited: u64,
    /// Accesses to a port's memory that were delayed, counted while ports are watched.
    pub touches: u64,
}

/// The next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Have the workers measure for a second.
    Measure,
    Watch,
    /// Stop watching the ports.
    Relax,
}

/// The state of the search.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Suspicion {
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The ports are not watched again before this time.
    Calm(Nanos),
    Measuring,
    Watching {
        until: Nanos,
        found: bool,
    },
}

impl Default for Phase {
    fn default() -> Self {
        Self::Calm(Nanos(0))
    }
}

impl Suspicion {
    /// True while ports are watched.
    pub fn watches(&self) -> bool {
        matches!(self.phase, Phase::Watching { .. })
    }

    /// Evaluates the counters; called once a second.
    pub fn look(&mut self, seen: Seen, now: Nanos) -> Step {
        let (phase, step) = match self.phase {
            Phase::Calm(rested) if seen.slow > 0 && now >= rested => {
                (Phase::Measuring, Step::Measure)
            }
            Phase::Measuring if seen.waited > 0 => {
                (Phase::Watching { until: now + WATCH_NS, found: false }, Step::Watch)
            }
            Phase::Measuring => (Phase::Calm(now), Step::Nothing),
            Phase::Watching { .. } if seen.touches > 0 => {
                (Phase::Watching { until: now + WATCH_NS, found: true }, Step::Nothing)
            }
            Phase::Watching { until, found } if now >= until => {
                (Phase::Calm(if found { now } else { now + REST_NS }), Step::Relax)
            }
            same => (same, Step::Nothing),
        };
        self.phase = phase;
        step
    }
}

/// A watched receive queue: the time of its deliveries is due to its port alone.
pub(crate) struct Timed {
    exit: Exit,
    payer: Payer,
    /// Held during a delivery, so that waiting for the exit's own lock is not charged.
    turn: Mutex<()>,
}

impl Timed {
    pub fn new(exit: Exit, payer: Payer) -> Self {
        Self { exit, payer, turn: Mutex::default() }
    }

    fn touch<T>(&self, touch: impl FnOnce(&Exit) -> T) -> T {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.payer.touch(|| touch(&self.exit))
    }
}

/// Has receive queues watched.
pub(crate) fn timed(exits: &[Exit], payer: &Payer) -> Vec<Exit> {
    exits.iter().map(|exit| Arc::new(Timed::new(exit.clone(), payer.clone())).into()).collect()
}

impl Egress for Timed {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        self.touch(|exit| exit.deliver(batch, list, limits))
    }

    fn deliver_copies(
        &self,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
        sent: bool,
    ) -> Delivered {
        self.touch(|exit| exit.deliver_copies(batch, list, limits, sent))
    }

    fn lost(&self) -> u64 {
        self.exit.lost()
    }

    fn settle(&self, now: Nanos) -> Effects {
        self.touch(|exit| exit.settle(now))
    }

    fn takes(&self) -> OffloadSet {
        self.exit.takes()
    }

    fn count_software(&self, done: Software) {
        self.exit.count_software(done);
    }

    fn is_throttled(&self, now: Nanos) -> bool {
        self.exit.is_throttled(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Seen = Seen { slow: 1, waited: 0, touches: 0 };
    const WAITED: Seen = Seen { slow: 1, waited: 1, touches: 0 };
    const TOUCHED: Seen = Seen { slow: 1, waited: 0, touches: 1 };

    fn at(second: u64) -> Nanos {
        Nanos(second * Nanos::SECOND)
    }

    #[test]
    fn ports_are_watched_while_touches_are_held_up_and_a_while_longer() {
        let mut suspicion = Suspicion::default();
        assert_eq!(suspicion.look(Seen::default(), at(1)), Step::Nothing);
        assert_eq!(suspicion.look(SLOW, at(2)), Step::Measure);
        assert_eq!(suspicion.look(WAITED, at(3)), Step::Watch);
        (4..60).for_each(|second| assert_eq!(suspicion.look(TOUCHED, at(second)), Step::Nothing));
        assert!(suspicion.watches());
        (60..64).for_each(|second| assert_eq!(suspicion.look(SLOW, at(second)), Step::Nothing));
        assert_eq!(suspicion.look(SLOW, at(64)), Step::Relax);
        assert_eq!(suspicion.look(SLOW, at(65)), Step::Measure, "it was right: again at once");
    }

    #[test]
    fn a_busy_machine_has_no_port_watched_and_what_is_not_found_is_looked_for_rarely() {
        let mut suspicion = Suspicion::default();
        for second in 1..1000 {
            assert!(matches!(suspicion.look(SLOW, at(second)), Step::Nothing | Step::Measure));
        }
        let watched = (1000..1160).filter(|second| {
            suspicion.look(WAITED, at(*second));
            suspicion.watches()
        });
        let watched = watched.count();
        assert!((30..60).contains(&watched), "{watched} of 160 seconds");
    }
}
