//! Proportional integral controller, enhanced (RFC 8033), with delays by time stamp.

use port::Nanos;

use super::Load;
use crate::Target;
use crate::store::Held;

/// Binary places of probabilities.
const PLACES: u32 = 40;
const ONE: i64 = 1 << PLACES;
/// For how long bursts pass after the queue was short (RFC 8033, 4.2).
const MAX_BURST_NS: u64 = 150 * Nanos::MILLI;
/// Bytes of a usual frame.
const MEAN_PACKET: u64 = 1000;

/// The state of the controller, with the names of RFC 8033, appendix A.
#[derive(Debug)]
pub(crate) struct Pie {
    target: Target,
    drop_prob: i64,
    accu_prob: i64,
    burst_allowance: u64,
    /// The last frame's time in the queue, in nanoseconds.
    sojourn: u64,
    qdelay_old: u64,
    next_update: Option<Nanos>,
}

impl Pie {
    pub fn new(target: Target) -> Self {
        Self {
            target,
            drop_prob: 0,
            accu_prob: 0,
            burst_allowance: MAX_BURST_NS,
            sojourn: 0,
            qdelay_old: 0,
            next_update: None,
        }
    }

    /// Sets the probability for each update that has become due until `now`.
    fn catch_up(&mut self, now: Nanos, load: &Load) {
        let interval = self.target.interval_ns.max(1);
        let first = *self.next_update.get_or_insert(now + interval);
        // After a long pause, all further updates are the same.
        let most = 4096;
        let due = if now >= first { (now - first) / interval + 1 } else { 0 };
        for _ in 0..due.min(most) {
            self.update(load);
        }
        self.next_update = Some(first + due * interval);
    }

    /// `calculate_drop_prob` and the burst allowance.
    fn update(&mut self, load: &Load) {
        let qdelay = if load.frames == 0 { 0 } else { self.sojourn };
        let (delay, old) = (qdelay as i64, self.qdelay_old as i64);
        let target = self.target.target_ns as i64;
        // alpha is 1/8 and beta 5/4, for delays in seconds.
        let per_second = |ns: i64, eighths: i128| {
            (i128::from(ns) * eighths * i128::from(ONE) / (8 * i128::from(Nanos::SECOND))) as i64
        };
        let mut p = per_second(delay - target, 1) + per_second(delay - old, 10);
        p /= match self.drop_prob {
            prob if prob < ONE / 1_000_000 => 2048,
            prob if prob < ONE / 100_000 => 512,
            prob if prob < ONE / 10_000 => 128,
            prob if prob < ONE / 1000 => 32,
            prob if prob < ONE / 100 => 8,
            prob if prob < ONE / 10 => 2,
            _ => 1,
        };
        if self.drop_prob >= ONE / 10 {
            p = p.min(ONE / 50);
        }
        self.drop_prob += p;
        if delay == 0 && old == 0 {
            self.drop_prob = self.drop_prob / 100 * 98;
        }
        self.drop_prob = self.drop_prob.clamp(0, ONE);
        self.qdelay_old = qdelay;
        self.burst_allowance = self.burst_allowance.saturating_sub(self.target.interval_ns);
        if self.drop_prob == 0 && delay < target / 2 && old < target / 2 {
            self.burst_allowance = MAX_BURST_NS;
        }
    }

    /// Notes a frame that leaves the queue at `at`.
    pub fn left(&mut self, held: &Held, at: Nanos, load: &Load) {
        self.catch_up(at, load);
        self.sojourn = at - held.at;
    }

    /// True if a frame that arrives is dropped. If it can be marked, it is not.
    pub fn drops(&mut self, held: &Held, load: &mut Load) -> bool {
        self.catch_up(held.at, load);
        if self.burst_allowance > 0 || !self.is_early(load) {
            return false;
        }
        let mark = self.drop_prob < ONE / 10 && load.mark(held);
        !mark
    }

    /// `drop_early`.
    fn is_early(&mut self, load: &mut Load) -> bool {
        let short = self.qdelay_old < self.target.target_ns / 2 && self.drop_prob < ONE / 5;
        if short || load.bytes <= 2 * MEAN_PACKET {
            return false;
        }
        if self.drop_prob == 0 {
            self.accu_prob = 0;
        }
        self.accu_prob += self.drop_prob;
        if self.accu_prob < ONE / 100 * 85 {
            return false;
        }
        let all = self.accu_prob >= ONE / 10 * 85;
        let hit = all || (load.random.below(ONE as u64) as i64) < self.drop_prob;
        if hit {
            self.accu_prob = 0;
        }
        hit
    }
}
