//! Bad links of ports, with the test's own clock: frames are lost, late or duplicated, and the sums
//! agree.

use frame::Mac;
use inline::Inline;
use link::Impairment;
use netring::{Port, Region, RegionConfig};
use port::{DropReason, Nanos};
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::config::Policy;

const SLOTS: u32 = 256;
/// Nanoseconds between two turns.
const STEP: u64 = 10_000;

/// A switch with two ports; the first sends numbered frames to the second.
struct Lab {
    switch: Inline,
    from: Port,
    to: Port,
    now: Nanos,
    sent: u32,
}

impl Lab {
    fn new(from: Policy, to: Policy) -> Self {
        let config = SwitchConfig { max_ports: 4, ..SwitchConfig::default() };
        let mut switch = Inline::new(config).unwrap();
        let mut plug = |number: u32, policy: Policy| {
            let region = Region::private(RegionConfig::ports(1, 1, SLOTS)).unwrap();
            let port = Port::inline(&region, "port", 1, 1, SLOTS).unwrap();
            let policy = Policy { macs: vec![Mac::local(number)], ..policy };
            switch.add_rings(&format!("p{number}"), policy, &port.rings()).unwrap();
            port
        };
        let (from, to) = (plug(0, from), plug(1, to));
        Self { switch, from, to, now: Nanos(0), sent: 0 }
    }

    /// Sends this many frames.
    fn send(&mut self, frames: usize) {
        let mut number = self.sent;
        let sent = self.from.send(frames).fill(frames, |window| {
            let mut head = [0; 18];
            head[..6].copy_from_slice(&Mac::local(1).octets());
            head[6..12].copy_from_slice(&Mac::local(0).octets());
            head[14..].copy_from_slice(&number.to_le_bytes());
            window.copy_in(&head);
            number += 1;
            100
        });
        assert_eq!(sent, frames);
        self.sent = number;
        self.from.flush().unwrap();
    }

    /// Makes a turn; returns the numbers of the frames that arrived.
    fn turn(&mut self) -> Vec<u32> {
        self.now = self.now + STEP;
        self.switch.turn(self.now);
        let number = |frame: netring::Received<'_>| {
            u32::from_le_bytes(frame.to_vec()[14..18].try_into().unwrap())
        };
        let came = self.to.receive(SLOTS as usize).map(number).collect();
        self.to.flush().unwrap();
        came
    }

    /// Sends `batches` of 16 frames, one in each turn. Returns what arrived once nothing is in
    /// flight.
    fn run(&mut self, batches: usize) -> Vec<u32> {
        let mut came = Vec::new();
        for _ in 0..batches {
            self.send(16);
            came.extend(self.turn());
        }
        let mut quiet = 0;
        while quiet < 3000 {
            let more = self.turn();
            quiet = if more.is_empty() { quiet + 1 } else { 0 };
            came.extend(more);
        }
        came
    }

    fn set(&mut self, id: u16, change: impl FnOnce(&mut Policy)) {
        let mut policy = Policy { macs: vec![Mac::local(id.into())], ..Policy::default() };
        change(&mut policy);
        self.switch.set_policy(id, policy).unwrap();
    }

    /// Checks that frames in, copies, drops and frames out agree.
    fn assert_sums(&self) {
        let ports = [0, 1].map(|id| self.switch.stats(id));
        let entered: u64 = ports.iter().map(|port| port.in_frames + port.in_copies).sum();
        let left: u64 = ports
            .iter()
            .map(|port| {
                port.out_frames
                    + port.in_drops.values().sum::<u64>()
                    + port.out_drops.values().sum::<u64>()
            })
            .sum();
        assert_eq!(entered, left);
    }
}

/// The policies of a sender and a receiver, one of which has a bad link.
fn bad(sending: bool, change: impl FnOnce(&mut Impairment)) -> (Policy, Policy) {
    let mut link = Impairment::default();
    change(&mut link);
    let sender = Policy { tx_impairment: Some(link), ..Policy::default() };
    let receiver = Policy { rx_impairment: Some(link), ..Policy::default() };
    match sending {
        true => (sender, Policy::default()),
        false => (Policy::default(), receiver),
    }
}

#[test]
fn lost_and_doubled_frames_are_counted_in_either_direction() {
    for sending in [true, false] {
        let (from, to) = bad(sending, |c| {
            (c.loss_ppm, c.duplicate_ppm, c.seed) = (100_000, 50_000, 3);
        });
        let mut lab = Lab::new(from, to);
        let came = lab.run(500);
        let at = lab.switch.stats(if sending { 0 } else { 1 });
        let (lost, doubled) = (at.in_drops[&DropReason::Impaired], at.in_copies);
        assert_eq!(came.len() as u64, 8000 - lost + doubled);
        assert!((700..=900).contains(&lost) && (300..=420).contains(&doubled), "{lost} {doubled}");
        assert!(came.is_sorted(), "loss reorders nothing");
        lab.assert_sums();
    }
}

