//! Rate limits of ports, with the test's own clock: how much passes, and that nothing else changes.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use frame::Mac;
use inline::Inline;
use link::{RateLimiter, TokenBucket};
use netring::{Port, Region, RegionConfig};
use port::{DropReason, Nanos};
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::attach::buffered;
use toklat_dataplane::config::Policy;
use toklat_dataplane::state::PortState;
use turn::attach::{AttachError, Attached};

type Attach = Box<dyn FnOnce(&PortState) -> Result<Attached, AttachError>>;

const SLOTS: u32 = 256;
/// Bytes of a frame on its way through the switch.
const LEN: u64 = 1000;
/// Nanoseconds between two turns.
const STEP: u64 = 50_000;

fn bits(rate: u64) -> RateLimiter {
    RateLimiter { bandwidth: Some(TokenBucket::per_second(rate / 8)), ops: None }
}

fn frames(rate: u64) -> RateLimiter {
    RateLimiter { bandwidth: None, ops: Some(TokenBucket::per_second(rate)) }
}

/// A switch with two ports. The first one sends the content of its ring to the second.
struct Lab {
    switch: Inline,
    from: Port,
    to: Port,
    now: Nanos,
    sent: u64,
}

impl Lab {
    fn new(from: Policy, to: Policy) -> Self {
        let mut switch =
            Inline::new(SwitchConfig { max_ports: 4, ..SwitchConfig::default() }).unwrap();
        let mut plug = |number: u32, policy: Policy| {
            let region = Region::private(RegionConfig::ports(1, 1, SLOTS)).unwrap();
            let port = Port::inline(&region, "port", 1, 1, SLOTS).unwrap();
            let policy = Policy { macs: vec![Mac::local(number)], ..policy };
            let rings = port.rings();
            let attach = |state: &_| {
                turn::attach::ring::attach_mapped(
                    &rings.mapping,
                    None,
                    &(&rings).into(),
                    state,
                    false,
                )
            };
            switch.add_attached(&format!("p{number}"), policy, attach).unwrap();
            port
        };
        let (from, to) = (plug(0, from), plug(1, to));
        Self { switch, from, to, now: Nanos(0), sent: 0 }
    }

    /// Makes turns for `ns` nanoseconds; returns the number of frames that arrived.
    fn run(&mut self, ns: u64) -> u64 {
        let (end, mut got) = (self.now + ns, 0);
        while self.now < end {
            let mut number = self.sent;
            self.sent += self.from.send(SLOTS as usize).fill(SLOTS as usize, |window| {
                let mut head = [0; 20];
                head[..6].copy_from_slice(&Mac::local(1).octets());
                head[6..12].copy_from_slice(&Mac::local(0).octets());
                head[12..].copy_from_slice(&number.to_le_bytes());
                window.copy_in(&head);
                number += 1;
                LEN as usize
            }) as u64;
            self.from.flush().unwrap();
            self.now = self.now + STEP;
            self.switch.turn(self.now);
            got += self.to.receive(SLOTS as usize).count() as u64;
            self.to.flush().unwrap();
        }
        got
    }

    fn set(&mut self, id: u16, change: impl FnOnce(&mut Policy)) {
        let mut policy = Policy { macs: vec![Mac::local(id.into())], ..Policy::default() };
        change(&mut policy);
        self.switch.set_policy(id, policy).unwrap();
    }

    fn assert_rate(&mut self, frames_a_second: u64) {
        // Half a second of traffic empties the bucket.
        self.run(Nanos::SECOND / 2);
        let got = self.run(Nanos::SECOND);
        assert!(
            got.abs_diff(frames_a_second) * 200 <= frames_a_second,
            "{got} frames came in a second, {frames_a_second} may"
        );
    }
}

#[test]
fn a_port_sends_as_much_as_it_may_and_loses_nothing() {
    for (limit, rate) in
        [(bits(8_000_000), 1000), (bits(1_600_000_000), 200_000), (frames(5000), 5000)]
    {
        let limited = Policy { tx_rate_limiter: Some(limit), ..Policy::default() };
        let mut lab = Lab::new(limited, Policy::default());
        lab.assert_rate(rate);
        let drops = |id| lab.switch.stats(id).in_drops.values().sum::<u64>();
        assert_eq!(drops(0), 0, "what may not pass yet waits in its ring");
    }
}

