//! An inline switch with four ports, and its clock.

use std::time::{Duration, Instant};

use inline::Inline;
use port::Nanos;
use port::stats::PortStats;
use toklat_dataplane::SwitchConfig;

pub struct Bench {
    pub switch: Inline,
    since: Instant,
}

impl Bench {
    pub fn new() -> Self {
        let config = SwitchConfig { max_ports: 4, ..SwitchConfig::default() };
        Self { switch: Inline::new(config).unwrap(), since: Instant::now() }
    }

    pub fn turn(&mut self) {
        self.switch.turn(Nanos(self.since.elapsed().as_nanos() as u64));
    }

    /// Runs the switch until `done` returns a value, for at most a minute.
    pub fn until<T>(&mut self, mut done: impl FnMut(&Inline) -> Option<T>) -> T {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            self.turn();
            if let Some(done) = done(&self.switch) {
                return done;
            }
        }
        panic!("nothing came; {:#?}", [self.switch.stats(0), self.switch.stats(1)]);
    }

    pub fn assert_sums_agree(&self) {
        let unaccounted = |id| PortStats::unaccounted(&self.switch.stats(id));
        assert_eq!((0..4).map(unaccounted).sum::<i128>(), 0);
    }
}
