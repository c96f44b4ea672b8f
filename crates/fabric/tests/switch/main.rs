//! Tests of the switch: each rule for frames, and the sum rule.

mod guard;
mod harness;
mod limits;
mod offloads;
mod records;
mod rules;
mod tunnels;

use ::frame::{Mac, VlanId};
use harness::{STALL_NS, Switch, frame, host, tagged};
use port::{DropReason, Nanos};
use proptest::prelude::*;
use toklat_fabric::{Monitor, Rules, Sender, VlanMode};

const T0: Nanos = Nanos(1_000_000_000);

fn plain(ports: usize) -> Switch {
    Switch::new(&vec![Rules::default(); ports])
}

/// A switch that has learned all of its hosts.
fn learned(ports: usize) -> Switch {
    let mut switch = plain(ports);
    for id in 0..ports as u16 {
        switch.send(id, vec![frame(Mac::BROADCAST, host(id), 0)], T0);
    }
    (0..ports as u16).for_each(|id| drop(switch.take(id)));
    switch
}

fn vlan(id: u16) -> VlanId {
    VlanId::new(id).unwrap()
}

#[test]
fn unknown_addresses_are_flooded_and_known_ones_are_not() {
    let mut switch = plain(4);
    switch.send(0, vec![frame(host(1), host(0), 7)], T0);
    assert_eq!([0, 1, 2, 3].map(|id| switch.take(id).len()), [0, 1, 1, 1]);
    switch.send(1, vec![frame(host(0), host(1), 8)], T0);
    assert_eq!([0, 1, 2, 3].map(|id| switch.take(id).len()), [1, 0, 0, 0]);
    switch.assert_sums();
}

#[test]
fn broadcast_reaches_everybody_else_once_per_batch_and_receiver() {
    let mut switch = learned(4);
    let batch = (0..10).map(|n| frame(Mac::BROADCAST, host(0), n)).collect();
    let before = *switch.inboxes[2][0].deliveries.lock().unwrap();
    switch.kicks.clear();
    switch.send(0, batch, T0);
    let got: Vec<u8> = switch.take(2).iter().map(|f| f[59]).collect();
    assert_eq!(got, (0..10).collect::<Vec<_>>());
    assert_eq!(*switch.inboxes[2][0].deliveries.lock().unwrap(), before + 1, "one publish a batch");
    switch.kicks.sort_unstable();
    assert_eq!(switch.kicks, [1, 2, 3], "one kick a batch and peer");
    switch.assert_sums();
}

#[test]
fn order_is_kept_between_floods_and_unicasts_to_one_receiver() {
    let mut switch = learned(3);
    let to = |n: u8| if n.is_multiple_of(3) { Mac::BROADCAST } else { host(1 + u16::from(n % 2)) };
    switch.send(0, (0..60).map(|n| frame(to(n), host(0), n)).collect(), T0);
    for id in [1, 2] {
        let got: Vec<u8> = switch.take(id).iter().map(|f| f[59]).collect();
        let want: Vec<u8> = (0..60).filter(|n| *n % 3 == 0 || 1 + u16::from(n % 2) == id).collect();
        assert_eq!(got, want, "port {id}");
    }
    switch.assert_sums();
}

#[test]
fn what_bridges_keep_in_and_what_is_malformed_is_dropped_by_name() {
    let mut switch = learned(2);
    let link_local: Mac = "01:80:c2:00:00:0e".parse().unwrap();
    let long = vec![2; 1523];
    let frames = vec![
        frame(link_local, host(0), 0),
        frame(host(0), host(0), 0),
        vec![0; 13],
        long,
        frame(host(1), host(0), 1),
    ];
    switch.send(0, frames, T0);
    for (reason, n) in [
        (DropReason::LinkLocal, 1),
        (DropReason::SamePort, 1),
        (DropReason::Runt, 1),
        (DropReason::TooLong, 1),
    ] {
        assert_eq!(switch.dropped(0, reason), n, "{}", reason.name());
    }
    assert_eq!(switch.take(1).len(), 1);
    switch.assert_sums();
}

