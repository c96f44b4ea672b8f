//! The clock of a process: what its turns are told.

use std::sync::OnceLock;
use std::time::Instant;

use tcp::Nanos;

/// Returns the time since this process first asked, plus a second. All stacks of a process count
/// from the same moment.
#[must_use]
pub fn now() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    Nanos(Nanos::SECOND) + START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
