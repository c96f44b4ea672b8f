//! What happens to each frame behind the queue: loss, changes and delay.

use crate::random::{Kind, Random};
use crate::{LinkConfig, Loss, Spread};

/// Quantiles of the standard normal distribution at 1/2 + i/256, in units of 1/8192.
const NORMAL: [u16; 128] = [
    0, 80, 160, 241, 321, 401, 482, 562, 642, 723, 803, 884, 965, 1046, 1127, 1208, 1289, 1370,
    1451, 1533, 1615, 1697, 1779, 1861, 1943, 2026, 2109, 2192, 2275, 2358, 2442, 2526, 2610, 2695,
    2780, 2865, 2950, 3036, 3122, 3208, 3295, 3382, 3470, 3558, 3646, 3735, 3824, 3914, 4004, 4095,
    4186, 4277, 4370, 4462, 4556, 4650, 4744, 4839, 4935, 5032, 5129, 5227, 5326, 5425, 5525, 5627,
    5729, 5831, 5935, 6040, 6146, 6253, 6360, 6469, 6580, 6691, 6804, 6917, 7033, 7149, 7268, 7387,
    7508, 7631, 7756, 7883, 8011, 8141, 8274, 8409, 8546, 8685, 8827, 8972, 9119, 9270, 9424, 9581,
    9742, 9906, 10075, 10248, 10426, 10609, 10797, 10991, 11192, 11399, 11615, 11838, 12071, 12313,
    12568, 12834, 13115, 13413, 13729, 14068, 14432, 14827, 15259, 15740, 16281, 16904, 17645,
    18565, 19805, 21791,
];

/// The largest sample, in the same units: 3.6 standard deviations.
const LAST: i64 = 29_491;

/// The fates of frames, in the order in which they leave the queue.
#[derive(Debug)]
pub(crate) struct Fate {
    loss: Random,
    state: Random,
    duplicate: Random,
    reorder: Random,
    jitter: Random,
    corrupt: Random,
    /// The Gilbert-Elliott model is in its bad state.
    bad: bool,
    /// Frames so far.
    frames: u64,
}

/// The fate of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub lost: bool,
    pub twice: bool,
    pub overtakes: bool,
    /// A number that selects the bit that changes.
    pub corrupt: Option<u64>,
    /// Nanoseconds.
    pub delay: u64,
}

impl Fate {
    pub fn new(seed: u64, queue: usize) -> Self {
        let random = |kind| Random::of(seed, queue, kind);
        Self {
            loss: random(Kind::Loss),
            state: random(Kind::State),
            duplicate: random(Kind::Duplicate),
            reorder: random(Kind::Reorder),
            jitter: random(Kind::Jitter),
            corrupt: random(Kind::Corrupt),
            bad: false,
            frames: 0,
        }
    }

    /// The next frame's fate. `delay_ns` and `loss` are those of the time. A generator gives
    /// numbers for each frame or for none, so one setting does not change the outcome of another.
    #[inline]
    pub fn next(&mut self, config: &LinkConfig, delay_ns: u64, loss: Loss) -> Verdict {
        self.frames += 1;
        let LinkConfig { duplicate_ppm, reorder_ppm, corrupt_ppm, jitter_ns, .. } = *config;
        let corrupt =
            (corrupt_ppm > 0).then(|| (self.corrupt.hits(corrupt_ppm), self.corrupt.next()));
        Verdict {
            lost: self.loses(loss),
            twice: duplicate_ppm > 0 && self.duplicate.hits(duplicate_ppm),
            overtakes: reorder_ppm > 0 && self.reorder.hits(reorder_ppm),
            corrupt: corrupt.and_then(|(hit, which)| hit.then_some(which)),
            delay: if jitter_ns > 0 { self.delay(config, delay_ns) } else { delay_ns },
        }
    }

    fn loses(&mut self, loss: Loss) -> bool {
        match loss {
            Loss::None => false,
            Loss::Random(ppm) => self.loss.hits(ppm),
            Loss::GilbertElliott { to_bad, to_good, in_bad, in_good } => {
                let leaves = self.state.hits(if self.bad { to_good } else { to_bad });
                self.bad ^= leaves;
                self.loss.hits(if self.bad { in_bad } else { in_good })
            }
            Loss::Every(n) => self.frames.is_multiple_of(u64::from(n.max(1))),
        }
    }

    fn delay(&mut self, config: &LinkConfig, delay_ns: u64) -> u64 {
        let jitter = config.jitter_ns;
        match &config.spread {
            Spread::Uniform => {
                let jitter = jitter.min(delay_ns);
                delay_ns - jitter + self.jitter.below(2 * jitter + 1)
            }
            Spread::Normal => {
                let word = self.jitter.next();
                away(delay_ns, jitter, normal(word))
            }
            Spread::Table(table) => {
                let at = self.jitter.below(table.len() as u64) as usize;
                away(delay_ns, jitter, table.get(at).map_or(0, |sigma| i64::from(*sigma)))
            }
        }
    }
}

