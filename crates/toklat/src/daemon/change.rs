//! Which settings a running switch can change.

use dataplane::config::SwitchConfig;

use crate::api::{ApiError, ErrorCode};

/// Checks that new workers of `name` can run on the CPUs they are pinned to. Workers that the
/// switch already has are not checked: their CPU may have gone since, and the switch runs without
/// it.
///
/// # Errors
/// Names the first CPU that cannot be used.
pub fn check_cpus(
    name: &str,
    old: Option<&SwitchConfig>,
    new: &SwitchConfig,
) -> Result<(), ApiError> {
    if old.is_some_and(|old| old.workers == new.workers) {
        return Ok(());
    }
    for cpu in new.workers.iter().filter_map(|worker| worker.cpu) {
        if !can_run_on(cpu) {
            let remedy =
                "name CPUs that this machine has and the daemon may use, or leave them out";
            let reason = format!("{name}: no worker can run on CPU {cpu}");
            return Err(ApiError::new(ErrorCode::BadRequest, reason, remedy));
        }
    }
    Ok(())
}

/// True if a thread can be pinned to this CPU. Tries it in a thread of its own.
fn can_run_on(cpu: u16) -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let there = move || {
        let mut set = CpuSet::new();
        usize::from(cpu) < CpuSet::MAX_CPU && {
            set.set(usize::from(cpu));
            sched_setaffinity(None, &set).is_ok()
        }
    };
    std::thread::spawn(there).join().unwrap_or(false)
}

/// Checks that a switch stays trusted, or not. Its memory, its ports and what may wait for it are
/// others.
///
/// # Errors
/// It would change.
pub fn check_trusted(name: &str, old: &SwitchConfig, new: &SwitchConfig) -> Result<(), ApiError> {
    if old.trusted == new.trusted {
        return Ok(());
    }
    let is = if old.trusted { "is trusted" } else { "is not trusted" };
    let reason = format!("{name} {is}, which does not change while it exists");
    Err(ApiError::new(ErrorCode::Busy, reason, "remove it, and add it again"))
}

/// True if a running data process cannot take the new settings: they decide its memory or threads.
#[must_use]
pub fn needs_restart(old: &SwitchConfig, new: &SwitchConfig) -> bool {
    let shape = |c: &SwitchConfig| (c.max_ports, c.workers.clone(), c.fdb_entries);
    shape(old) != shape(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::config::WorkerConfig;

    #[test]
    fn a_cpu_that_is_not_there_is_refused_unless_it_was_there_before() {
        let on =
            |cpu| SwitchConfig { workers: vec![WorkerConfig { cpu }], ..SwitchConfig::default() };
        let gone = on(Some(u16::MAX));
        let error = check_cpus("v", None, &gone).unwrap_err();
        assert!(error.reason.contains("65535"), "{error}");
        check_cpus("v", Some(&on(None)), &gone).unwrap_err();
        check_cpus("v", Some(&gone), &gone).unwrap();
        check_cpus("v", None, &on(None)).unwrap();
    }

    #[test]
    fn only_what_decides_memory_and_threads_needs_a_restart() {
        let old = SwitchConfig::default();
        let new = SwitchConfig { batch: 32, fdb_ageing_s: 1, ..old.clone() };
        assert!(!needs_restart(&old, &new));
        assert!(needs_restart(&old, &SwitchConfig { fdb_entries: 64, ..old.clone() }));
    }
}
