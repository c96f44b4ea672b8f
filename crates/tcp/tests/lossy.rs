//! Objective: two machines deliver their bytes whatever the channel does. Steps: a seeded channel
//! in virtual time; both directions are compared byte for byte; no state is left behind.

mod common;

use common::*;
use proptest::prelude::*;
use toklat_tcp::Config;

fn run(
    config: &Config,
    there: Impairments,
    seed: u64,
    sizes: (u64, u64),
    readings: (Reading, Reading),
) -> Net<Peer, Peer> {
    let ips = if seed.is_multiple_of(3) { (v6(1), v6(2)) } else { (v4(1), v4(2)) };
    let (mut a, mut b) = pair(config, sizes.0, sizes.1, ips);
    (a.reading, b.reading) = readings;
    b.copies = seed.is_multiple_of(2);
    let mut net = Net::new(a, b, there, there, seed);
    net.run(3_000 * SECOND);
    // Both handles are closed and TIME-WAIT ends; nothing may be left.
    let now = net.now;
    net.a.machine.close(net.a.id.take().unwrap(), now);
    net.b.machine.close(net.b.id.take().unwrap(), now);
    net.run_for(300 * SECOND);
    for machine in [&net.a.machine, &net.b.machine] {
        let usage = machine.usage();
        assert_eq!((usage.connections, usage.half_open, usage.memory), (0, 0, 0));
        assert_eq!(machine.deadline(), None);
    }
    net
}

#[test]
fn a_good_channel_needs_no_retransmission() {
    let there = Impairments { delay: 50 * MICRO, ..Impairments::default() };
    for gso_max in [0, 65_535] {
        let config = Config { gso_max, ..Config::default() };
        let net = run(&config, there, 1, (5_000_000, 300_000), (Reading::Lent, Reading::Lent));
        for machine in [&net.a.machine, &net.b.machine] {
            let counters = machine.counters();
            assert_eq!(
                (counters.bytes_retransmitted, counters.timeouts, counters.probes),
                (0, 0, 0)
            );
            assert_eq!(counters.drops().count(), 0, "{counters:?}");
            // Data that arrives with the end of the handshake is buffered, because the application
            // has not accepted yet.
            assert!(counters.bytes_in - counters.bytes_lent <= 14_600, "{counters:?}");
        }
    }
}

const SEED: u64 = 20;

fn impairments() -> impl Strategy<Value = Impairments> {
    let kind = (0u32..4, 0u32..4, 0u32..4, 0u32..4, 0u32..6, any::<bool>());
    kind.prop_map(|(loss, duplicate, reorder, corrupt, delay, lose_acks)| Impairments {
        loss: [0, 1_000, 20_000, 150_000][loss as usize],
        duplicate: [0, 0, 10_000, 100_000][duplicate as usize],
        reorder: [0, 0, 20_000, 300_000][reorder as usize],
        corrupt: [0, 0, 1_000, 20_000][corrupt as usize],
        delay: [0, 10 * MICRO, 100 * MICRO, MILLI, 10 * MILLI, 60 * MILLI][delay as usize],
        late: [30 * MICRO, 200 * MICRO, MILLI, 3 * MILLI, 20 * MILLI, 50 * MILLI][delay as usize],
        lose_acks,
        ..Impairments::default()
    })
}

fn readings() -> impl Strategy<Value = Reading> {
    prop_oneof![
        Just(Reading::Lent),
        Just(Reading::Partly),
        Just(Reading::Buffered),
        Just(Reading::Slow(100 * MICRO))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(SEED),
        ..ProptestConfig::default()
    })]

    #[test]
    fn bytes_come_across(
        seed in any::<u64>(),
        there in impairments(),
        sizes in (0u64..300_000, 0u64..100_000),
        reading in (readings(), readings()),
        features in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        gso_max in prop_oneof![Just(0u32), Just(65_535)],
        nagle in any::<bool>(),
    ) {
        let mut config = Config { gso_max, ..Config::default() };
        (config.sack, config.timestamps, config.window_scaling, config.ecn) = features;
        config.tuning.nagle = nagle;
        run(&config, there, seed, sizes, reading);
    }
}

#[test]
fn a_full_ring_loses_nothing() {
    let config = Config { gso_max: 65_535, ..Config::default() };
    let (mut a, b) = pair(&config, 2_000_000, 0, (v4(1), v4(2)));
    a.room = Some(3);
    let there = Impairments { delay: 50 * MICRO, ..Impairments::default() };
    let mut net = Net::new(a, b, there, there, 1);
    net.run(60 * SECOND);
    assert_eq!(net.a.machine.counters().bytes_retransmitted, 0);
}

#[test]
fn marks_keep_a_queue_short_without_loss() {
    let line =
        Impairments { delay: MILLI, rate: 125_000_000, queue: 1 << 20, ..Impairments::default() };
    let mut results = Vec::new();
    for (ecn, mark) in [(true, 100_000), (false, 0)] {
        let config = Config { ecn, ..Config::default() };
        let (a, b) = pair(&config, 60_000_000, 0, (v4(1), v4(2)));
        let mut net = Net::new(a, b, Impairments { mark, ..line }, line, 7);
        net.run(60 * SECOND);
        let counters = net.a.machine.counters();
        results.push((counters.bytes_retransmitted, counters.ecn_reductions));
    }
    assert_eq!(results[0].0, 0, "nothing is lost with marks");
    assert!(results[0].1 > 1, "the window was reduced for marks: {results:?}");
    assert_eq!(results[1].1, 0);
}

#[test]
fn regression_two_sides_in_time_wait_come_to_rest() {
    let there =
        Impairments { duplicate: 10_000, delay: MILLI, late: 3 * MILLI, ..Impairments::default() };
    let mut config = Config { gso_max: 65_535, ..Config::default() };
    (config.sack, config.timestamps, config.window_scaling, config.ecn) =
        (false, true, false, true);
    run(
        &config,
        there,
        11966611021959916759,
        (76942, 87929),
        (Reading::Buffered, Reading::Buffered),
    );
}

#[test]
fn regression_what_was_held_up_is_no_round_trip() {
    let there =
        Impairments { loss: 150_000, late: 30_000, lose_acks: true, ..Impairments::default() };
    let mut config = Config::default();
    (config.sack, config.timestamps, config.window_scaling, config.ecn) =
        (false, false, false, false);
    run(&config, there, 13140135189638128331, (223767, 80301), (Reading::Lent, Reading::Lent));
}
