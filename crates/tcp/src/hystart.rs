//! HyStart++ (RFC 9406): slow start ends when round trips grow longer, before the queue overflows.
//!
//! Growth of an acknowledgment is not limited (the RFC's L): receivers acknowledge by the batch.

use crate::time::Nanos;

/// RFC 9406, 4.3: the least and the most growth of the round trip that ends slow start.
const THRESHOLD: (u64, u64) = (4 * Nanos::MILLI, 16 * Nanos::MILLI);
/// The growth that ends slow start is this fraction of the round trip.
const DIVISOR: u64 = 8;
/// Samples that a round needs to count.
const SAMPLES: u32 = 8;
/// How much slower conservative slow start is.
const SLOWER: u32 = 4;
/// Rounds of conservative slow start.
const ROUNDS: u32 = 5;
/// The value that means "no sample".
const NONE: u64 = u64::MAX;

/// The state of HyStart in the first slow start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyStart {
    /// Bytes to be acknowledged until the round ends.
    left: u32,
    samples: u32,
    /// The shortest round trip of the previous round, and that of this one.
    last: u64,
    current: u64,
    /// In conservative slow start: the round trip that began it, and the rounds to go.
    conservative: Option<(u64, u32)>,
}

impl HyStart {
    pub const fn new() -> Self {
        Self { left: 0, samples: 0, last: NONE, current: NONE, conservative: None }
    }

    /// Takes a sample of the round trip.
    pub fn sample(&mut self, rtt: u64) {
        self.samples += 1;
        self.current = self.current.min(rtt);
        if self.samples < SAMPLES || self.last == NONE {
            return;
        }
        let growth = (self.last / DIVISOR).clamp(THRESHOLD.0, THRESHOLD.1);
        match self.conservative {
            None if self.current >= self.last.saturating_add(growth) => {
                self.conservative = Some((self.current, ROUNDS));
            }
            // Round trips have become shorter again, so their growth was an accident.
            Some((began, _)) if self.current < began => self.conservative = None,
            _ => {}
        }
    }

    /// `acked` bytes were acknowledged, and `outstanding` remain. Returns by how many bytes the
    /// window grows, or `None` if slow start is over.
    pub fn grow(&mut self, acked: u32, outstanding: u32) -> Option<u32> {
        let step = if self.conservative.is_some() { acked / SLOWER } else { acked };
        self.left = self.left.saturating_sub(acked);
        if self.left == 0 {
            if let Some((_, rounds)) = &mut self.conservative {
                *rounds -= 1;
                if *rounds == 0 {
                    return None;
                }
            }
            *self =
                Self { left: outstanding, samples: 0, last: self.current, current: NONE, ..*self };
        }
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u32 = 10_000;

    /// A round of ten acknowledgments with this round trip; returns the growth.
    fn round(hystart: &mut HyStart, rtt: u64) -> Option<u32> {
        let mut grown = 0;
        for _ in 0..10 {
            hystart.sample(rtt);
            grown += hystart.grow(WINDOW / 10, WINDOW)?;
        }
        Some(grown)
    }

    #[test]
    fn round_trips_that_stay_as_they_are_leave_slow_start_alone() {
        let mut hystart = HyStart::new();
        for i in 0..100 {
            let jitter = i % 3 * Nanos::MILLI;
            assert_eq!(round(&mut hystart, 50 * Nanos::MILLI + jitter), Some(WINDOW));
        }
    }

    #[test]
    fn round_trips_that_grow_slow_it_down_and_end_it_after_five_rounds() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 50 * Nanos::MILLI);
        round(&mut hystart, 50 * Nanos::MILLI);
        let grown = round(&mut hystart, 60 * Nanos::MILLI).unwrap();
        assert!(grown < WINDOW, "noticed within the round: {grown}");
        let rounds = (0..10).take_while(|_| round(&mut hystart, 65 * Nanos::MILLI).is_some());
        assert!((3..=5).contains(&rounds.count()));
    }

    #[test]
    fn an_accident_does_not_end_it() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 50 * Nanos::MILLI);
        round(&mut hystart, 50 * Nanos::MILLI);
        round(&mut hystart, 70 * Nanos::MILLI);
        for _ in 0..20 {
            round(&mut hystart, 50 * Nanos::MILLI).unwrap();
        }
        assert_eq!(round(&mut hystart, 50 * Nanos::MILLI), Some(WINDOW));
    }
}
