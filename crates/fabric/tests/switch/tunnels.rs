//! Ports with other hosts behind them: what the switch learns of those, and what it never sends
//! from one to another.

use ::frame::Mac;
use port::DropReason;
use toklat_fabric::{Origin, Rules, Station, VlanMode};

use super::harness::{Switch, frame, host, tagged};
use super::{T0, plain, vlan};

/// A switch whose ports in `tunnels` are tunnels.
fn with_tunnels(ports: usize, tunnels: &[u16]) -> Switch {
    let mut switch = plain(ports);
    tunnels.iter().for_each(|id| switch.specs[usize::from(*id)].tunnel = true);
    switch.rebuild();
    switch
}

fn station(switch: &Switch, mac: Mac) -> Option<Station> {
    switch.fdb.lookup(0, mac.word())
}

#[test]
fn sources_are_learned_by_the_host_that_sent_them() {
    let mut switch = with_tunnels(2, &[1]);
    let far = [Mac::local(100), Mac::local(101)];
    let frames = [(far[0], 7), (far[1], 8), (far[0], 7), (far[1], 8)];
    let frames = frames.map(|(from, via)| (frame(host(0), from, 1), via));
    switch.send_by(1, frames.into(), T0);
    assert_eq!(station(&switch, far[0]), Some(Station::behind(1, 7, Origin::Tunnel)));
    assert_eq!(station(&switch, far[1]), Some(Station::behind(1, 8, Origin::Tunnel)));
    assert_eq!(switch.take(0).len(), 4);
    // The station moves to another host: within a batch, and between two of them.
    let moved = vec![(frame(host(0), far[0], 1), 7), (frame(host(0), far[0], 2), 8)];
    switch.send_by(1, moved, T0);
    assert_eq!(station(&switch, far[0]), Some(Station::behind(1, 8, Origin::Tunnel)));
    switch.send_by(1, vec![(frame(host(0), far[0], 3), 7)], T0);
    assert_eq!(station(&switch, far[0]), Some(Station::behind(1, 7, Origin::Tunnel)));
    switch.assert_sums();
}

#[test]
fn a_known_station_behind_a_tunnel_gets_its_frames_there_and_nowhere_else() {
    let mut switch = with_tunnels(3, &[2]);
    let far = Mac::local(100);
    switch.send_by(2, vec![(frame(Mac::BROADCAST, far, 0), 1)], T0);
    assert_eq!([0, 1, 2].map(|id| switch.take(id).len()), [1, 1, 0]);
    switch.send(0, vec![frame(far, host(0), 1)], T0);
    assert_eq!([0, 1, 2].map(|id| switch.take(id).len()), [0, 0, 1]);
    switch.assert_sums();
}

#[test]
fn what_a_tunnel_brought_goes_into_no_tunnel() {
    let mut switch = with_tunnels(4, &[2, 3]);
    let [far, other] = [Mac::local(100), Mac::local(101)];
    switch.send_by(3, vec![(frame(host(0), other, 0), 1)], T0);
    switch.take(0);
    for port in [1, 2] {
        switch.take(port);
    }
    // Destinations: flooded, unknown, behind the other tunnel, behind the same one.
    let to = [Mac::BROADCAST, Mac::local(99), other];
    let frames = to.map(|to| (frame(to, far, 0), 1));
    switch.send_by(2, frames.into(), T0);
    assert_eq!([0, 1, 2, 3].map(|id| switch.take(id).len()), [2, 2, 0, 0]);
    assert_eq!(switch.dropped(2, DropReason::Protected), 1);
    switch.send_by(2, vec![(frame(far, Mac::local(102), 0), 9)], T0);
    assert_eq!(switch.dropped(2, DropReason::SamePort), 1);
    switch.assert_sums();
}

#[test]
fn a_station_at_home_is_not_taken_away_by_a_tunnel() {
    let mut switch = with_tunnels(3, &[2]);
    switch.send(0, vec![frame(Mac::BROADCAST, host(0), 0)], T0);
    switch.send_by(2, vec![(frame(Mac::BROADCAST, host(0), 0), 1)], T0);
    assert_eq!(station(&switch, host(0)), Some(Station::at(0, Origin::Learned)));
    // From the tunnel to a local port, the station moves at once.
    let far = Mac::local(100);
    switch.send_by(2, vec![(frame(Mac::BROADCAST, far, 0), 1)], T0);
    switch.send(0, vec![frame(Mac::BROADCAST, far, 0)], T0);
    assert_eq!(station(&switch, far), Some(Station::at(0, Origin::Learned)));
}

#[test]
fn a_tunnel_is_a_member_of_a_vlan_as_others_are() {
    let policy = |mode| Rules { vlan: mode, ..Rules::default() };
    let access = || policy(VlanMode::Access(vlan(10)));
    let trunk = policy(VlanMode::Trunk { allowed: vec![vlan(10)], native: None });
    let mut switch = Switch::new(&[trunk, access(), policy(VlanMode::Unaware)]);
    switch.specs[1].tunnel = true;
    switch.rebuild();
    let far = Mac::local(100);
    switch.send_by(1, vec![(frame(Mac::BROADCAST, far, 0), 5)], T0);
    assert_eq!(switch.take(0), vec![tagged(frame(Mac::BROADCAST, far, 0), 10)]);
    let there = switch.fdb.lookup(10, far.word());
    assert_eq!(there, Some(Station::behind(1, 5, Origin::Tunnel)));
    switch.send(0, vec![tagged(frame(far, host(0), 1), 10)], T0);
    assert_eq!(switch.take(1), vec![frame(far, host(0), 1)]);
    assert!(switch.take(2).is_empty());
    switch.assert_sums();
}