#[test]
fn a_flood_without_receivers_is_counted() {
    let mut switch = plain(1);
    switch.send(0, vec![frame(Mac::BROADCAST, host(0), 0)], T0);
    assert_eq!(switch.dropped(0, DropReason::NoDestination), 1);
    switch.assert_sums();
}

#[test]
fn protected_ports_reach_only_ports_that_are_not() {
    let protected = Rules { protected: true, ..Rules::default() };
    let mut switch = Switch::new(&[protected.clone(), protected, Rules::default()]);
    for id in 0..3 {
        switch.send(id, vec![frame(Mac::BROADCAST, host(id), 0)], T0);
    }
    assert_eq!([0, 1, 2].map(|id| switch.take(id).len()), [1, 1, 2]);
    let frames = vec![frame(host(1), host(0), 1), frame(host(2), host(0), 2)];
    switch.send(0, frames, T0);
    assert_eq!([1, 2].map(|id| switch.take(id).len()), [0, 1]);
    assert_eq!(switch.dropped(0, DropReason::Protected), 1);
    switch.assert_sums();
}

#[test]
fn a_locked_port_may_use_its_addresses_only() {
    let locked = Rules { locked: true, macs: vec![host(0)], ..Rules::default() };
    let sticky = Rules { locked: true, ..Rules::default() };
    let mut switch = Switch::new(&[locked, sticky, Rules::default()]);
    let from = |mac| vec![frame(Mac::BROADCAST, mac, 0)];
    switch.send(0, from(host(9)), T0);
    switch.send(0, from(host(0)), T0);
    switch.send(1, from(host(5)), T0);
    switch.send(1, from(host(6)), T0);
    assert_eq!(
        (switch.dropped(0, DropReason::PortSecurity), switch.dropped(1, DropReason::PortSecurity)),
        (1, 1)
    );
    assert_eq!(switch.take(2).len(), 2);
    assert_eq!(switch.fdb.lookup(0, host(9).word()), None, "a refused source is not learned");
    switch.assert_sums();
}

#[test]
fn floods_are_limited_and_unicast_is_not() {
    let slow = Rules { flood_limit: Some(640), ..Rules::default() };
    let mut switch = Switch::new(&[slow, Rules::default()]);
    switch.send(1, vec![frame(Mac::BROADCAST, host(1), 0)], T0);
    for _ in 0..3 {
        switch.send(0, (0..60).map(|n| frame(Mac::BROADCAST, host(0), n)).collect(), T0);
    }
    assert_eq!(switch.take(1).len(), 64, "a tenth of a second's worth");
    assert_eq!(switch.dropped(0, DropReason::FloodLimit), 180 - 64);
    switch.send(0, (0..60).map(|n| frame(host(1), host(0), n)).collect(), T0);
    assert_eq!(switch.take(1).len(), 60);
    switch.assert_sums();
}

#[test]
fn vlans_are_kept_apart_and_tags_added_and_removed() {
    let access = |id| Rules { vlan: VlanMode::Access(vlan(id)), ..Rules::default() };
    let trunk = |allowed: &[u16], native: Option<u16>| Rules {
        vlan: VlanMode::Trunk {
            allowed: allowed.iter().map(|id| vlan(*id)).collect(),
            native: native.map(vlan),
        },
        ..Rules::default()
    };
    let mut switch = Switch::new(&[
        access(10),
        access(20),
        access(10),
        trunk(&[10, 20], None),
        trunk(&[10], Some(30)),
        Rules::default(),
    ]);
    let bare = frame(Mac::BROADCAST, host(0), 1);
    switch.send(0, vec![bare.clone()], T0);
    let got: Vec<_> = (0..6).map(|id| switch.take(id)).collect();
    assert_eq!(got[2], std::slice::from_ref(&bare), "same VLAN");
    assert!(got[1].is_empty() && got[5].is_empty(), "other VLAN, and no VLANs");
    assert_eq!(got[3], [tagged(bare.clone(), 10)]);
    assert_eq!(got[4], [tagged(bare.clone(), 10)]);

    // The reply goes back through the trunk as a unicast: trunks keep the priority, and the access
    // port strips the tag.
    let reply = tagged(frame(host(0), host(3), 2), 0x600a);
    switch.send(3, vec![reply], T0);
    assert_eq!(switch.take(0), [frame(host(0), host(3), 2)]);
    // A priority tag, then a foreign tag on an access port, then one that the trunk does not allow.
    switch.send(0, vec![tagged(bare.clone(), 0x6000), tagged(bare.clone(), 20)], T0);
    assert_eq!(switch.take(2), std::slice::from_ref(&bare));
    assert_eq!(switch.take(3), [tagged(bare.clone(), 0x600a)]);
    assert_eq!(switch.dropped(0, DropReason::Vlan), 1);
    switch.send(4, vec![tagged(bare.clone(), 20), frame(Mac::BROADCAST, host(4), 3)], T0);
    assert_eq!(switch.dropped(4, DropReason::Vlan), 1);
    assert_eq!(switch.dropped(4, DropReason::NoDestination), 1, "nobody else is in VLAN 30");
    switch.assert_sums();
}

