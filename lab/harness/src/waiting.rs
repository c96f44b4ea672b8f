//! Waiting for what must happen.

use std::time::{Duration, Instant};

/// The longest time that a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `is_so`.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Calls `it` until it returns a value.
pub fn wait_for<T>(what: &str, mut it: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(it) = it() {
            return it;
        }
        assert!(started.elapsed() < PATIENCE, "no end of waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
