//! RPC in virtual time: loss, reordering, duplicates, corruption, restarts, hostile frames.

mod hostile;
mod udp;
mod world;

use guest::Nanos;
use guest::rpc::{CallError, Config, Failure, SessionId};
use proptest::prelude::*;

use world::{Bad, Random, SERVER, World, request};

const GOOD: Bad = Bad { loss: 0, twice: 0, corrupt: 0, delay: 0 };
const AWFUL: Bad = Bad { loss: 100, twice: 100, corrupt: 50, delay: 300 };

/// Makes `count` requests of random sizes, as fast as credits allow; returns the next name.
fn run(world: &mut World, session: SessionId, names: std::ops::Range<u64>, most: u64) {
    let mut sizes = Random(names.start ^ 77);
    let mut next = names.start;
    let last = names.end;
    world.until("all requests have results", |world| {
        while next < last {
            let filler = if sizes.below(4) == 0 { sizes.below(most) } else { sizes.below(64) };
            let reply = if sizes.below(4) == 0 { sizes.below(most) } else { sizes.below(64) };
            match world.call(session, next, request(next, filler as usize, reply as usize)) {
                Ok(()) => next += 1,
                Err(CallError::Closed) => return true,
                Err(_) => break,
            }
        }
        let all = names.clone().all(|id| world.results.contains_key(&id));
        all && next == last
    });
}

fn all_ok(world: &World, names: std::ops::Range<u64>) {
    for id in names {
        assert!(world.results[&id].is_ok(), "request {id}: {:?}", world.results[&id]);
    }
    world.check();
}

#[test]
fn requests_get_their_replies_and_a_clean_link_needs_no_repetition() {
    let mut world = World::new(1, GOOD);
    world.slots = 1024;
    let session = world.open();
    run(&mut world, session, 0..500, 20_000);
    all_ok(&world, 0..500);
    assert_eq!(world.client.counters().repeated, 0);
    assert_eq!(world.server.counters().repeated, 0);
}

#[test]
fn datagrams_carry_requests_as_frames_do() {
    let links = [(1, GOOD), (2, AWFUL), (3, AWFUL)];
    for (seed, bad, v6) in links.into_iter().flat_map(|(s, bad)| [(s, bad, false), (s, bad, true)])
    {
        let mut world = World::over_udp(seed, bad, v6);
        world.slots = 1024;
        let session = world.open();
        run(&mut world, session, 0..300, 20_000);
        all_ok(&world, 0..300);
        let repeated = world.client.counters().repeated;
        assert_eq!(repeated == 0, bad.loss == 0, "{repeated}");
    }
}

#[test]
fn eight_mebibytes_go_both_ways_through_a_link_that_loses_and_reorders() {
    let most = guest::rpc::MAX_MESSAGE - 16;
    let mut world = World::new(2, Bad { loss: 10, delay: 30, ..GOOD });
    world.slots = 256;
    let session = world.open();
    world.call(session, 1, request(1, most, most)).unwrap();
    world.until("the long reply", |world| world.results.contains_key(&1));
    all_ok(&world, 1..2);
    let long = world.call(session, 2, request(2, most + 1, 0));
    assert_eq!(long, Err(CallError::TooLong(most + 17, most + 16)));
    assert_eq!(world.server.bytes(), most + 16, "only the reply is kept");
}

/// A lost fragment costs its own repetition, not the window's.
#[test]
fn only_missing_fragments_travel_again() {
    let mut world = World::new(3, Bad { loss: 20, ..GOOD });
    let session = world.open();
    world.call(session, 1, request(1, 2_000_000, 0)).unwrap();
    let mut frames = 0;
    world.until("the reply", |world| {
        frames += world.on_their_way().filter(|frame| frame.len() > 1000).count();
        world.results.contains_key(&1)
    });
    let fragments = 2_000_016usize.div_ceil(world::FRAME - guest::rpc::HEAD);
    assert!(frames < fragments * 11 / 10, "{frames} frames for {fragments} fragments");
    all_ok(&world, 1..2);
}

#[test]
fn requests_survive_full_rings() {
    let mut world = World::new(4, GOOD);
    world.slots = 3;
    let session = world.open();
    run(&mut world, session, 0..200, 30_000);
    all_ok(&world, 0..200);
    assert!(world.server.counters().full > 0);
}

#[test]
fn a_restarted_server_makes_outstanding_requests_ambiguous_and_takes_new_ones() {
    let mut world = World::new(5, Bad { delay: 50, ..GOOD });
    let session = world.open();
    for id in 0..8 {
        world.call(session, id, request(id, 10, 10)).unwrap();
    }
    (0..3).for_each(|_| world.turn());
    world.restart_server();
    world.until("results", |world| (0..8).all(|id| world.results.contains_key(&id)));
    let ambiguous = world.results.values().filter(|it| **it == Err(Failure::Ambiguous)).count();
    assert!(ambiguous > 0, "some were outstanding");
    world.until("the session opens again", |world| world.client.is_open(session));
    run(&mut world, session, 100..200, 5_000);
    all_ok(&world, 100..200);
}

#[test]
fn a_dead_server_ends_requests_in_bounded_time() {
    let config = Config { patience: 2 * Nanos::SECOND, ..Config::new(SERVER) };
    let mut world = World::with(6, GOOD, config);
    let session = world.open();
    world.is_server_dead = true;
    world.call(session, 1, request(1, 5_000, 10)).unwrap();
    world.call(session, 2, request(2, 5, 10)).unwrap();
    let start = world.now;
    world.until("the end", |world| world.client.is_closed(session));
    assert!(world.now - start < 5 * Nanos::SECOND);
    assert_eq!(world.results[&1], Err(Failure::Ambiguous));
    assert_eq!(world.results[&2], Err(Failure::Ambiguous));
    assert_eq!(world.call(session, 3, request(3, 5, 5)), Err(CallError::Closed));
}