#[test]
fn a_priority_tag_becomes_the_tag_of_a_trunk_that_hears_it_first() {
    let trunk = VlanMode::Trunk { allowed: Vec::new(), native: None };
    let access = Rules { vlan: VlanMode::Access(vlan(10)), ..Rules::default() };
    let trunk = Rules { vlan: trunk, ..Rules::default() };
    let mut switch = Switch::new(&[trunk, access.clone(), access]);
    let bare = frame(Mac::BROADCAST, host(1), 1);
    switch.send(1, vec![tagged(bare.clone(), 0x6000)], T0);
    assert_eq!(switch.take(0), [tagged(bare.clone(), 0x600a)], "one tag");
    assert_eq!(switch.take(2), [bare]);
    switch.assert_sums();
}

#[test]
fn rules_of_a_port_hold_over_all_its_send_queues() {
    let policy = Rules { locked: true, flood_limit: Some(640), ..Rules::default() };
    let mut switch = Switch::new(&[policy, Rules::default()]);
    let floods = |from| (0..40).map(|n| frame(Mac::BROADCAST, from, n)).collect::<Vec<_>>();
    switch.send(0, floods(host(0)), T0);
    switch.senders[0] = Sender::new(0, 1);
    switch.send(0, floods(host(5)), T0);
    assert_eq!(switch.dropped(0, DropReason::PortSecurity), 40, "its first source, on any queue");
    switch.send(0, floods(host(0)), T0);
    assert_eq!(switch.dropped(0, DropReason::FloodLimit), 80 - 64);
    switch.assert_sums();
}

#[test]
fn a_mirror_sees_what_is_refused_but_for_what_is_too_long() {
    let mirrored = Rules { mirror_ingress: Some("p1".into()), ..Rules::default() };
    let mut switch = Switch::new(&[mirrored, Rules::default()]);
    let refused = frame(host(0), host(0), 0);
    switch.send(0, vec![refused.clone(), vec![2; 9000]], T0);
    assert_eq!(switch.take(1), [refused]);
    assert_eq!(switch.inboxes[1][0].counters.drops[DropReason::TooLong as usize].get(), 1);
    switch.assert_sums();
}

#[test]
fn frames_of_a_port_that_is_not_there_are_told_to_the_caller() {
    let mut switch = plain(2);
    switch.specs.remove(0);
    switch.rebuild();
    switch.send(0, vec![frame(host(1), host(0), 0)], T0);
    assert_eq!((switch.completed[0], switch.detached), (1, 1));
    assert!(switch.take(1).is_empty());
}

#[test]
fn monitors_and_mirrors_see_copies() {
    let mirrored = Rules { mirror_egress: Some("p2".into()), ..Rules::default() };
    let mut switch = Switch::new(&[Rules::default(), mirrored, Rules::default()]);
    let watch = Monitor { of: 0, sent: true, received: false };
    let monitor = switch.add(Rules::default(), 1, Some(watch));
    for id in 0..3 {
        switch.send(id, vec![frame(Mac::BROADCAST, host(id), 0)], T0);
    }
    (0..4).for_each(|id| drop(switch.take(id)));
    switch.send(0, vec![frame(host(1), host(0), 1)], T0);
    switch.send(1, vec![frame(host(0), host(1), 2)], T0);
    let numbers = |id| switch.take(id).iter().map(|f| f[59]).collect::<Vec<_>>();
    assert_eq!(numbers(monitor), [1], "what port 0 sends");
    assert_eq!(numbers(2), [1], "what port 1 receives");
    switch.assert_sums();
}

