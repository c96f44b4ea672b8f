//! Routes and what follows from them: moves, claims, duplicates, limits, restarts.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use evpn::path::{Event, Unusable, Update};
use evpn::rib::{Limits, Notice, Rib};
use evpn::route::{Key, Mobility, RouteTarget, distinguisher};
use evpn::segment::{MAX_HOSTS, MAX_MOVES, SegmentConfig, Station, TableChange, WINDOW_MS};
use frame::Mac;
use proptest::prelude::*;

const VNI: u32 = 100;

fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, n)
}

/// The host under test is number 5.
fn rib() -> Rib {
    rib_with(Limits::default())
}

fn rib_with(limits: Limits) -> Rib {
    let mut rib = Rib::new(host(5), host(5).into(), limits);
    rib.add_segment(segment(), 0);
    rib
}

fn segment() -> SegmentConfig {
    let rt = vec![RouteTarget::auto(65000, VNI)];
    SegmentConfig { vni: VNI, import: rt.clone(), export: rt, ..SegmentConfig::default() }
}

fn mac(n: u32) -> Mac {
    Mac::local(n)
}

fn key(from: u8, station: u32) -> Key {
    Key::Mac { rd: distinguisher(host(from), 100), tag: 0, mac: mac(station), ip: None }
}

fn route(from: u8, station: u32, sequence: u32, sticky: bool) -> Update {
    Update {
        key: key(from, station),
        vtep: host(from).into(),
        vni: VNI,
        targets: vec![RouteTarget::auto(65000, VNI)],
        mobility: Mobility { sticky, sequence },
    }
}

fn floods(from: u8) -> Update {
    let rd = distinguisher(host(from), 100);
    let key = Key::Multicast { rd, tag: 0, ip: host(from).into() };
    Update { key, ..route(from, 0, 0, false) }
}

/// A switch's table and tunnel, as the changes make them.
#[derive(Default)]
struct Table {
    peers: Vec<IpAddr>,
    flooded: Vec<u16>,
    stations: HashMap<Mac, Station>,
    owners: HashMap<IpAddr, Mac>,
}

impl Table {
    fn follow(&mut self, rib: &mut Rib) {
        while let Some((vni, change)) = rib.next_change() {
            assert_eq!(vni, VNI);
            match change {
                TableChange::Hosts { peers, flooded } => {
                    (self.peers, self.flooded) = (peers, flooded);
                }
                TableChange::Stations(list) => {
                    for station in list {
                        match station.via {
                            0 => self.stations.remove(&station.mac),
                            _ => self.stations.insert(station.mac, station),
                        };
                    }
                }
                TableChange::Owners(list) => {
                    for (ip, owner) in list {
                        match owner {
                            None => self.owners.remove(&ip),
                            Some(mac) => self.owners.insert(ip, mac),
                        };
                    }
                }
            }
        }
    }

    fn at(&self, n: u32) -> Option<IpAddr> {
        let station = self.stations.get(&mac(n))?;
        Some(self.peers[usize::from(station.via) - 1])
    }
}

/// Takes the own routes that changed: station, withdrawn, mobility.
fn own(rib: &mut Rib) -> Vec<(Mac, bool, Mobility)> {
    let changed = rib.take_changed().into_iter();
    let station = |(route, withdrawn): (evpn::route::OwnRoute, bool)| match route.key {
        Key::Mac { mac, .. } => Some((mac, withdrawn, route.mobility)),
        Key::Multicast { .. } => None,
    };
    changed.filter_map(station).collect()
}

fn take(rib: &mut Rib, update: Update) {
    rib.take(Ok(Event::Update(update)), 0);
}

#[test]
fn hosts_and_stations_come_before_what_is_behind_them_and_go_after_it() {
    let (mut rib, mut table) = (rib(), Table::default());
    take(&mut rib, route(1, 7, 0, false));
    take(&mut rib, floods(1));
    let order: Vec<_> = std::iter::from_fn(|| rib.next_change()).collect();
    assert!(matches!(order[..], [(_, TableChange::Hosts { .. }), (_, TableChange::Stations(_))]));
    rib.take(Ok(Event::Withdraw(key(1, 7))), 0);
    rib.take(Ok(Event::Withdraw(floods(1).key)), 0);
    let order: Vec<_> = std::iter::from_fn(|| rib.next_change()).collect();
    let [.., (_, TableChange::Hosts { peers, .. })] = &order[..] else { panic!("{order:?}") };
    assert!(peers.is_empty());
    table.follow(&mut rib);
    assert!(table.stations.is_empty());
}

