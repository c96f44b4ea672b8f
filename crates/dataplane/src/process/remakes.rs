//! How often a front end may have its port rebuilt.
//!
//! Whenever a guest switches a ring on or off, its halves are rebuilt and every worker takes another table of
//! ports: work for this thread that grows with the switch. A front end that does so in a loop may have a quarter of
//! this thread's time. Beyond that its messages wait, and everybody else's do not.

use port::Nanos;

/// A front end may spend so much at once.
const BURST_NS: u64 = 100 * Nanos::MILLI;
/// And a quarter of the time.
const SHARE: u64 = 4;

/// What rebuilding one port has cost.
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

    /// Until when its front end is not heard, if it is not.
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