#[test]
fn a_lossy_receiver_loses_the_rest_and_delays_no_sender() {
    let mut switch = learned(3);
    switch.set_room(1, 2);
    let to = |n: u8| host(1 + u16::from(n % 2));
    switch.send(0, (0..20).map(|n| frame(to(n), host(0), n)).collect(), T0);
    assert_eq!((switch.take(1).len(), switch.take(2).len()), (2, 10));
    switch.assert_sums();
}

fn lossless_to_1() -> Switch {
    let lossless = Rules { lossless: true, ..Rules::default() };
    let mut switch = Switch::new(&[Rules::default(), lossless, Rules::default()]);
    for id in 0..3 {
        switch.send(id, vec![frame(Mac::BROADCAST, host(id), 0)], T0);
    }
    (0..3).for_each(|id| drop(switch.take(id)));
    switch.completed[0] = 0;
    switch
}

#[test]
fn a_lossless_receiver_stalls_its_sender_while_later_frames_to_others_pass() {
    let mut switch = lossless_to_1();
    switch.set_room(1, 2);
    let to = |n: u8| if n % 4 == 3 { Mac::BROADCAST } else { host(1 + u16::from(n % 2)) };
    switch.send(0, (0..20).map(|n| frame(to(n), host(0), n)).collect(), T0);
    let passed: Vec<u8> = switch.take(2).iter().map(|f| f[59]).collect();
    let others: Vec<u8> = (0..20).filter(|n| n % 4 == 3 || n % 2 == 1).collect();
    assert_eq!(passed, others, "in order, past the stalled ones");
    assert!(switch.completed[0] < 20, "the stalled frames are not given back");
    let mut got: Vec<u8> = Vec::new();
    let mut now = T0;
    while switch.held[0].is_some() {
        got.extend(switch.take(1).iter().map(|f| f[59]));
        now = now + 1000;
        switch.retry(0, now);
    }
    got.extend(switch.take(1).iter().map(|f| f[59]));
    let unicasts: Vec<u8> = got.into_iter().filter(|n| n % 4 != 3).collect();
    assert_eq!(unicasts, (0..20).filter(|n| n % 4 != 3 && n % 2 == 0).collect::<Vec<_>>());
    assert_eq!(switch.completed[0], 20);
    switch.assert_sums();
}

#[test]
fn a_receiver_that_makes_no_room_in_time_loses_the_frames() {
    let mut switch = lossless_to_1();
    switch.set_room(1, 0);
    switch.send(0, (0..5).map(|n| frame(host(1), host(0), n)).collect(), T0);
    switch.retry(0, T0 + (STALL_NS - 1));
    assert!(switch.held[0].is_some());
    switch.retry(0, T0 + STALL_NS);
    assert!(switch.held[0].is_none());
    assert_eq!(switch.dropped(0, DropReason::StallTimeout), 5);
    switch.assert_sums();
}

#[test]
fn a_sender_waits_as_long_as_its_receiver_frees_slots() {
    let mut switch = lossless_to_1();
    switch.set_room(1, 0);
    switch.send(0, (0..60).map(|n| frame(host(1), host(0), n)).collect(), T0);
    let mut now = T0;
    for slot in 1..=30 {
        switch.set_room(1, slot);
        now = now + (STALL_NS - 1);
        switch.retry(0, now);
        assert!(switch.held[0].is_some(), "{slot}");
    }
    assert_eq!(switch.dropped(0, DropReason::StallTimeout), 0);
    switch.retry(0, now + STALL_NS);
    assert!(switch.held[0].is_none());
    assert_eq!(switch.dropped(0, DropReason::StallTimeout), 30);
    assert_eq!(switch.completed[0], 60);
    switch.assert_sums();
}

