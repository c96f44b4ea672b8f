//! What the kernel did for a port's user on threads that serve others, too, and what came of it.

use port::Counter;
use serde::{Deserialize, Serialize};
use shmem::Shareable;

/// How a port's user stands: who makes the system calls whose cost the user sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Standing {
    /// The threads that serve everybody.
    #[default]
    Good = 0,
    /// Such calls were slow: a thread of the user's own wakes its owners.
    Helped = 1,
    /// They went on being slow: none wakes its owners, and its ports are at fault.
    AtFault = 2,
}

impl Standing {
    /// The one with this number; numbers beyond the last are the worst.
    #[must_use]
    pub const fn of(number: u64) -> Self {
        match number {
            0 => Self::Good,
            1 => Self::Helped,
            _ => Self::AtFault,
        }
    }
}

/// What is counted of a port. Written under its user's lock, but for `helped`, which the user's own thread writes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Conduct {
    /// How its user stands: the number of a [`Standing`].
    pub standing: Counter,
    /// System calls for it that were slow.
    pub slow_calls: Counter,
    /// Nanoseconds of the slowest.
    pub slowest_call_ns: Counter,
    /// Touches of its owner's memory that were held up, while that was watched.
    pub slow_touches: Counter,
    /// Nanoseconds of the longest.
    pub slowest_touch_ns: Counter,
    /// Wake-ups that a thread of its user's own made.
    pub helped_kicks: Counter,
}

// SAFETY: counters only.
unsafe impl Shareable for Conduct {}

impl Conduct {
    /// Forgets everything: the port's number gets another holder.
    pub(super) fn clear(&self) {
        let Self { standing, slow_calls, slowest_call_ns, .. } = self;
        let Self { slow_touches, slowest_touch_ns, helped_kicks, .. } = self;
        let calls = [standing, slow_calls, slowest_call_ns, helped_kicks];
        calls.into_iter().chain([slow_touches, slowest_touch_ns]).for_each(|count| count.set(0));
    }
}
