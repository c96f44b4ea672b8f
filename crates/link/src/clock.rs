//! When the line takes its next frame.

use std::sync::Arc;

use port::Nanos;

use crate::LinkConfig;
use crate::trace::{Bandwidth, OPPORTUNITY};

/// A line that carries one frame at a time.
#[derive(Debug)]
pub(crate) enum Clock {
    /// At a rate in bits a second.
    Rate {
        rate: u64,
        overhead: u64,
        free_at: Nanos,
        /// What the last frame took beyond whole nanoseconds, in parts of `rate` of one.
        rest: u64,
    },
    /// By the opportunities of a trace.
    Trace {
        trace: Arc<Bandwidth>,
        overhead: u64,
        /// When the trace began: with the first frame.
        began: Option<Nanos>,
        free_at: Nanos,
        /// The opportunity in use, and the bytes that are left of it.
        number: u64,
        left: u64,
    },
}

impl Clock {
    /// Carries `frames` frames of `bytes` bytes in all, one after the other, from when the line was
    /// free.
    pub fn carry_all(&mut self, frames: u64, bytes: u64) {
        if let Self::Rate { rate, overhead, free_at, rest } = self {
            let bits = u128::from(bytes + frames * *overhead) * 8;
            let time = bits * u128::from(Nanos::SECOND) + u128::from(*rest);
            *rest = (time % u128::from(*rate)) as u64;
            *free_at = *free_at + u64::try_from(time / u128::from(*rate)).unwrap_or(u64::MAX);
        }
    }

    /// Notes that no frame waits at `now`.
    pub fn idle(&mut self, now: Nanos) {
        if let Self::Rate { free_at, .. } = self {
            *free_at = (*free_at).max(now);
        }
    }

    /// The line of a link; `None` if it has no rate.
    pub fn new(config: &LinkConfig) -> Option<Self> {
        let (overhead, free_at) = (config.overhead.into(), Nanos(0));
        if let Some(trace) = &config.trace {
            let trace = Arc::clone(trace);
            return Some(Self::Trace {
                trace,
                overhead,
                began: None,
                free_at,
                number: 0,
                left: OPPORTUNITY,
            });
        }
        config.rate.map(|rate| Self::Rate { rate, overhead, free_at, rest: 0 })
    }

    /// When the line takes the next frame.
    #[inline]
    pub fn free_at(&self) -> Nanos {
        match self {
            Self::Rate { free_at, .. } | Self::Trace { free_at, .. } => *free_at,
        }
    }

    /// Takes over from an earlier line, which may be busy.
    pub fn follow(&mut self, earlier: &Self) {
        match self {
            Self::Rate { free_at, .. } | Self::Trace { free_at, .. } => {
                *free_at = earlier.free_at()
            }
        }
    }

    /// Carries a frame of `len` bytes from `start` on, when the line is free. Returns when its last
    /// bit has left.
    #[inline]
    pub fn carry(&mut self, len: usize, start: Nanos) -> Nanos {
        match self {
            Self::Rate { rate, overhead, free_at, rest } => {
                if start > *free_at {
                    *rest = 0;
                }
                let bits = (len as u64 + *overhead) * 8;
                let time = bits * Nanos::SECOND + *rest;
                *rest = time % *rate;
                *free_at = start + time / *rate;
                *free_at
            }
            Self::Trace { trace, overhead, began, free_at, number, left } => {
                let began = *began.get_or_insert(start);
                if began + trace.time(*number) < start {
                    // What is left of earlier opportunities is lost.
                    *number = trace.first_at(start - began);
                    *left = OPPORTUNITY;
                }
                let mut need = len as u64 + *overhead;
                while need > *left {
                    need -= *left;
                    (*number, *left) = (*number + 1, OPPORTUNITY);
                }
                *left -= need;
                let end = began + trace.time(*number);
                if *left == 0 {
                    (*number, *left) = (*number + 1, OPPORTUNITY);
                }
                *free_at = began + trace.time(*number);
                end
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(rate: u64, overhead: u16) -> Clock {
        Clock::new(&LinkConfig { rate: Some(rate), overhead, ..LinkConfig::default() }).unwrap()
    }

    #[test]
    fn a_frame_takes_its_bits_over_the_rate() {
        let mut clock = rate(10_000_000, 0);
        assert_eq!(clock.carry(1250, Nanos(5)), Nanos(1_000_005));
        assert_eq!(
            (clock.free_at(), rate(1_000_000_000, 24).carry(60, Nanos(0))),
            (Nanos(1_000_005), Nanos(672))
        );
    }

    /// A frame takes 5.12/3 us here. Rounding does not add up.
    #[test]
    fn the_rate_is_exact_over_a_million_frames() {
        let mut clock = rate(300_000_000, 0);
        let mut at = Nanos(0);
        (0..1_000_000).for_each(|_| at = clock.carry(64, at));
        assert_eq!(at.0, 64 * 8 * 1_000_000 * 10 / 3);
    }

    #[test]
    fn a_trace_carries_a_frame_at_each_opportunity() {
        let trace = Some(Arc::new(Bandwidth::parse("1\n1\n3\n10").unwrap()));
        let mut clock = Clock::new(&LinkConfig { trace, ..LinkConfig::default() }).unwrap();
        let ms = |at: u64| Nanos(at * Nanos::MILLI);
        let mut at = ms(100);
        let mut ends = Vec::new();
        // 752 bytes are half of an opportunity; 3,008 bytes are two.
        for len in [1504, 752, 752, 3008, 1504, 1504] {
            at = at.max(clock.free_at());
            ends.push(clock.carry(len, at).0 / Nanos::MILLI - 100);
        }
        assert_eq!(ends, [1, 1, 1, 10, 11, 11]);
        // Opportunities without frames are lost.
        assert_eq!(clock.carry(1504, ms(100 + 12)).0 / Nanos::MILLI, 113);
        assert_eq!(clock.carry(1504, ms(100 + 27)).0 / Nanos::MILLI, 130);
    }
}