#[test]
fn a_station_that_moves_here_is_advertised_and_one_that_moves_away_is_withdrawn() {
    let (mut rib, mut table) = (rib(), Table::default());
    take(&mut rib, route(1, 7, 4, false));
    table.follow(&mut rib);
    assert_eq!(table.at(7), Some(host(1).into()));
    let _ = own(&mut rib);
    rib.came(VNI, mac(7), false, 0);
    let fifth = Mobility { sticky: false, sequence: 5 };
    assert_eq!(own(&mut rib), [(mac(7), false, fifth)], "one move more");
    // The old host's route is still there for a moment, and changes nothing.
    take(&mut rib, route(1, 7, 4, false));
    assert!(own(&mut rib).is_empty());
    // A new daemon does not know that the station was elsewhere.
    let fresh = rib.own_routes().into_iter().find(|route| route.key == key(5, 7)).unwrap();
    assert_eq!(fresh.mobility, fifth);
    take(&mut rib, route(2, 7, 6, false));
    assert_eq!(own(&mut rib), [(mac(7), true, fifth)]);
    table.follow(&mut rib);
    assert_eq!(table.at(7), Some(host(2).into()));
    assert!(table.stations[&mac(7)].moved, "the entry of the local port gives way");
}

/// Objective: this host, the daemon and other hosts agree on how often a station has moved.
///
/// Steps: a station comes here; the daemon, which knows another host's route by then, counts a move
/// more; the other host, which knows that, claims the station again, or claims it no better.
#[test]
fn regression_moves_that_the_daemon_counted_hold_here() {
    for (theirs, stays) in [(3, false), (1, true)] {
        let (mut rib, mut table) = (rib(), Table::default());
        rib.claims(VNI, mac(7), [192, 168, 7, 7].into());
        rib.came(VNI, mac(7), false, 0);
        let _ = own(&mut rib);
        let counted = Mobility { sticky: false, sequence: 2 };
        rib.take(Ok(Event::Own(key(5, 7), counted)), 0);
        let told = (mac(7), false, counted);
        assert_eq!(own(&mut rib), [told, told], "also the route with its address");
        rib.take(Ok(Event::Own(key(5, 7), counted)), 0);
        rib.take(Ok(Event::Own(key(5, 7), Mobility::default())), 0);
        assert!(own(&mut rib).is_empty(), "nothing new");
        take(&mut rib, route(9, 7, theirs, false));
        table.follow(&mut rib);
        assert_eq!(table.at(7).is_none(), stays, "against sequence {theirs}");
    }
}

#[test]
fn of_equal_claims_the_lowest_address_holds() {
    for (other, stays) in [(1, false), (9, true)] {
        let mut rib = rib();
        rib.came(VNI, mac(7), false, 0);
        take(&mut rib, route(other, 7, 0, false));
        let is_here = rib.macs().iter().any(|info| info.mac == mac(7) && info.host.is_none());
        assert_eq!(is_here, stays, "against host {other}");
    }
}

#[test]
fn sticky_stations_do_not_move() {
    let (mut rib, mut table) = (rib(), Table::default());
    rib.came(VNI, mac(1), true, 0);
    let sticky = Mobility { sticky: true, sequence: 0 };
    assert!(own(&mut rib).contains(&(mac(1), false, sticky)));
    take(&mut rib, route(1, 1, 99, true));
    assert!(own(&mut rib).is_empty(), "it stays here");
    assert!(matches!(rib.take_notices()[..], [Notice::Claimed { .. }]));
    // The sticky station is another host's, so a frame here does not move it.
    take(&mut rib, route(1, 2, 0, true));
    table.follow(&mut rib);
    assert!(table.stations[&mac(2)].sticky);
    rib.came(VNI, mac(2), false, 0);
    assert!(own(&mut rib).is_empty());
    table.follow(&mut rib);
    assert!(table.stations[&mac(2)].moved, "the local entry gives way");
}

