//! Random early detection (Floyd and Jacobson, 1993), in bytes and gentle (Floyd, 2000).

use port::Nanos;

use super::Load;
use crate::LinkConfig;
use crate::store::Held;

/// The average's weight of a new value is one in 2^9.
const WEIGHT: u32 = 9;
/// Binary places of the average.
const PLACES: u32 = 16;
/// Parts of all.
const ALL: u64 = 1_000_000;

/// The state of the detection.
#[derive(Debug)]
pub(crate) struct Red {
    min: u64,
    max: u64,
    ppm: u64,
    /// The average queue in bytes, with [`PLACES`] binary places.
    average: u64,
    /// Frames since the last drop.
    count: u64,
    /// Since when the queue is empty.
    idle_since: Option<Nanos>,
    /// How long the line takes for a usual frame, in nanoseconds.
    usual_ns: u64,
}

impl Red {
    pub fn new(min: u64, max: u64, ppm: u32, config: &LinkConfig) -> Self {
        let room = config.room();
        let queue = room.bytes.min(room.frames.saturating_mul(1514));
        let max = if max == 0 { (queue / 2).max(3) } else { max };
        let min = if min == 0 { max / 3 } else { min.min(max - 1) };
        let rate = config.mean_rate().unwrap_or(u64::MAX).max(1);
        let usual_ns = (1514 * 8 * Nanos::SECOND / rate).max(1);
        let ppm = u64::from(ppm);
        Self { min, max, ppm, average: 0, count: 0, idle_since: Some(Nanos(0)), usual_ns }
    }

    /// Notes a frame that left the queue.
    pub fn left(&mut self, at: Nanos, load: &Load) {
        if load.frames == 0 {
            self.idle_since = Some(at);
        }
    }

    /// The average decays while the queue is empty as if small frames came.
    fn update(&mut self, now: Nanos, load: &Load) {
        if let Some(since) = self.idle_since.take() {
            let frames = (now - since) / self.usual_ns;
            // After so many, less than a byte is left.
            let most = 64 << WEIGHT;
            for _ in 0..frames.min(most) {
                if self.average == 0 {
                    break;
                }
                self.average -= (self.average >> WEIGHT).max(1);
            }
            return;
        }
        let (new, old) = (load.bytes << PLACES, self.average);
        self.average =
            if new >= old { old + ((new - old) >> WEIGHT) } else { old - ((old - new) >> WEIGHT) };
    }

    /// The probability of a drop in parts per million, before those since the last one count.
    fn probability(&self) -> u64 {
        let (average, min, max) = (self.average >> PLACES, self.min, self.max);
        if average < min {
            0
        } else if average < max {
            self.ppm * (average - min) / (max - min)
        } else if average < 2 * max {
            self.ppm + (ALL - self.ppm) * (average - max) / max
        } else {
            ALL
        }
    }

    /// True if a frame that arrives is dropped. If it can be marked, it is not.
    pub fn drops(&mut self, held: &Held, load: &mut Load) -> bool {
        self.update(held.at, load);
        let wanted = self.probability();
        if wanted == 0 {
            self.count = 0;
            return false;
        }
        self.count += 1;
        // Drops are spread evenly: the probability grows with the frames since the last one.
        let spent = (self.count * wanted).min(ALL - 1);
        let grown = if wanted >= ALL { ALL } else { (wanted * ALL / (ALL - spent)).min(ALL) };
        if load.random.below(ALL) >= grown {
            return false;
        }
        self.count = 0;
        let mark = wanted < ALL && load.mark(held);
        !mark
    }
}
