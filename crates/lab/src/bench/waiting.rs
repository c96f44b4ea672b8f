//! How long the threads of a sample waited for a processor that others had.
//!
//! Linux tells it in `schedstat`: nanoseconds on a processor, nanoseconds ready without one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

/// A sample whose threads waited longer than this share of the time is repeated.
pub const LIMIT: f64 = 0.05;

/// The greatest share of all threads that have reported since [`take`].
static GREATEST: Mutex<f64> = Mutex::new(0.0);

/// Reports the share of a thread's time.
pub fn report(share: f64) {
    let mut greatest = GREATEST.lock().unwrap_or_else(PoisonError::into_inner);
    *greatest = greatest.max(share);
}

/// Takes the greatest share that was reported since the last call.
pub fn take() -> f64 {
    std::mem::take(&mut *GREATEST.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs `measure`, and reports this thread's waiting meanwhile.
pub fn watched<T>(measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let (before, start) = (of_this_thread(), Instant::now());
    let measured = measure();
    if let Some((before, after)) = before.zip(of_this_thread()) {
        report(share(after.saturating_sub(before), start.elapsed()));
    }
    measured
}

/// Reports the waiting of each thread of a process that was started `age` ago.
pub fn report_process(pid: i32, age: Duration) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    stats.filter_map(|stat| waited(&stat)).for_each(|waited| report(share(waited, age)));
}

fn of_this_thread() -> Option<Duration> {
    waited(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// The second number of a `schedstat`.
fn waited(stat: &str) -> Option<Duration> {
    Some(Duration::from_nanos(stat.split_whitespace().nth(1)?.parse().ok()?))
}

fn share(waited: Duration, of: Duration) -> f64 {
    if of.is_zero() { 0.0 } else { waited.as_secs_f64() / of.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_of_schedstat_is_the_time_without_a_processor() {
        assert_eq!(waited("5000 250 17\n"), Some(Duration::from_nanos(250)));
        assert_eq!((waited(""), waited("5000 x 17")), (None, None));
        let of = Duration::from_nanos(5000);
        assert!((share(Duration::from_nanos(250), of) - LIMIT).abs() < 1e-9);
        assert!(share(of, Duration::ZERO).abs() < 1e-9);
    }
}