#[test]
fn a_station_that_moves_too_often_stays_for_a_while() {
    let (mut rib, mut table) = (rib(), Table::default());
    let mut sequence = 0;
    take(&mut rib, route(1, 7, sequence, false));
    while rib.take_notices().is_empty() {
        rib.came(VNI, mac(7), false, 0);
        sequence += 2;
        assert!(sequence < 20, "without end");
        take(&mut rib, route(1, 7, sequence, false));
    }
    assert!(rib.counters().moves > u64::from(MAX_MOVES) && rib.counters().duplicates == 1);
    table.follow(&mut rib);
    assert!(table.stations[&mac(7)].sticky, "local frames do not move it");
    let _ = own(&mut rib);
    rib.came(VNI, mac(7), false, 1);
    assert!(own(&mut rib).is_empty());
    rib.tick(WINDOW_MS - 1);
    assert!(rib.macs()[0].duplicate);
    rib.tick(WINDOW_MS);
    table.follow(&mut rib);
    assert!(!table.stations[&mac(7)].sticky && !rib.macs()[0].duplicate);
    rib.came(VNI, mac(7), false, WINDOW_MS);
    assert_eq!(own(&mut rib).len(), 1, "it may move again");
}

#[test]
fn a_host_has_no_more_stations_than_it_may_and_costs_others_none() {
    let mut rib = rib_with(Limits { per_host: 10, routes: 15 });
    (0..100).for_each(|n| take(&mut rib, route(1, n, 0, false)));
    assert_eq!(rib.route_count(), 10);
    assert_eq!(rib.take_notices(), [Notice::TooMany { host: host(1).into() }], "said once");
    (0..100).for_each(|n| take(&mut rib, route(2, 1000 + n, 0, false)));
    assert_eq!((rib.route_count(), rib.counters().over_limit), (15, 185));
    let ignored: Vec<u64> = rib.vteps().iter().map(|vtep| vtep.ignored).collect();
    assert_eq!(ignored, [90, 95]);
    rib.take(Ok(Event::Withdraw(key(1, 0))), 0);
    take(&mut rib, route(1, 50, 0, false));
    assert_eq!(rib.route_count(), 15, "there is room again");
}

/// Objective: a host that advertises and withdraws without end costs others nothing, and gets all
/// of its routes back when it has rested.
///
/// Steps: a host flaps with as many stations as it may have; it is damped, another host is not;
/// time passes.
#[test]
fn a_host_that_flaps_is_damped_for_a_while_and_its_routes_are_asked_for_again() {
    let mut rib = rib_with(Limits { per_host: 10, routes: 100 });
    take(&mut rib, floods(1));
    for _ in 0..3 {
        (0..10).for_each(|n| take(&mut rib, route(1, n, 0, false)));
        (0..10).for_each(|n| rib.take(Ok(Event::Withdraw(key(1, n))), 0));
    }
    assert_eq!(rib.take_notices(), [Notice::Damped { host: host(1).into() }]);
    take(&mut rib, route(1, 1, 0, false));
    take(&mut rib, route(2, 2, 0, false));
    assert_eq!((rib.route_count(), rib.counters().damped), (2, 1), "floods and host 2's station");
    let damped = |rib: &Rib| rib.vteps().iter().find(|v| v.address == host(1)).unwrap().damped;
    rib.tick(WINDOW_MS - 1);
    assert!(damped(&rib) && !rib.take_refresh());
    rib.tick(WINDOW_MS);
    assert!(!damped(&rib) && rib.take_refresh() && !rib.take_refresh());
    take(&mut rib, route(1, 1, 0, false));
    assert_eq!(rib.route_count(), 3);
}

#[test]
fn hosts_beyond_the_numbers_of_a_segment_are_counted_and_said_once() {
    let mut rib = rib();
    for n in 0..=MAX_HOSTS as u32 {
        let at = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 98, 0, 1)) + n);
        let key = Key::Mac { rd: distinguisher(at, 100), tag: 0, mac: mac(n), ip: None };
        take(&mut rib, Update { key, vtep: at.into(), ..route(1, n, 0, false) });
    }
    let mut table = Table::default();
    table.follow(&mut rib);
    assert_eq!((table.stations.len(), rib.counters().no_number), (MAX_HOSTS, 1));
    rib.tick(0);
    rib.tick(1);
    assert_eq!(rib.take_notices(), [Notice::TooManyHosts { vni: VNI }]);
    rib.remove_segment(VNI);
    assert_eq!(rib.counters().no_number, 1);
}

