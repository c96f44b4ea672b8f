//! Kills what guests have left behind, and what no guest is.
//!
//! A program may start processes before it is sealed. Most end with their process namespace. The
//! others, and copies that nothing waits for, become children of the manager without an owner.

use std::time::{Duration, Instant};

use super::{Due, Manager};

/// How long after an end strangers are looked for.
const SOON: Duration = Duration::from_millis(500);
/// How long the manager looks for strangers before it ends.
const LAST: Duration = Duration::from_secs(2);

impl Manager {
    /// Lets strangers be killed soon.
    pub(super) fn sweep_soon(&mut self) {
        if !std::mem::replace(&mut self.sweeps, true) {
            self.after(SOON, Due::Sweep);
        }
    }

    /// Kills strangers, unless a copy is being made, which would look like one.
    pub(super) fn sweep(&mut self) {
        self.sweeps = false;
        let copying = self.units.iter().any(|unit| unit.waits_for_copy() && unit.process.is_some());
        if copying || self.strangers.kill() > 0 {
            self.sweep_soon();
        }
    }

    /// Kills all strangers, when the guests have ended.
    pub(super) fn sweep_all(&self) {
        let began = Instant::now();
        while self.strangers.kill() > 0 && began.elapsed() < LAST {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
