//! A line with a rate only, whose queue is the ring of the port that sends.

use port::Nanos;

use crate::LinkConfig;
use crate::clock::Clock;

/// Says how many frames a port may send now, so that they leave one after the other at the rate.
/// They wait in the port's own ring, uncopied.
#[derive(Debug)]
pub struct Pacer {
    clock: Clock,
    rate: u64,
    /// The bytes of a frame gathered last, on average.
    usual_len: u64,
}

impl Pacer {
    /// The pacer for a link that has [only a rate](LinkConfig::is_rate_only).
    #[must_use]
    pub fn new(config: &LinkConfig) -> Option<Self> {
        let rate = config.rate.filter(|_| config.is_rate_only())?;
        Some(Self { clock: Clock::new(config)?, rate, usual_len: 1514 })
    }

    /// When the next frame may be sent.
    #[must_use]
    pub fn opens_at(&self) -> Nanos {
        self.clock.free_at()
    }

    /// How many frames may be taken now. While frames wait, the line also carries what it could
    /// have carried since it was free.
    #[must_use]
    pub fn allowance(&self, now: Nanos) -> usize {
        if self.clock.free_at() > now {
            return 0;
        }
        let free = u128::from(now - self.clock.free_at()) * u128::from(self.rate);
        let bytes = free / (8 * u128::from(Nanos::SECOND));
        let more = usize::try_from(bytes / u128::from(self.usual_len)).unwrap_or(usize::MAX);
        more.saturating_add(1)
    }

    /// Notes that fewer frames wait than were allowed, so the line was idle until now. Call it
    /// before [`charge`](Self::charge).
    pub fn run_dry(&mut self, now: Nanos) {
        self.clock.idle(now);
    }

    /// Notes that `gathered` frames were taken, which are `frames` frames of `bytes` bytes on the
    /// wire.
    pub fn charge(&mut self, gathered: usize, (frames, bytes): (usize, u64)) {
        if gathered > 0 {
            self.usual_len = (bytes / gathered as u64).max(64);
            self.clock.carry_all(frames as u64, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(words: &str) -> Pacer {
        Pacer::new(&words.parse().unwrap()).unwrap()
    }

    /// Takes frames of `len` bytes from a ring that is never empty, every `step` nanoseconds.
    fn passed(pacer: &mut Pacer, len: u64, step: u64, ns: u64) -> u64 {
        let mut bytes = 0;
        for now in (0..=ns).step_by(step as usize) {
            let allowed = pacer.allowance(Nanos(now)).min(64);
            pacer.charge(allowed, (allowed, allowed as u64 * len));
            bytes += allowed as u64 * len;
        }
        bytes
    }

    #[test]
    fn the_rate_holds_however_late_the_ring_is_read() {
        for (rate, len, step) in
            [("10Mb/s", 64, 3000), ("1Gb/s", 1514, 100_000), ("10Gb/s", 9014, 50_000)]
        {
            let mut pacer = pacer(&format!("rate={rate}"));
            let bits = pacer.rate;
            let got = passed(&mut pacer, len, step, Nanos::SECOND);
            let wanted = bits / 8;
            assert!(got.abs_diff(wanted) * 200 <= wanted, "{rate}: {got} of {wanted}");
        }
    }

    #[test]
    fn an_idle_line_saves_nothing_up() {
        let mut pacer = pacer("rate=8Mb/s");
        assert_eq!(pacer.allowance(Nanos(0)), 1);
        pacer.run_dry(Nanos(Nanos::SECOND));
        assert_eq!(pacer.allowance(Nanos(Nanos::SECOND)), 1);
        pacer.charge(1, (1, 1000));
        let next = Nanos::SECOND + Nanos::MILLI;
        assert_eq!((pacer.opens_at(), pacer.allowance(Nanos(next - 1))), (Nanos(next), 0));
        // A superframe is charged as its segments, with all headers.
        pacer.charge(1, (44, 44 * 1514));
        assert_eq!(pacer.opens_at(), Nanos(next + 44 * 1514 * 1000));
    }

    #[test]
    fn only_a_rate_can_be_paced() {
        for words in
            ["delay=1ms", "rate=1Mb/s,delay=1ms", "rate=1Mb/s,queue=10kB", "rate=1Mb/s,loss=1%"]
        {
            assert!(Pacer::new(&words.parse().unwrap()).is_none(), "{words}");
        }
    }
}