#[test]
fn a_damped_host_is_shown_without_routes_and_its_count_of_ignored_ones_only_rises() {
    let mut rib = rib_with(Limits { per_host: 10, routes: 100 });
    for _ in 0..3 {
        (0..10).for_each(|n| take(&mut rib, route(1, n, 0, false)));
        (0..10).for_each(|n| rib.take(Ok(Event::Withdraw(key(1, n))), 0));
    }
    take(&mut rib, route(1, 1, 0, false));
    // The number of the host is free again.
    let table = &mut Table::default();
    table.follow(&mut rib);
    let shown = |rib: &Rib| {
        let all = rib.vteps();
        let infos = all.iter().filter(|info| info.address == host(1));
        infos.map(|info| (info.vni, info.stations, info.ignored, info.damped)).collect::<Vec<_>>()
    };
    assert_eq!(shown(&rib), [(VNI, 0, 1, true)]);
    rib.tick(WINDOW_MS);
    assert!(rib.take_refresh());
    assert_eq!(shown(&rib), [(VNI, 0, 1, false)], "asked for, and still counted");
    (0..11).for_each(|n| take(&mut rib, route(1, n, 0, false)));
    assert_eq!(shown(&rib), [(VNI, 10, 2, false)]);
}

#[test]
fn routes_beyond_a_limit_are_asked_for_when_there_is_room_but_not_often() {
    let mut rib = rib_with(Limits { per_host: 8, routes: 100 });
    let mut now = WINDOW_MS;
    let overflow = |rib: &mut Rib, now| {
        (0..9).for_each(|n| take(rib, route(1, n, 0, false)));
        rib.tick(now);
        assert!(!rib.take_refresh(), "no room");
        (0..2).for_each(|n| rib.take(Ok(Event::Withdraw(key(1, n))), now));
        rib.tick(now);
        rib.take_refresh()
    };
    assert!(overflow(&mut rib, now));
    assert!((1..8).all(|_| !overflow(&mut rib, now)), "at most once in a while");
    now += WINDOW_MS;
    rib.tick(now);
    assert!(rib.take_refresh());
}

#[test]
fn regression_routes_that_all_hosts_have_no_room_for_are_not_asked_for() {
    let mut rib = rib_with(Limits { per_host: 100, routes: 10 });
    (0..10).for_each(|n| take(&mut rib, route(1, n, 0, false)));
    take(&mut rib, route(2, 20, 0, false));
    assert_eq!(rib.counters().over_limit, 1);
    rib.tick(WINDOW_MS);
    assert!(!rib.take_refresh());
    (0..3).for_each(|n| rib.take(Ok(Event::Withdraw(key(1, n))), 0));
    rib.tick(WINDOW_MS);
    assert!(rib.take_refresh());
}

#[test]
fn regression_a_host_gets_no_more_than_it_may_by_taking_over_routes() {
    let mut rib = rib_with(Limits { per_host: 2, routes: 100 });
    (0..2).for_each(|n| take(&mut rib, route(1, n, 0, false)));
    (2..4).for_each(|n| take(&mut rib, route(3, n, 0, false)));
    take(&mut rib, Update { vtep: host(1).into(), ..route(3, 2, 0, false) });
    assert_eq!((rib.route_count(), rib.counters().over_limit), (3, 1));
}

#[test]
fn regression_a_host_that_changes_its_routes_without_end_is_damped() {
    let mut rib = rib_with(Limits { per_host: 10, routes: 100 });
    (0..4).for_each(|n| (0..10).for_each(|station| take(&mut rib, route(1, station, n, false))));
    assert_eq!(rib.take_notices(), [Notice::Damped { host: host(1).into() }]);
    assert_eq!(rib.route_count(), 10, "those that it has stay");
}

#[test]
fn regression_a_sticky_route_that_was_sent_without_its_count_is_sent_again() {
    let mut rib = rib();
    rib.came(VNI, mac(1), true, 0);
    rib.take_changed();
    let said = |sticky| Ok(Event::Own(key(5, 1), Mobility { sticky, sequence: 4 }));
    rib.take(said(false), 0);
    let sent: Vec<_> = rib.take_changed().into_iter().map(|(route, _)| route.mobility).collect();
    assert_eq!(sent, [Mobility { sticky: true, sequence: 4 }]);
    rib.take(said(true), 0);
    assert!(rib.take_changed().is_empty());
}