/// A machine that is paused or migrates is silent for a minute; its clients wait for it.
#[test]
fn regression_a_silent_server_is_waited_for_by_time() {
    let mut world = World::new(16, GOOD);
    let session = world.open();
    for round in 0..3 {
        world.is_server_dead = true;
        world.call(session, 2 * round, request(2 * round, 5_000, 10)).unwrap();
        world.call(session, 2 * round + 1, request(2 * round + 1, 5, 10)).unwrap();
        for _ in 0..400 {
            // Each turn is 0.2 seconds later.
            world.now = world.now + Nanos::SECOND / 5;
            world.turn();
        }
        assert!(world.results.len() == 2 * round as usize && !world.client.is_closed(session));
        world.is_server_dead = false;
        world.until("the replies", |world| world.results.len() == 2 * round as usize + 2);
        // An idle time does not count.
        world.now = world.now + 25 * Nanos::SECOND;
    }
    all_ok(&world, 0..6);
    world.is_server_dead = true;
    world.call(session, 9, request(9, 5, 10)).unwrap();
    let start = world.now;
    while !world.client.is_closed(session) {
        world.now = world.now + Nanos::SECOND / 5;
        world.turn();
    }
    assert!((100..=102).contains(&((world.now - start) / Nanos::SECOND)));
    assert_eq!(world.results[&9], Err(Failure::Ambiguous));
}

#[test]
fn a_restarted_client_ignores_replies_to_the_one_before() {
    let mut world = World::new(7, Bad { delay: 200, ..GOOD });
    let session = world.open();
    for id in 0..8 {
        world.call(session, id, request(id, 10, 5_000)).unwrap();
    }
    world.until("requests run", |world| world.ran.0.len() > 2);
    world.restart_client();
    let session = world.open();
    run(&mut world, session, 100..150, 5_000);
    all_ok(&world, 100..150);
    assert!(world.results.keys().all(|id| *id >= 100), "old replies were discarded");
}

#[test]
fn idle_sessions_give_way_to_new_ones_and_are_renewed_when_used_again() {
    let config = Config { max_sessions: 4, ..Config::new(SERVER) };
    let idle = config.idle;
    let mut world = World::with(8, GOOD, config);
    let sessions: Vec<_> = (0..4).map(|_| world.open()).collect();
    // A session without a request would give way at once.
    for (id, session) in (100..).zip(&sessions) {
        run(&mut world, *session, id..id + 1, 100);
    }
    let refused = world.connect();
    world.until("the refusal", |world| world.client.is_closed(refused));
    world.now = world.now + 2 * idle;
    world.open();
    assert!(world.server.counters().evicted > 0);
    assert_eq!(world.call(sessions[0], 1, request(1, 1, 1)), Err(CallError::Opening));
    world.until("the renewal", |world| world.client.is_open(sessions[0]));
    run(&mut world, sessions[0], 2..10, 100);
    all_ok(&world, 2..10);
}

#[test]
fn a_thousand_sessions_share_the_receive_ring() {
    let mut world = World::new(9, GOOD);
    world.slots = 4096;
    let sessions: Vec<_> = (0..1000).map(|_| world.connect()).collect();
    world.until("all open", |world| sessions.iter().all(|id| world.client.is_open(*id)));
    for (id, session) in sessions.iter().enumerate() {
        world.call(*session, id as u64, request(id as u64, 8, 8)).unwrap();
    }
    world.until("all replies", |world| world.results.len() == 1000);
    all_ok(&world, 0..1000);
    // After two rounds, each client knows its share of the ring.
    let session = sessions[0];
    world.call(session, 2000, request(2000, 8, 8)).unwrap();
    assert_eq!(world.call(session, 2001, request(2001, 8, 8)), Err(CallError::Busy));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// This is the property that the protocol exists for.
    #[test]
    fn no_request_runs_twice_whatever_the_link_and_restarts_do(
        seed: u64,
        loss in 0u64..250,
        twice in 0u64..250,
        corrupt in 0u64..100,
        delay in 0u64..2_000,
        kills in proptest::collection::vec((0u64..400, any::<bool>()), 0..4),
    ) {
        let mut world = World::new(seed, Bad { loss, twice, corrupt, delay });
        let mut session = world.open();
        let (mut next, mut kills) = (0, kills);
        let mut sizes = Random(seed);
        for turn in 0..2_000u64 {
            if let Some(at) = kills.iter().position(|(at, _)| 5 * at == turn) {
                if kills.swap_remove(at).1 {
                    world.restart_server();
                } else {
                    world.restart_client();
                    session = world.connect();
                }
            }
            if world.client.is_closed(session) {
                session = world.connect();
            }
            let (filler, reply) = (sizes.below(4_000), sizes.below(4_000));
            let (filler, reply) = (filler as usize, reply as usize);
            if world.call(session, next, request(next, filler, reply)).is_ok() {
                next += 1;
            }
            world.turn();
        }
        world.check();
    }
}

#[test]
fn an_awful_link_delays_requests_and_loses_none() {
    let mut world = World::new(10, AWFUL);
    let session = world.open();
    run(&mut world, session, 0..300, 10_000);
    all_ok(&world, 0..300);
    assert!(world.server.counters().repeated > 0 && world.server.counters().checksum > 0);
}
