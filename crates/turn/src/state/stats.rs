//! Reads the numbers in the state memory.

use port::PortId;
use port::stats::{PortStats, SwitchStats, WorkerStats};
use shmem::sync::Ordering;

use super::{SwitchState, WorkerState};

impl SwitchState {
    /// True if port `id` exists.
    #[must_use]
    pub fn has_port(&self, id: PortId) -> bool {
        let word = self.ports.get(usize::from(id) / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (id % 64) & 1 != 0)
    }

    /// Notes whether port `id` exists. For the control thread only.
    pub fn set_port(&self, id: PortId, there: bool) {
        if let Some(word) = self.ports.get(usize::from(id) / 64) {
            let others = word.load(Ordering::Relaxed) & !(1 << (id % 64));
            word.store(others | u64::from(there) << (id % 64), Ordering::Relaxed);
        }
    }

    /// Reads the switch's numbers once.
    #[must_use]
    pub fn snapshot(&self) -> SwitchStats {
        let mut gone = PortStats::of_ingress(&self.gone_ingress);
        gone.add_egress(&self.gone_egress);
        SwitchStats {
            gone,
            lost_in_restarts: self.lost_in_restarts.get(),
            restarts: self.restarts.get(),
        }
    }
}

impl WorkerState {
    /// Reads a worker's numbers once.
    pub(super) fn snapshot(&self) -> WorkerStats {
        WorkerStats {
            passes: self.passes.get(),
            busy_passes: self.busy_passes.get(),
            busy_ns: self.busy_ns.get(),
            frames: self.frames.get(),
            sleeps: self.sleeps.get(),
            kicks: self.kicks.get(),
            ports: self.ports.get(),
            cpu: self.cpu.get().checked_sub(1),
            panics: self.panics.get(),
            turns: self.turns.read(),
        }
    }
}
