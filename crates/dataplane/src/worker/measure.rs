//! Tells whether a worker's long passes wait for something, or only lack a processor.

use std::sync::atomic::Ordering;

use port::Nanos;
use turn::state::WorkerState;
use turn::user::Progress;

use super::{Mailbox, Worker};
use crate::suspicion::SLOW_NS;

/// A pass that works for this long counts as one that waited.
const WORKED_NS: u64 = 5 * Nanos::MILLI;

/// The worker's counters before its last pass.
#[derive(Debug)]
pub(super) struct Measure {
    pub until: Nanos,
    progress: Progress,
    /// Turns that took long.
    slow: u64,
    /// How often the worker has gone to sleep by itself.
    sleeps: u64,
}

impl Measure {
    pub fn begin(until: Nanos, state: &WorkerState) -> Self {
        let (progress, slow) = (Progress::here(), state.turns.from(SLOW_NS));
        Self { until, progress, slow, sleeps: state.sleeps.get() }
    }

    /// True if the last pass was long, and either waited more often than the worker slept or worked
    /// too long.
    pub fn look(&mut self, state: &WorkerState) -> bool {
        let next = Self::begin(self.until, state);
        let before = std::mem::replace(self, next);
        let waits = self.progress.waits - before.progress.waits;
        let worked = self.progress.worked - before.progress.worked;
        let waited = waits > self.sleeps - before.sleeps || worked >= WORKED_NS;
        self.slow > before.slow && waited
    }
}

impl Worker {
    /// While measuring: counts the last pass if it waited.
    pub(super) fn measure(&mut self, mailbox: &Mailbox, now: Nanos) {
        let Some(measure) = &mut self.measure else { return };
        let waited = measure.look(&self.state);
        self.common.waited.fetch_add(u64::from(waited), Ordering::Relaxed);
        if now < measure.until {
            // Marks the mailbox as if it held jobs, so that this function runs before each pass.
            mailbox.pending.store(true, Ordering::Relaxed);
        } else {
            self.measure = None;
        }
    }
}
