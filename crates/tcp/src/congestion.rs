//! Congestion control: Reno (RFC 5681) and CUBIC (RFC 9438). Windows are in bytes.

use crate::config::Algorithm;
use crate::hystart::HyStart;
use crate::time::Nanos;

/// RFC 9438, 4.6.
const BETA: f64 = 0.7;
/// RFC 9438, 5: segments per second cubed.
const C: f64 = 0.4;
/// RFC 9438, 4.3: makes the window grow as Reno's does on average.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Largest window.
const MAX_WINDOW: u32 = 1 << 30;

pub(crate) struct Congestion {
    algorithm: Algorithm,
    pub window: u32,
    pub threshold: u32,
    mss: u32,
    /// Acknowledged bytes that have not yet led to a whole step of growth.
    credit: u32,
    cubic: Cubic,
    /// The state of the first slow start. Later slow starts have a threshold.
    hystart: HyStart,
    /// Window and threshold before the last reduction, to undo it.
    before: (u32, u32),
}

#[derive(Clone, Copy, Default)]
struct Cubic {
    /// Window in segments at the last congestion (W_max).
    max: f64,
    /// Window in segments just before the last congestion (cwnd_prior).
    prior: f64,
    /// When the current growth began (the epoch).
    epoch: Option<Nanos>,
    /// Seconds from the epoch until the window is `max` again.
    k: f64,
    /// Reno's window in segments (W_est).
    reno: f64,
    /// Window in segments, with its fraction.
    exact: f64,
}

impl Congestion {
    /// Starts with the initial window (RFC 6928, 2).
    pub fn new(algorithm: Algorithm, mss: u32) -> Self {
        Self {
            algorithm,
            window: Self::initial(mss),
            threshold: MAX_WINDOW,
            mss,
            credit: 0,
            cubic: Cubic::default(),
            hystart: HyStart::new(),
            before: (0, 0),
        }
    }

    fn initial(mss: u32) -> u32 {
        (10 * mss).min((2 * mss).max(14_600))
    }

    /// Adapts to a new segment size.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
        self.window = self.window.max(self.mss);
    }

    /// Takes a sample of the round trip.
    pub fn sample(&mut self, rtt: u64) {
        if self.is_first_start() {
            self.hystart.sample(rtt);
        }
    }

    fn is_first_start(&self) -> bool {
        self.threshold == MAX_WINDOW && self.algorithm == Algorithm::Cubic
    }

    /// Grows the window for `bytes` acknowledged bytes, after which `outstanding` remain.
    pub fn acknowledged(&mut self, mut bytes: u32, outstanding: u32, now: Nanos, rtt: u64) {
        if self.is_first_start() {
            match self.hystart.grow(bytes, outstanding) {
                Some(step) => bytes = step,
                None => self.threshold = self.window,
            }
            if bytes == 0 {
                return;
            }
        }
        if self.window < self.threshold {
            let step = bytes.min(self.threshold - self.window);
            self.window = (self.window + step).min(MAX_WINDOW);
            bytes -= step;
        }
        if bytes == 0 {
            return;
        }
        match self.algorithm {
            Algorithm::Reno => {
                self.credit = self.credit.saturating_add(bytes);
                if self.credit >= self.window {
                    self.credit -= self.window;
                    self.window = (self.window + self.mss).min(MAX_WINDOW);
                }
            }
            Algorithm::Cubic => {
                let mss = f64::from(self.mss);
                let window = f64::from(self.window) / mss;
                let segments = self.cubic.grow(window, f64::from(bytes) / mss, now, rtt);
                self.window = ((segments * mss) as u32).clamp(self.mss, MAX_WINDOW);
            }
        }
    }

    /// Reacts to congestion: lowers the threshold, to which recovery brings the window down.
    /// `outstanding` is the unacknowledged data (RFC 5681, 3.1: FlightSize).
    pub fn congested(&mut self, outstanding: u32) {
        self.before = (self.window, self.threshold);
        let least = 2 * self.mss;
        self.threshold = match self.algorithm {
            Algorithm::Reno => (outstanding / 2).max(least),
            Algorithm::Cubic => {
                self.cubic.congested(f64::from(self.window) / f64::from(self.mss));
                ((f64::from(outstanding.min(self.window)) * BETA) as u32).max(least)
            }
        };
        self.credit = 0;
    }

    /// Reacts to a time-out: the window falls to one segment (RFC 5681, 3.1).
    pub fn timed_out(&mut self) {
        self.window = self.mss;
        self.cubic.epoch = None;
    }

    /// Undoes the last reduction, which proved needless.
    pub fn undo(&mut self) {
        let (window, threshold) = self.before;
        self.window = self.window.max(window);
        self.threshold = self.threshold.max(threshold);
        self.cubic.epoch = None;
    }

    /// Restarts after an idle time: the old window says nothing about the path any more (RFC 5681,
    /// 4.1).
    pub fn idle(&mut self, restart: bool) {
        self.cubic.epoch = None;
        if restart {
            self.window = self.window.min(Self::initial(self.mss));
        }
    }
}