#[test]
fn a_port_that_is_stalled_is_waited_for_again_once_it_has_room() {
    let mut switch = lossless_to_1();
    switch.set_room(1, 0);
    switch.send(0, vec![frame(host(1), host(0), 1)], T0);
    switch.retry(0, T0 + STALL_NS);
    assert!(switch.inboxes[1][0].counters.is_stalled());
    // The receiver counts as stalled, so no sender waits for it.
    switch.send(0, (0..5).map(|n| frame(host(1), host(0), n)).collect(), T0);
    assert!(switch.held[0].is_none());
    assert_eq!(switch.dropped(0, DropReason::StallTimeout), 6);
    // The port has room for one of the two frames.
    switch.set_room(1, 1);
    switch.send(0, (0..2).map(|n| frame(host(1), host(0), n)).collect(), T0);
    assert!(!switch.inboxes[1][0].counters.is_stalled() && switch.held[0].is_some());
    switch.set_room(1, 2);
    switch.retry(0, T0);
    assert_eq!(switch.take(1).len(), 2);
    assert_eq!(switch.dropped(0, DropReason::StallTimeout), 6);
    assert_eq!(switch.inboxes[1][0].counters.stalls.get(), 1);
    switch.assert_sums();
}

#[test]
fn frames_that_wait_for_a_port_that_goes_are_not_given_to_its_successor() {
    let mut switch = lossless_to_1();
    switch.set_room(1, 0);
    switch.send(0, vec![frame(host(1), host(0), 1)], T0);
    switch.specs[1].instance = 99;
    switch.rebuild();
    switch.set_room(1, 10);
    switch.retry(0, T0);
    assert!(switch.take(1).is_empty());
    assert_eq!(switch.dropped(0, DropReason::Detached), 1);
    switch.assert_sums();
}

#[test]
fn flows_stay_on_their_queue_and_spread_over_all() {
    let mut switch = Switch::with_queues(&[Rules::default(), Rules::default()], 4);
    switch.send(1, vec![frame(Mac::BROADCAST, host(1), 0)], T0);
    for _ in 0..2 {
        let from = |n: u8| Mac::local(1000 + u32::from(n));
        switch.send(0, (0..64).map(|n| frame(host(1), from(n), n)).collect(), T0);
    }
    let mut used = 0;
    for inbox in &switch.inboxes[1] {
        let numbers: Vec<u8> = inbox.frames.lock().unwrap().iter().map(|f| f[59]).collect();
        let (first, second) = numbers.split_at(numbers.len() / 2);
        assert_eq!(first, second, "a flow stays on its queue");
        used += usize::from(!numbers.is_empty());
    }
    assert!(used >= 3, "64 flows use most of 4 queues, not {used}");
}

proptest! {
    /// Compares the switch with an oracle of one rule. A frame goes to the port where its
    /// destination was last seen, or else to all other ports.
    #[test]
    fn a_plain_switch_is_a_learning_switch(
        batches in proptest::collection::vec(
            (0..5u16, proptest::collection::vec((0..7u16, 0..5u16), 1..40)), 1..20),
    ) {
        let policy = Rules { flap_guard: false, flood_limit: None, ..Rules::default() };
        let mut switch = Switch::new(&vec![policy; 5]);
        let mut table = std::collections::HashMap::new();
        for (port, pairs) in batches {
            let mut want = vec![Vec::new(); 5];
            let mut frames = Vec::new();
            for (n, (to, from)) in pairs.into_iter().enumerate() {
                let from = host(10 + from);
                // No host sends from addresses 5 and 6; 0 to 4 may have been seen as sources.
                let to = host(10 + to);
                table.insert(from, port);
                let frame = frame(to, from, n as u8);
                match table.get(&to) {
                    Some(there) if *there == port => (),
                    Some(there) => want[usize::from(*there)].push(frame.clone()),
                    None => (0..5).filter(|id| *id != usize::from(port))
                        .for_each(|id| want[id].push(frame.clone())),
                }
                frames.push(frame);
            }
            // Pass 1 looks destinations up one frame at a time, like the oracle.
            switch.send(port, frames, T0);
            for (id, want) in want.into_iter().enumerate() {
                prop_assert_eq!(switch.take(id as u16), want);
            }
        }
        switch.assert_sums();
    }
}

