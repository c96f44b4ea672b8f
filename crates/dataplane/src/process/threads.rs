//! How workers' threads are run.

use crate::worker::Worker;

/// Pins the calling thread to a CPU; false if that is not possible.
pub(super) fn pin(cpu: u16) -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let cpu = usize::from(cpu);
    let mut set = CpuSet::new();
    cpu < CpuSet::MAX_CPU && {
        set.set(cpu);
        sched_setaffinity(None, &set).is_ok()
    }
}

/// Runs a worker. If it panics outside of a port's turn, the process aborts, and its successor
/// serves the ports. Otherwise the control thread would wait for the worker forever.
pub(super) fn run_or_abort(worker: Worker) {
    let run = std::panic::AssertUnwindSafe(|| worker.run());
    if std::panic::catch_unwind(run).is_err() {
        crate::log::flush();
        std::process::abort();
    }
}