#[test]
fn a_route_in_doubt_says_when_it_was_confirmed() {
    let mut rib = rib();
    take(&mut rib, route(1, 1, 0, false));
    rib.take(Ok(Event::Update(route(1, 1, 0, false))), 50);
    assert_eq!(rib.confirmed(), 0, "it was in no doubt");
    rib.doubt();
    rib.take(Ok(Event::Update(route(1, 1, 0, false))), 77);
    assert_eq!((rib.confirmed(), rib.stale()), (77, 0));
}

#[test]
fn a_million_stations_of_a_host_cost_no_more_than_its_limit() {
    let mut rib = rib_with(Limits { per_host: 1000, routes: 3000 });
    take(&mut rib, route(2, 1, 0, false));
    (0..1_000_000).for_each(|n| take(&mut rib, route(1, n, 0, false)));
    assert_eq!((rib.route_count(), rib.counters().over_limit), (1001, 999_000));
    assert_eq!(rib.take_notices().len(), 1, "said once");
    let mut table = Table::default();
    table.follow(&mut rib);
    assert_eq!(table.stations.len(), 1000, "station 1 is claimed by both");
    assert_eq!(table.at(1), Some(host(1).into()), "the lowest address holds");
}

#[test]
fn routes_of_no_host_for_other_segments_and_without_sense_change_nothing() {
    let (mut rib, mut table) = (rib(), Table::default());
    let with = |vtep: &str| Update { vtep: vtep.parse().unwrap(), ..route(1, 7, 0, false) };
    for vtep in ["10.99.0.5", "0.0.0.0", "224.0.0.1", "127.0.0.1", "fd99::1"] {
        take(&mut rib, with(vtep));
    }
    assert_eq!(rib.counters().bad_host, 5);
    take(&mut rib, Update { vni: 101, ..route(1, 8, 0, false) });
    take(&mut rib, Update { targets: vec![RouteTarget::auto(1, 1)], ..route(1, 9, 0, false) });
    rib.take(Err(Unusable::Malformed), 0);
    table.follow(&mut rib);
    assert!(table.stations.is_empty() && table.peers.is_empty());
    // A known station is nowhere once its route names an invalid host.
    take(&mut rib, route(1, 7, 0, false));
    take(&mut rib, with("10.99.0.5"));
    table.follow(&mut rib);
    assert!(table.stations.is_empty());
}

#[test]
fn what_a_lost_daemon_said_holds_until_it_is_confirmed_or_swept() {
    let (mut rib, mut table) = (rib(), Table::default());
    for station in 1..=3 {
        take(&mut rib, route(1, station, 0, false));
    }
    rib.lost_daemon();
    table.follow(&mut rib);
    assert_eq!((table.stations.len(), rib.stale()), (3, 3));
    take(&mut rib, route(1, 1, 0, false));
    take(&mut rib, route(2, 2, 1, false));
    rib.sweep(0);
    table.follow(&mut rib);
    assert_eq!(table.at(1), Some(host(1).into()));
    assert_eq!((table.at(2), table.at(3)), (Some(host(2).into()), None));
}

#[test]
fn entries_of_an_earlier_run_keep_their_numbers_and_go_unless_routes_confirm_them() {
    let mut rib = Rib::new(host(5), host(5).into(), Limits::default());
    let entry = |n, via| Station { mac: mac(n), via, sticky: false, moved: false };
    let hosts = vec![host(9).into(), host(2).into()];
    let earlier = vec![entry(1, 1), entry(2, 2), entry(3, 2)];
    rib.add_segment(
        SegmentConfig { hosts: hosts.clone(), stations: earlier.clone(), ..segment() },
        0,
    );
    let mut table = Table { peers: hosts, ..Table::default() };
    table.stations = earlier.into_iter().map(|station| (station.mac, station)).collect();
    table.follow(&mut rib);
    assert_eq!(table.stations.len(), 3);
    take(&mut rib, route(2, 2, 0, false));
    table.follow(&mut rib);
    assert_eq!(table.at(2), Some(host(2).into()));
    rib.sweep(0);
    table.follow(&mut rib);
    assert_eq!((table.stations.len(), table.at(2)), (1, Some(host(2).into())));
}