/// Objective: no sender chooses its VLAN by a second tag.
///
/// Steps: each kind of port sends each kind of tags to each kind of port. The received bytes are
/// compared with a table.
#[test]
fn regression_a_second_tag_never_becomes_the_first() {
    let trunk = |native: Option<u16>| Rules {
        vlan: VlanMode::Trunk { allowed: Vec::new(), native: native.map(vlan) },
        ..Rules::default()
    };
    let access = Rules { vlan: VlanMode::Access(vlan(10)), ..Rules::default() };
    // Senders: an access port, a trunk with a native VLAN, one without. The receivers are the same
    // kinds.
    let kinds = [access, trunk(Some(10)), trunk(None)];
    let bare = frame(Mac::BROADCAST, host(1), 7);
    let tags = |outer: &[u16]| outer.iter().rev().fold(bare.clone(), |f, tci| tagged(f, *tci));
    let service = |ethertype: [u8; 2], mut frame: Vec<u8>| {
        frame[12..14].copy_from_slice(&ethertype);
        frame
    };
    let (plain, ten, double) = (tags(&[]), tags(&[10]), tags(&[10, 20]));
    let (s_tag, old_s_tag) = (service([0x88, 0xa8], tags(&[20])), service([0x91, 0], tags(&[20])));
    let none = None::<Vec<u8>>;
    let untagged = [Some(plain.clone()), Some(plain.clone()), Some(ten.clone())];
    let nowhere = [none.clone(), none.clone(), none.clone()];
    let behind_ten =
        |inner: &Vec<u8>| [none.clone(), none.clone(), Some(tagged(inner.clone(), 10))];
    let only_tagged = [none.clone(), none.clone(), Some(double.clone())];
    let cases = [
        ("no tag", plain.clone(), [untagged.clone(), untagged.clone(), nowhere.clone()]),
        ("a priority", tags(&[0]), [untagged.clone(), untagged.clone(), nowhere.clone()]),
        ("VLAN 10", ten.clone(), [nowhere.clone(), untagged.clone(), untagged.clone()]),
        ("10, 20", double.clone(), [nowhere.clone(), only_tagged.clone(), only_tagged.clone()]),
        ("0, 20", tags(&[0, 20]), [only_tagged.clone(), only_tagged.clone(), nowhere.clone()]),
        ("S-tag", s_tag.clone(), [behind_ten(&s_tag), behind_ten(&s_tag), nowhere.clone()]),
        ("0x9100", old_s_tag.clone(), [behind_ten(&old_s_tag), behind_ten(&old_s_tag), nowhere]),
    ];
    for (what, sent, expected) in cases {
        for (from, expected) in expected.into_iter().enumerate() {
            let mut switch = Switch::new(&[&kinds[..], &kinds[..]].concat());
            // Sends the frame as a flood, then as a unicast to each port.
            switch.send(from as u16, vec![sent.clone()], T0);
            for (to, expected) in expected.iter().enumerate() {
                let got = switch.take(3 + to as u16);
                assert_eq!(got.first(), expected.as_ref(), "{what}: {from} to {to}");
            }
            for (to, expected) in expected.iter().enumerate() {
                assert!(switch.fdb.add_static(10, host(40 + to as u16), 3 + to as u16, T0));
                let mut sent = sent.clone();
                sent[..6].copy_from_slice(&host(40 + to as u16).octets());
                switch.send(from as u16, vec![sent], T0);
                let got = switch.take(3 + to as u16);
                let expected = expected.as_ref().map(|frame| frame[6..].to_vec());
                assert_eq!(
                    got.first().map(|f| f[6..].to_vec()),
                    expected,
                    "{what}: {from} to {to}"
                );
            }
            switch.assert_sums();
        }
    }
    let mut switch = Switch::new(&[kinds[1].clone(), kinds[0].clone()]);
    switch.send(0, vec![tags(&[0, 20])], T0);
    assert_eq!(switch.dropped(0, DropReason::DoubleTag), 1);
}
