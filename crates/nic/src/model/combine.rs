//! Send combining on the host's side (VMware, USENIX '01, 4.3): while doorbells come in quick
//! succession, one look at the ring answers several.
//!
//! The unit is a demand: a transmit demand of PCnet, or a descriptor before the tail of an e1000.

use port::Nanos;

use crate::device::Combining;

/// How many demands the average looks back on, as a power of two.
const MEMORY: u32 = 3;
/// A pause counts as at most this many times the longest wait, so that the average soon forgets a
/// quiet time.
const LONGEST_GAP: u64 = 4;

/// Decides when demands are answered.
#[derive(Debug, Default)]
pub(crate) struct Combine {
    limits: Option<Combining>,
    /// How many of the waiting demands were already noted.
    seen: u32,
    /// When the last demand was seen.
    last: Nanos,
    /// Average time between two demands.
    gap: u64,
    /// When the first of the waiting demands came.
    since: Option<Nanos>,
}

impl Combine {
    pub fn new(limits: Option<Combining>) -> Self {
        let gap = limits.map_or(0, |limits| LONGEST_GAP * most(limits));
        Self { limits, gap, ..Self::default() }
    }

    pub fn is_on(&self) -> bool {
        self.limits.is_some()
    }

    /// True if the `demands` that wait are due for an answer.
    #[inline(always)]
    pub fn is_due(&mut self, demands: u32, now: Nanos) -> bool {
        match self.limits {
            None => true,
            Some(limits) => self.update_and_judge(limits, demands, now),
        }
    }

    fn update_and_judge(&mut self, limits: Combining, demands: u32, now: Nanos) -> bool {
        let most = most(limits);
        let new = demands.saturating_sub(self.seen);
        if new > 0 {
            let gap = ((now - self.last) / u64::from(new)).min(LONGEST_GAP * most);
            // After a pause, the earlier average says nothing.
            let pause = gap == LONGEST_GAP * most;
            let weight = if pause { 1 << MEMORY } else { new.min(1 << MEMORY) };
            let all = u64::from((1 << MEMORY) - weight);
            self.gap = (self.gap * all + gap * u64::from(weight)) >> MEMORY;
            (self.seen, self.last) = (demands, now);
        }
        let since = *self.since.get_or_insert(now);
        // Quiet: no other demand is likely while the first waits.
        let quiet = self.gap > most;
        quiet || demands >= u32::from(limits.frames) || now - since >= most
    }

    /// Notes that all demands were answered. Returns how many of them waited for other demands.
    pub fn answered(&mut self, demands: u32) -> u32 {
        (self.seen, self.since) = (0, None);
        if self.is_on() { demands.saturating_sub(1) } else { 0 }
    }

    /// True if demands wait.
    pub fn holds(&self) -> bool {
        self.since.is_some()
    }

    /// When the waiting demands are due for an answer.
    pub fn deadline(&self) -> Option<Nanos> {
        let limits = self.limits?;
        Some(self.since? + most(limits))
    }
}

/// The longest time, in nanoseconds, that a demand waits.
fn most(limits: Combining) -> u64 {
    u64::from(limits.delay_us) * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Combining = Combining { frames: 4, delay_us: 20 };

    /// Makes `count` demands, `gap` nanoseconds apart. Returns when each was answered, relative to
    /// its arrival.
    fn waits(gap: u64, count: usize) -> Vec<Option<u64>> {
        let mut combine = Combine::new(Some(LIMITS));
        let (mut now, mut waiting) = (Nanos(1_000_000_000), Vec::new());
        let mut answers = vec![None; count];
        for number in 0..count {
            now = now + gap;
            waiting.push((number, now));
            if combine.is_due(waiting.len() as u32, now) {
                combine.answered(waiting.len() as u32);
                for (number, at) in waiting.drain(..) {
                    answers[number] = Some(now - at);
                }
            }
        }
        answers
    }

    #[test]
    fn demands_that_are_far_apart_are_answered_at_once() {
        assert!(waits(50_000, 40).iter().all(|wait| *wait == Some(0)));
    }

    #[test]
    fn under_heavy_traffic_one_look_answers_several_in_time() {
        let waits = waits(2_000, 400);
        let late = &waits[100..396];
        assert!(late.iter().all(|wait| wait.is_some_and(|wait| wait <= 6_000)));
        let looks = late.iter().filter(|wait| **wait == Some(0)).count();
        assert_eq!(looks, late.len() / 4, "four demands a look");
    }

    #[test]
    fn a_demand_that_stays_alone_waits_no_longer_than_allowed() {
        let mut combine = Combine::new(Some(LIMITS));
        let mut now = Nanos(1);
        for _ in 0..100 {
            now = now + 1_000;
            if combine.is_due(1, now) {
                combine.answered(1);
            }
        }
        combine.answered(0);
        now = now + 1_000;
        assert!(!combine.is_due(1, now));
        assert_eq!(combine.deadline(), Some(now + 20_000));
        assert!(!combine.is_due(1, now + 19_999));
        assert!(combine.is_due(1, now + 20_000));
    }

    #[test]
    fn without_limits_nothing_waits() {
        let mut combine = Combine::new(None);
        assert!(combine.is_due(1, Nanos(0)));
        assert_eq!((combine.answered(3), combine.deadline()), (0, None));
    }
}