impl Cubic {
    fn congested(&mut self, window: f64) {
        // Fast convergence (RFC 9438, 4.7).
        self.max = if window < self.max { window * (1.0 + BETA) / 2.0 } else { window };
        self.prior = window;
        self.epoch = None;
    }

    /// Returns the new window in segments, after `acked` segments (RFC 9438, 4.2 to 4.5).
    fn grow(&mut self, window: f64, acked: f64, now: Nanos, rtt: u64) -> f64 {
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.max = if self.max < window { window } else { self.max };
            self.k = cube_root((self.max - window) / C);
            (self.reno, self.exact) = (window, window);
            now
        });
        // `exact` is the window with its fraction. Recovery sets the window itself; then the
        // fraction is stale.
        if self.exact - window > 1.0 || window > self.exact {
            self.exact = window;
        }
        let alpha = if self.reno < self.prior { ALPHA } else { 1.0 };
        self.reno += alpha * acked / window;
        let seconds = |nanos: u64| nanos as f64 / Nanos::SECOND as f64;
        let curve = |t: f64| C * (t - self.k) * (t - self.k) * (t - self.k) + self.max;
        let t = seconds(now - epoch);
        if curve(t) < self.reno {
            self.exact = self.exact.max(self.reno);
        } else {
            let target = curve(t + seconds(rtt)).clamp(window, 1.5 * window);
            self.exact += (target - window) / window * acked;
        }
        self.exact
    }
}

/// Returns the cube root of a number that is not negative, by Newton's method: `core` has none.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // A third of the exponent gives a start within a factor of two of the root.
    let mut root = f64::from_bits(x.to_bits() / 3 + (1023u64 << 52) / 3 * 2);
    for _ in 0..6 {
        root -= (root * root * root - x) / (3.0 * root * root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_right() {
        for x in [1e-9, 0.001, 1.0, 2.0, 27.0, 1e6, 123_456_789.0] {
            assert!((cube_root(x) - f64::cbrt(x)).abs() < 1e-9 * f64::cbrt(x), "{x}");
        }
        assert!(cube_root(0.0) == 0.0);
    }

    #[test]
    fn slow_start_doubles_and_reno_adds_a_segment_a_round() {
        let mut reno = Congestion::new(Algorithm::Reno, 1000);
        assert_eq!(reno.window, 10_000);
        reno.acknowledged(10_000, 0, Nanos(0), 1);
        assert_eq!(reno.window, 20_000);
        reno.congested(20_000);
        reno.window = reno.threshold;
        assert_eq!(reno.window, 10_000);
        for _ in 0..10 {
            reno.acknowledged(1000, 0, Nanos(0), 1);
        }
        assert_eq!(reno.window, 11_000);
    }

    #[test]
    fn cubic_comes_back_to_where_it_was_after_k_seconds() {
        let rtt = 100 * Nanos::MILLI;
        let mut cubic = Congestion::new(Algorithm::Cubic, 1000);
        cubic.window = 1_000_000;
        cubic.congested(1_000_000);
        cubic.window = cubic.threshold;
        assert_eq!(cubic.window, 700_000);
        // K = cbrt(300 / 0.4) = 9.09 s.
        let at = |cubic: &mut Congestion, from: u64, to: u64| {
            let mut now = Nanos(from * Nanos::SECOND);
            while now < Nanos(to * Nanos::SECOND) {
                cubic.acknowledged(cubic.window, 0, now, rtt);
                now = now + rtt;
            }
            cubic.window
        };
        let early = at(&mut cubic, 0, 5);
        assert!((900_000..1_000_000).contains(&early), "{early}");
        let there = at(&mut cubic, 5, 9);
        assert!((990_000..1_010_000).contains(&there), "{there}");
        let beyond = at(&mut cubic, 9, 15);
        assert!(beyond > 1_050_000, "{beyond}");
    }
}
