//! Whether a worker's long passes wait, or only have no processor.

use std::sync::atomic::Ordering;

use port::Nanos;

use super::{Mailbox, Worker};
use crate::state::WorkerState;
use crate::suspicion::SLOW_NS;
use crate::user::Progress;

/// A pass that works for so long counts, too.
const WORKED_NS: u64 = 5 * Nanos::MILLI;

/// What a worker knew before its last pass.
#[derive(Debug)]
pub(super) struct Measure {
    pub until: Nanos,
    progress: Progress,
    /// Turns that took long.
    slow: u64,
    /// Times that the worker slept of its own accord.
    sleeps: u64,
}

impl Measure {
    pub fn begin(until: Nanos, state: &WorkerState) -> Self {
        let (progress, slow) = (Progress::here(), state.turns.from(SLOW_NS));
        Self { until, progress, slow, sleeps: state.sleeps.get() }
    }

    /// True if the pass since the last look was long, and waited more often than the worker slept, or worked for long.
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
    /// Notes whether the last pass waited, while that is measured.
    pub(super) fn measure(&mut self, mailbox: &Mailbox, now: Nanos) {
        let Some(measure) = &mut self.measure else { return };
        let waited = measure.look(&self.state);
        self.common.waited.fetch_add(u64::from(waited), Ordering::Relaxed);
        if now < measure.until {
            // As if there were jobs: before every pass.
            mailbox.pending.store(true, Ordering::Relaxed);
        } else {
            self.measure = None;
        }
    }
}