#[test]
fn a_port_receives_as_much_as_it_may_and_the_rest_is_counted() {
    for (limit, rate) in [(bits(80_000_000), 10_000), (frames(5000), 5000)] {
        let limited = Policy { rx_rate_limiter: Some(limit), ..Policy::default() };
        let mut lab = Lab::new(Policy::default(), limited);
        lab.assert_rate(rate);
        let received = lab.switch.stats(1);
        let beyond = received.out_drops[&DropReason::RateLimit];
        assert!(beyond > 0);
        assert_eq!(lab.switch.stats(0).in_frames, received.out_frames + beyond);
    }
}

#[test]
fn senders_wait_for_a_lossless_port() {
    let limited =
        Policy { rx_rate_limiter: Some(bits(8_000_000)), lossless: true, ..Policy::default() };
    let mut lab = Lab::new(Policy::default(), limited);
    lab.assert_rate(1000);
    assert_eq!(lab.switch.stats(0).in_drops.values().sum::<u64>(), 0);
    assert_eq!(lab.switch.stats(1).out_drops.values().sum::<u64>(), 0);
}

#[test]
fn limits_change_while_traffic_runs() {
    let mut lab = Lab::new(Policy::default(), Policy::default());
    let unlimited = lab.run(Nanos::SECOND / 2);
    assert_eq!(unlimited, 64 * Nanos::SECOND / 2 / STEP, "whole batches");
    for rate in [1000, 100, 20_000] {
        lab.set(0, |policy| policy.tx_rate_limiter = Some(frames(rate)));
        lab.assert_rate(rate);
    }
    // If two limits apply, the stricter one holds.
    lab.set(1, |policy| policy.rx_rate_limiter = Some(frames(5000)));
    lab.assert_rate(5000);
    // Another change leaves the tokens alone: there is no new burst.
    lab.run(Nanos::SECOND / 2);
    lab.set(1, |policy| {
        policy.rx_rate_limiter = Some(frames(5000));
        policy.mtu = 2000;
    });
    assert!(lab.run(STEP) <= 1);
    lab.set(0, |_| {});
    lab.set(1, |_| {});
    lab.run(STEP);
    assert_eq!(lab.run(Nanos::SECOND / 2), unlimited);
}

/// Each kind of port leaves frames beyond its limit in its socket or file.
#[test]
fn sockets_and_files_are_read_as_far_as_a_port_may_send() {
    let frame = |number: u8| {
        let mut frame = [number; 60];
        frame[..6].copy_from_slice(&Mac::local(1).octets());
        frame[6..12].copy_from_slice(&Mac::local(7).octets());
        frame
    };
    let dgram = || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        (0..10).for_each(|number| assert_eq!(theirs.send(&frame(number)).unwrap(), 60));
        let socket = OwnedFd::from(ours).into();
        (Some(theirs), Box::new(move |state: &_| buffered::dgram::attach(socket, state)) as Attach)
    };
    let pcap = || {
        let mut file = tempfile::tempfile().unwrap();
        let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1];
        file.write_all(header.map(u32::to_le_bytes).as_flattened()).unwrap();
        for number in 0..10 {
            file.write_all([0u32, 0, 60, 60].map(u32::to_le_bytes).as_flattened()).unwrap();
            file.write_all(&frame(number)).unwrap();
        }
        let file = OwnedFd::from(file);
        let read = move |state: &_| buffered::pcap::attach_read(&file, false, 0, state, false);
        (None, Box::new(read) as Attach)
    };
    for (_kept, attach) in [dgram(), pcap()] {
        let mut lab = Lab::new(Policy::default(), Policy::default());
        let limit = RateLimiter {
            ops: Some(TokenBucket { size: 2, one_time_burst: 1, refill_time: 1000 }),
            bandwidth: None,
        };
        let policy = Policy { tx_rate_limiter: Some(limit), ..Policy::default() };
        lab.switch.add_attached("other", policy, attach).unwrap();
        let mut came = Vec::new();
        for _ in 0..100_000 {
            lab.now = lab.now + STEP;
            lab.switch.turn(lab.now);
            came.extend(lab.to.receive(16).map(|frame| (lab.now.0, frame.to_vec()[20])));
            lab.to.flush().unwrap();
        }
        let numbers: Vec<u8> = came.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>(), "all, in order");
        let gaps: Vec<u64> = came.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps[..3].iter().all(|gap| *gap <= STEP), "the burst, and one in debt: {gaps:?}");
        let slow = Nanos::SECOND / 2 - STEP..=Nanos::SECOND / 2 + STEP;
        assert!(gaps[3..].iter().all(|gap| slow.contains(gap)), "two a second: {gaps:?}");
    }
}