/// The delay at `sigma` 8192ths of the jitter from the mean; never below 0.
fn away(delay_ns: u64, jitter: u64, sigma: i64) -> u64 {
    let off = i128::from(jitter) * i128::from(sigma) / 8192;
    u64::try_from(i128::from(delay_ns) + off).unwrap_or(0)
}

/// A sample of the standard normal distribution, in 8192ths: its quantile, between table entries on
/// a straight line.
fn normal(word: u64) -> i64 {
    let (at, part) = ((word >> 56 & 0x7f) as usize, (word >> 24 & 0xffff_ffff) as i64);
    let low = i64::from(NORMAL[at]);
    let high = NORMAL.get(at + 1).map_or(LAST, |high| i64::from(*high));
    let magnitude = low + (((high - low) * part) >> 32);
    if word >> 63 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn losses(loss: Loss, frames: usize) -> Vec<bool> {
        let (mut fate, config) = (Fate::new(3, 0), LinkConfig::default());
        (0..frames).map(|_| fate.next(&config, 0, loss).lost).collect()
    }

    /// Gilbert-Elliott with loss only in the bad state: bursts have a mean length of 1/r, and gaps
    /// of 1/p; the share is p/(p+r).
    #[test]
    fn bursts_are_as_long_as_the_model_says() {
        let loss = Loss::GilbertElliott {
            to_bad: 10_000,
            to_good: 250_000,
            in_bad: 1_000_000,
            in_good: 0,
        };
        let lost = losses(loss, 400_000);
        let runs: Vec<&[bool]> = lost.chunk_by(|a, b| a == b).collect();
        let mean = |which: bool| {
            let (runs, frames) = runs
                .iter()
                .filter(|run| run[0] == which)
                .fold((0, 0), |(runs, frames), run| (runs + 1, frames + run.len()));
            frames as f64 / f64::from(runs)
        };
        let (bursts, gaps) = (mean(true), mean(false));
        assert!((3.8..4.2).contains(&bursts) && (95.0..105.0).contains(&gaps), "{bursts} {gaps}");
        let share = lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64;
        assert!((share - 0.01 / 0.26).abs() < 0.002, "{share}");
    }

    #[test]
    fn losses_in_each_state_are_those_of_the_state() {
        let always_bad =
            Loss::GilbertElliott { to_bad: 1_000_000, to_good: 0, in_bad: 300_000, in_good: 0 };
        let lost = losses(always_bad, 100_000).iter().filter(|lost| **lost).count();
        assert!((29_000..31_000).contains(&lost), "{lost}");
        let lost = losses(Loss::Every(7), 700);
        assert!(lost.iter().enumerate().all(|(at, lost)| *lost == ((at + 1) % 7 == 0)));
    }

    #[test]
    fn delays_have_the_distribution_that_was_asked_for() {
        let table = Spread::Table(Arc::from([-8192, -8192, 16_384]));
        for (spread, deviation, most) in
            [(Spread::Uniform, 0.577, 1.001), (Spread::Normal, 1.0, 3.61), (table, 1.414, 2.001)]
        {
            let config = LinkConfig {
                delay_ns: 10_000_000,
                jitter_ns: 1_000_000,
                spread,
                ..LinkConfig::default()
            };
            let mut fate = Fate::new(9, 0);
            let mut sigmas = Vec::new();
            for _ in 0..50_000 {
                let delay = fate.next(&config, config.delay_ns, Loss::None).delay;
                sigmas.push((delay as f64 - 1e7) / 1e6);
            }
            let count = sigmas.len() as f64;
            let mean = sigmas.iter().sum::<f64>() / count;
            let square = sigmas.iter().map(|sigma| (sigma - mean).powi(2)).sum::<f64>() / count;
            assert!(mean.abs() < 0.03, "{:?}: mean {mean}", config.spread);
            assert!(
                (square.sqrt() / deviation - 1.0).abs() < 0.03,
                "{:?}: {}",
                config.spread,
                square.sqrt()
            );
            assert!(sigmas.iter().all(|sigma| sigma.abs() <= most), "{:?}", config.spread);
            if config.spread == Spread::Normal {
                let within = sigmas.iter().filter(|sigma| sigma.abs() < 1.0).count() as f64 / count;
                assert!((within - 0.6827).abs() < 0.01, "{within}");
            }
        }
        let config =
            LinkConfig { jitter_ns: 1_000_000, spread: Spread::Normal, ..LinkConfig::default() };
        let mut fate = Fate::new(9, 0);
        let zeros = (0..1000).filter(|_| fate.next(&config, 0, Loss::None).delay == 0).count();
        assert!((400..600).contains(&zeros), "a delay is never negative: {zeros}");
    }

    #[test]
    fn one_setting_does_not_change_the_outcome_of_another() {
        let plain = losses(Loss::Random(100_000), 10_000);
        let config = LinkConfig {
            duplicate_ppm: 500_000,
            reorder_ppm: 1000,
            corrupt_ppm: 500_000,
            delay_ns: 50,
            jitter_ns: 50,
            ..LinkConfig::default()
        };
        let mut fate = Fate::new(3, 0);
        let lost = plain.iter().map(|_| fate.next(&config, 50, Loss::Random(100_000)).lost);
        assert!(lost.eq(plain.iter().copied()));
    }
}
