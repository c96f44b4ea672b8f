//! The cost of a frame from one guest to another in the switch: `virtio [LEN]`. Times the switch's
//! turns without drivers, in two ways: with drivers in the same thread (all memory warm), and in a
//! thread of their own (guest memory in another core's cache). Prints the best of some rounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use budget::{BATCH, Error, Pair};
use nic::virtio::Features;
use port::Nanos;

const FRAMES: u64 = 32_000;
const ROUNDS: usize = 50;

fn main() -> Result<(), Error> {
    let len = std::env::args().nth(1).map_or(Ok(64), |len| len.parse())?;
    let only = std::env::args().nth(2);
    let base = Features::VERSION_1 | Features::MRG_RXBUF;
    let kinds = [
        ("split", base),
        ("packed", base | Features::RING_PACKED),
        ("split, offloads", base | Features::CSUM | Features::GUEST_CSUM),
    ];
    println!("{:<18} {:>16} {:>16}", "queue", "warm ns/frame", "cold ns/frame");
    for (name, features) in kinds {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let mut figures = Vec::new();
        for _ in 0..ROUNDS {
            figures.push((warm(features, len)?, cold(features, len)?));
        }
        let best = |pick: fn(&(f64, f64)) -> f64| figures.iter().map(pick).fold(f64::MAX, f64::min);
        println!("{name:<18} {:>16.1} {:>16.1}", best(|f| f.0), best(|f| f.1));
    }
    Ok(())
}

/// Drivers and switch in one thread.
fn warm(features: Features, len: usize) -> Result<f64, Error> {
    let mut pair = Pair::new(features, len)?;
    let mut spent = 0;
    pair.run(FRAMES, |switch, now| {
        let start = Instant::now();
        switch.turn(now);
        spent += start.elapsed().as_nanos();
    })?;
    Ok(spent as f64 / FRAMES as f64)
}

/// Drivers in their own thread, which hands in whole batches.
fn cold(features: Features, len: usize) -> Result<f64, Error> {
    let Pair { mut switch, mut sender, mut taker, bytes } = Pair::new(features, len)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                taker.reap(u64::MAX);
                taker.refill();
                sender.reap(u64::MAX);
                sender.send(BATCH, &bytes);
            }
        });
        let (mut frames, mut spent, mut now) = (0, 0, 0);
        while frames < FRAMES {
            let start = Instant::now();
            now += 1000;
            let gathered = switch.turn(Nanos(now)) as u64;
            if gathered > 0 {
                spent += start.elapsed().as_nanos();
                frames += gathered;
            }
        }
        stop.store(true, Ordering::Relaxed);
        Ok(spent as f64 / frames as f64)
    })
}
