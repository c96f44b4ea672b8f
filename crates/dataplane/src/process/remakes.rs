//! A limit on how often a front end has its port rebuilt.
//!
//! When a guest enables or disables a ring, its halves are rebuilt and all workers switch to
//! another table of ports. That is work for this thread, and it grows with the switch. A front end
//! that does it in a loop gets a quarter of this thread's time. Beyond that its messages wait;
//! those of other front ends do not.

use port::Nanos;

/// The time that a front end may use at once.
const BURST_NS: u64 = 100 * Nanos::MILLI;
/// The share of time that a front end may use in the long run, as a divisor.
const SHARE: u64 = 4;

/// The time that rebuilding one port has taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remakes {
    spent_ns: u64,
    at: Nanos,
}

impl Remakes {
    /// Notes that the port was rebuilt from `began` until `now`.
    pub fn charge(&mut self, began: Nanos, now: Nanos) {
        self.spent_ns = self.spent_ns.saturating_sub((now - self.at) / SHARE) + (now - began);
        self.at = now;
    }

    /// Until when the front end has to wait; `None` if it does not.
    pub fn rests_until(&self, now: Nanos) -> Option<Nanos> {
        let until = self.at + self.spent_ns.saturating_sub(BURST_NS) * SHARE;
        (until > now).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_rebuilt_in_a_loop_gets_a_quarter_of_the_time() {
        let (mut remakes, mut now, mut worked) = (Remakes::default(), Nanos(Nanos::SECOND), 0);
        let end = now + 10 * Nanos::SECOND;
        while now < end {
            match remakes.rests_until(now) {
                Some(until) => now = until,
                None => {
                    remakes.charge(now, now + 3 * Nanos::MILLI);
                    (now, worked) = (now + 3 * Nanos::MILLI, worked + 3 * Nanos::MILLI);
                }
            }
        }
        let most = 10 * Nanos::SECOND / SHARE + BURST_NS + 3 * Nanos::MILLI;
        assert!(worked > 2 * Nanos::SECOND && worked <= most, "{worked}");
    }

    #[test]
    fn a_guest_that_boots_does_not_wait() {
        let mut remakes = Remakes::default();
        for n in 0..64 {
            let began = Nanos(Nanos::SECOND + n * Nanos::MILLI);
            assert_eq!(remakes.rests_until(began), None);
            remakes.charge(began, began + Nanos::MILLI);
        }
    }
}
