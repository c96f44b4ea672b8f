//! The kernel's work for a port's user on threads that serve others, and its consequences.

use port::Counter;
use serde::{Deserialize, Serialize};
use shmem::Shareable;

/// The standing of a port's user: which thread makes system calls whose cost the user sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Standing {
    /// The threads that serve all users make the calls.
    #[default]
    Good = 0,
    /// Calls were slow: a helper thread of the user wakes the owners of the user's ports.
    Helped = 1,
    /// Calls stayed slow: the owners of the user's ports are not woken any more, and these ports
    /// are at fault.
    AtFault = 2,
}

impl Standing {
    /// The standing with this number. Unknown numbers count as the worst.
    #[must_use]
    pub const fn of(number: u64) -> Self {
        match number {
            0 => Self::Good,
            1 => Self::Helped,
            _ => Self::AtFault,
        }
    }
}

/// A port's counters of that work. Written under its user's lock, except `helped`, which the helper
/// thread writes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Conduct {
    /// The standing of the port's user, as the number of a [`Standing`].
    pub standing: Counter,
    /// Slow system calls for the port's user.
    pub slow_calls: Counter,
    /// Nanoseconds of the slowest of these calls.
    pub slowest_call_ns: Counter,
    /// How often an access to the owner's memory was delayed while the port was watched.
    pub slow_touches: Counter,
    /// Nanoseconds of the longest of these delays.
    pub slowest_touch_ns: Counter,
    /// Wake-ups by the helper thread of the user.
    pub helped_kicks: Counter,
}

// SAFETY: the type consists of counters only.
unsafe impl Shareable for Conduct {}

impl Conduct {
    /// Clears all counters, because the port's number gets another holder.
    pub(crate) fn clear(&self) {
        let Self { standing, slow_calls, slowest_call_ns, .. } = self;
        let Self { slow_touches, slowest_touch_ns, helped_kicks, .. } = self;
        let calls = [standing, slow_calls, slowest_call_ns, helped_kicks];
        calls.into_iter().chain([slow_touches, slowest_touch_ns]).for_each(|count| count.set(0));
    }
}
