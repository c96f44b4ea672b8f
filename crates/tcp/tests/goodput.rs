//! Objective: loss costs little goodput, and a lost tail causes no long silence. Steps: 20 MB over
//! a line of 10 Gb/s and 50 us, in virtual time, for several seeds; lower bounds of the mean.

mod common;

use common::*;
use toklat_tcp::{Algorithm, Config};

const LINE: Impairments = Impairments {
    loss: 0,
    duplicate: 0,
    reorder: 0,
    corrupt: 0,
    delay: 25 * MICRO,
    late: 0,
    rate: 1_250_000_000,
    queue: 1 << 20,
    mark: 0,
    lose_acks: true,
};
const BYTES: u64 = 20_000_000;

/// Goodput in Gb/s of one transfer.
fn goodput(config: &Config, line: Impairments, bytes: u64, seed: u64) -> f64 {
    let (mut a, mut b) = pair(config, bytes, 0, (v4(1), v4(2)));
    a.chunk = 100_000;
    b.check = false;
    let mut net = Net::new(a, b, line, line, seed);
    net.run(600 * SECOND);
    let took = net.b.last_byte.unwrap() - net.b.first_byte.unwrap();
    bytes as f64 * 8.0 / took as f64
}

fn mean(config: &Config, line: Impairments, bytes: u64, seeds: u64) -> f64 {
    let runs: Vec<f64> =
        (0..seeds).map(|seed| goodput(config, line, bytes, seed * 77 + 1)).collect();
    let mean = runs.iter().sum::<f64>() / runs.len() as f64;
    println!(
        "loss {:.2} %, gso {}: {mean:.2} Gb/s of {runs:.2?}",
        f64::from(line.loss) / 1e4,
        config.gso_max
    );
    mean
}

#[test]
fn goodput_under_loss() {
    for (gso_max, algorithm) in
        [(0, Algorithm::Cubic), (65_535, Algorithm::Cubic), (0, Algorithm::Reno)]
    {
        let mut config = Config { gso_max, ..Config::default() };
        config.tuning.congestion = algorithm;
        for (loss, least) in [(0, 9.5), (100, 9.0), (1_000, 6.0), (10_000, 1.5)] {
            let bytes = if loss == 10_000 { BYTES / 5 } else { BYTES };
            let found = mean(&config, Impairments { loss, ..LINE }, bytes, 2);
            assert!(found > least, "{found} Gb/s at {loss} in a million, {algorithm:?}");
        }
    }
}

#[test]
fn windows_follow_a_long_path() {
    // 1 Gb/s and 20 ms: 2.5 MB in flight, twenty times what windows start with.
    let line = Impairments { delay: 10 * MILLI, rate: 125_000_000, queue: 2 << 20, ..LINE };
    let config = Config { gso_max: 65_535, ..Config::default() };
    let found = goodput(&config, line, 80_000_000, 1);
    println!("long path: {found:.2} Gb/s");
    assert!(found > 0.6, "{found} Gb/s");
}

#[test]
fn windows_stay_small_on_a_short_path() {
    let config = Config { gso_max: 65_535, ..Config::default() };
    let (mut a, mut b) = pair(&config, 20_000_000, 0, (v4(1), v4(2)));
    (a.chunk, b.check) = (100_000, false);
    let line = Impairments { delay: 5 * MICRO, ..LINE };
    let mut net = Net::new(a, b, line, line, 1);
    net.run(60 * SECOND);
    let window = net.b.machine.path(net.b.id.unwrap()).unwrap().receive_window;
    assert_eq!(window, 128 << 10);
}