#[test]
fn delayed_frames_come_though_nothing_more_is_sent() {
    for sending in [true, false] {
        let (from, to) = bad(sending, |c| c.delay_us = 5000);
        let mut lab = Lab::new(from, to);
        lab.send(16);
        let mut came = Vec::new();
        while came.is_empty() {
            came = lab.turn();
        }
        assert_eq!(came, (0..16).collect::<Vec<_>>());
        let late = lab.now.0 - STEP;
        assert!((5_000_000..=5_000_000 + 2 * STEP).contains(&late), "{late} ns");
        lab.assert_sums();
    }
}

#[test]
fn reordered_frames_overtake_and_all_come() {
    for sending in [true, false] {
        let (from, to) = bad(sending, |c| (c.delay_us, c.reorder_ppm) = (500, 200_000));
        let mut lab = Lab::new(from, to);
        let mut came = lab.run(200);
        assert!(!came.is_sorted());
        came.sort_unstable();
        assert_eq!(came, (0..3200).collect::<Vec<_>>());
        lab.assert_sums();
    }
}

/// Frames beyond the pool wait in the sender's ring, or at their sender on the way to a lossless
/// port.
#[test]
fn a_full_pool_loses_nothing_in_sending_and_counts_in_receiving() {
    let small = |c: &mut Impairment| (c.delay_us, c.limit) = (100, 8);
    let (from, to) = bad(true, small);
    let mut lab = Lab::new(from, to);
    assert_eq!(lab.run(10), (0..160).collect::<Vec<_>>());
    lab.assert_sums();

    let (from, to) = bad(false, small);
    let mut lab = Lab::new(from, Policy { lossless: true, ..to });
    assert_eq!(lab.run(10), (0..160).collect::<Vec<_>>());
    lab.assert_sums();

    let (from, to) = bad(false, small);
    let mut lab = Lab::new(from, to);
    let came = lab.run(10).len() as u64;
    assert_eq!(lab.switch.stats(1).out_drops[&DropReason::Full], 160 - came);
    lab.assert_sums();
}

/// Frames that wait for a lossless receiver when the link becomes bad are in their sender's memory,
/// not in the link's.
#[test]
fn regression_a_link_that_becomes_bad_while_frames_wait_gives_their_slots_back() {
    let mut lab = Lab::new(Policy::default(), Policy { lossless: true, ..Policy::default() });
    let full = SLOTS as usize - 1;
    let mut came = Vec::new();
    // The receiver takes nothing, so the second half waits.
    for _ in 0..2 {
        lab.send(full);
        for _ in 0..full {
            lab.now = lab.now + STEP;
            lab.switch.turn(lab.now);
        }
    }
    let late = Some(Impairment { delay_us: 100, ..Impairment::default() });
    lab.set(0, |policy| policy.tx_impairment = late);
    (0..100).for_each(|_| came.extend(lab.turn()));
    // All slots of the ring have returned.
    lab.send(full);
    (0..1000).for_each(|_| came.extend(lab.turn()));
    assert_eq!(came, (0..3 * full as u32).collect::<Vec<_>>());
    lab.assert_sums();
}

#[test]
fn a_link_becomes_bad_and_good_again_under_traffic() {
    let mut lab = Lab::new(Policy::default(), Policy::default());
    assert_eq!(lab.run(4).len(), 64);
    let slow = Some(Impairment { delay_us: 1_000_000, ..Impairment::default() });
    for sending in [true, false] {
        let (id, first) = (if sending { 0 } else { 1 }, lab.sent);
        lab.set(id, |policy| match sending {
            true => policy.tx_impairment = slow,
            false => policy.rx_impairment = slow,
        });
        lab.send(16);
        assert_eq!(lab.turn(), [0; 0]);
        lab.set(id, |_| ());
        let came: Vec<_> = (0..3).flat_map(|_| lab.turn()).collect();
        assert_eq!(
            came,
            (first..first + 16).collect::<Vec<_>>(),
            "what was under way comes at once"
        );
        assert_eq!(lab.run(4).len(), 64);
        lab.assert_sums();
    }
}

#[test]
fn frames_under_way_to_or_from_a_port_that_goes_are_counted() {
    for sending in [true, false] {
        let (from, to) = bad(sending, |c| c.delay_us = 1_000_000);
        let mut lab = Lab::new(from, to);
        lab.send(16);
        assert_eq!(lab.turn(), [0; 0]);
        lab.switch.remove(if sending { 0 } else { 1 });
        let gone = lab.switch.state().switch().snapshot().gone;
        assert_eq!(gone.in_drops[&DropReason::Detached], 16);
    }
}