#[test]
fn own_routes_of_an_earlier_run_are_withdrawn() {
    let mut rib = rib();
    rib.came(VNI, mac(1), false, 0);
    let _ = rib.take_changed();
    let compare = |rib: &mut Rib, key| rib.take(Ok(Event::Own(key, Mobility::default())), 0);
    compare(&mut rib, key(5, 1));
    assert!(own(&mut rib).is_empty());
    compare(&mut rib, key(5, 2));
    assert_eq!(own(&mut rib), [(mac(2), true, Mobility::default())]);
    compare(&mut rib, key(6, 2));
    assert!(own(&mut rib).is_empty(), "another program's");
}

#[test]
fn a_reader_that_lost_events_says_all_stations() {
    let mut rib = rib();
    rib.came(VNI, mac(1), false, 0);
    rib.came(VNI, mac(2), false, 0);
    let _ = own(&mut rib);
    rib.set_local(VNI, &HashMap::from([(mac(2), false), (mac(3), true)]), 0);
    let mut changed = own(&mut rib);
    changed.sort();
    let sticky = Mobility { sticky: true, sequence: 0 };
    assert_eq!(changed, [(mac(1), true, Mobility::default()), (mac(3), false, sticky)]);
}

#[test]
fn addresses_go_with_their_stations_and_move_between_them() {
    let (mut rib, mut table) = (rib(), Table::default());
    let ip: IpAddr = [192, 168, 7, 1].into();
    let with_ip = |rib: &mut Rib| {
        let changed = rib.take_changed().into_iter();
        let mut routes: Vec<_> = changed
            .filter_map(|(route, withdrawn)| match route.key {
                Key::Mac { mac, ip: Some(_), .. } => Some((mac, withdrawn)),
                _ => None,
            })
            .collect();
        routes.sort();
        routes
    };
    rib.claims(VNI, mac(1), ip);
    assert!(with_ip(&mut rib).is_empty(), "no such station is here yet");
    rib.came(VNI, mac(1), false, 0);
    rib.came(VNI, mac(2), false, 0);
    assert_eq!(with_ip(&mut rib), [(mac(1), false)]);
    rib.claims(VNI, mac(2), ip);
    assert_eq!(with_ip(&mut rib), [(mac(1), true), (mac(2), false)]);
    rib.went(VNI, mac(2));
    assert_eq!(with_ip(&mut rib), [(mac(2), true)]);
    // This station is behind another host.
    let Key::Mac { rd, tag, mac: station, .. } = key(1, 7) else { unreachable!() };
    let there = Key::Mac { rd, tag, mac: station, ip: Some(ip) };
    take(&mut rib, route(1, 7, 0, false));
    take(&mut rib, Update { key: there, ..route(1, 7, 0, false) });
    table.follow(&mut rib);
    assert_eq!(table.owners, HashMap::from([(ip, mac(7))]));
    assert_eq!(table.at(7), Some(host(1).into()));
    rib.take(Ok(Event::Withdraw(there)), 0);
    table.follow(&mut rib);
    assert!(table.owners.is_empty() && table.at(7).is_some());
}

proptest! {
    /// Objective: what the table says depends on the routes that are there, not on the order in
    /// which they came.
    ///
    /// Steps: several hosts claim a few stations; the claims come in two orders, with claims that
    /// are withdrawn between them.
    #[test]
    fn the_order_of_routes_does_not_matter(
        claims in proptest::collection::vec((1..5u8, 0..4u32, 0..3u32, any::<bool>()), 1..30),
        order in any::<u64>(),
    ) {
        let mut last = HashMap::new();
        for (from, station, sequence, sticky) in &claims {
            last.insert((*from, *station), route(*from, *station, *sequence, *sticky));
        }
        let mut shuffled: Vec<_> = last.values().cloned().collect();
        shuffled.sort_by_key(|update| {
            let Key::Mac { mac, rd, .. } = update.key else { unreachable!() };
            (mac.word() ^ u64::from(rd[5])).wrapping_mul(order | 1)
        });
        let mut places = [claims.iter().map(|c| route(c.0, c.1, c.2, c.3)).collect(), shuffled]
            .map(|updates: Vec<Update>| {
                let (mut rib, mut table) = (rib(), Table::default());
                for update in updates {
                    take(&mut rib, update);
                    table.follow(&mut rib);
                }
                (0..4).map(|n| table.at(n)).collect::<Vec<_>>()
            });
        let second = places[1].clone();
        prop_assert_eq!(&mut places[0], &second);
    }
}
