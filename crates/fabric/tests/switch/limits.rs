//! Ports with a limit on what they may receive.

use std::sync::{Arc, Mutex};

use ::frame::Mac;
use link::{Limited, Limiter, RateLimiter, TokenBucket};
use port::{DropReason, Egress, EgressCounters, Nanos};
use shmem::Shared;
use toklat_fabric::Rules;

use crate::harness::{Switch, frame, host};
use crate::{T0, learned, lossless_to_1};

/// Limits the bytes and frames that a port may receive, at once and in a second.
fn limit_received(switch: &mut Switch, bytes: Option<u64>, frames: Option<u64>) {
    let fills = |size| TokenBucket { size, one_time_burst: 0, refill_time: 1000 };
    let bucket = |size: Option<u64>| size.map(fills);
    let config = RateLimiter { bandwidth: bucket(bytes), ops: bucket(frames) };
    let limiter = Arc::new(Mutex::new(Limiter::new(&config).unwrap()));
    let spec = &mut switch.specs[1];
    let behind = |(queue, received): (&Arc<dyn Egress>, &Shared<EgressCounters>)| {
        let limited = Limited::new(Arc::clone(queue), Arc::clone(&limiter), received.clone());
        Arc::new(limited) as Arc<dyn Egress>
    };
    spec.linked = spec.egresses.iter().zip(&spec.received).map(behind).collect();
    switch.rebuild();
}

#[test]
fn frames_beyond_a_ports_limit_are_dropped_and_delay_no_other_port() {
    let mut switch = learned(3);
    limit_received(&mut switch, None, Some(10));
    let to = |n: u8| host(1 + u16::from(n % 2));
    let frames = || (0..40).map(|n| frame(to(n), host(0), n)).collect::<Vec<_>>();
    switch.send(0, frames(), T0);
    assert_eq!((switch.take(1).len(), switch.take(2).len()), (10, 20));
    let beyond =
        |switch: &Switch| switch.inboxes[1][0].counters.drops[DropReason::RateLimit as usize].get();
    assert_eq!(beyond(&switch), 10);
    switch.send(0, frames(), T0 + Nanos::SECOND / 2);
    assert_eq!((switch.take(1).len(), switch.take(2).len()), (5, 20));
    assert_eq!(beyond(&switch), 25);
    switch.assert_sums();
}

#[test]
fn queues_of_a_port_share_its_limit() {
    let mut switch = Switch::with_queues(&[Rules::default(), Rules::default()], 4);
    limit_received(&mut switch, Some(60 * 10), None);
    let frames = |from: u16| (0..15).map(|n| frame(Mac::BROADCAST, host(from + 8), n)).collect();
    switch.send(0, frames(0), T0);
    switch.send(0, frames(1), T0);
    assert_eq!(switch.take(1).len(), 10);
    switch.assert_sums();
}

/// A token comes every 100 ms, ten times the stall time: waiting for one is no stall.
#[test]
fn senders_to_a_lossless_port_wait_for_tokens_and_lose_nothing() {
    let mut switch = lossless_to_1();
    limit_received(&mut switch, None, Some(10));
    switch.send(0, (0..30).map(|n| frame(host(1), host(0), n)).collect(), T0);
    let mut got = switch.take(1);
    assert_eq!(got.len(), 10);
    let mut now = T0;
    while switch.held[0].is_some() {
        now = now + Nanos::MILLI * 3;
        switch.retry(0, now);
        got.extend(switch.take(1));
    }
    assert_eq!(got.iter().map(|frame| frame[59]).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    let waited = now - T0;
    assert!((1900 * Nanos::MILLI..=2000 * Nanos::MILLI).contains(&waited), "{waited} ns");
    assert_eq!(switch.completed[0], 30);
    switch.assert_sums();
}

/// Only frames that the queue accepts take tokens: a frame that finds it full takes none.
#[test]
fn a_full_queue_behind_a_limit_costs_no_tokens() {
    let mut switch = lossless_to_1();
    limit_received(&mut switch, None, Some(100));
    switch.set_room(1, 1);
    switch.send(0, (0..60).map(|n| frame(host(1), host(0), n)).collect(), T0);
    assert_eq!(switch.take(1).len(), 1);
    switch.set_room(1, 1000);
    switch.retry(0, T0);
    assert_eq!(switch.take(1).len(), 59);
    switch.assert_sums();
}
