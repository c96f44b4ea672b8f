//! Paths as a routing daemon tells them, from messages of any bytes: they are refused or taken, and
//! the table that follows from them names known hosts only, whatever their order.
//!
//! Input: messages, each behind its length (two bytes); the length's highest bit is a local event.
#![no_main]

use std::collections::HashSet;
use std::net::Ipv4Addr;

use evpn::gobgp::WatchEventResponse;
use evpn::path;
use evpn::rib::{Limits, Rib};
use evpn::route::{Key, RouteTarget};
use evpn::segment::{SegmentConfig, TableChange};
use frame::Mac;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|input: &[u8]| {
    // The same bytes are also tried as a route.
    if let Some((key, vni)) = Key::decode(input) {
        let again = Key::decode(&key.encode(vni.unwrap_or(0))).expect("what is written is read");
        assert_eq!(again.0, key);
    }
    let own = Ipv4Addr::new(10, 99, 0, 5);
    let mut rib = Rib::new(own, own.into(), Limits { per_host: 16, routes: 64 });
    let rt = vec![RouteTarget::auto(65000, 100)];
    let config = SegmentConfig { vni: 100, import: rt.clone(), export: rt, ..Default::default() };
    rib.add_segment(config, 0);
    let (mut rest, mut now, mut known) = (input, 0, HashSet::new());
    while let Some((len, after)) = rest.split_first_chunk() {
        let len = u16::from_be_bytes(*len);
        let (bytes, after) = after.split_at(after.len().min((len & 0x7fff).into()));
        (rest, now) = (after, now + 1000);
        if len & 0x8000 != 0 {
            local(&mut rib, bytes, now);
        } else if let Ok(message) = WatchEventResponse::decode(bytes) {
            let paths = message.table.iter().flat_map(|table| &table.paths);
            paths.for_each(|path| rib.take(path::read(path), now));
        }
        follow(&mut rib, &mut known);
        rib.tick(now);
        rib.take_changed().iter().for_each(|(route, _)| {
            assert!(Key::decode(&route.nlri()).is_some());
            let _ = route.attributes();
        });
        assert!(rib.route_count() <= 64);
    }
    rib.lost_daemon();
    rib.sweep(now);
    follow(&mut rib, &mut known);
    assert_eq!(rib.route_count(), 0, "nothing confirmed them");
    let _ = (rib.macs(), rib.vteps(), rib.route_list(), rib.take_notices());
});

/// Adds and removes local stations.
fn local(rib: &mut Rib, bytes: &[u8], now: u64) {
    for [what, number] in bytes.as_chunks::<2>().0 {
        let mac = Mac::local(u32::from(*number));
        match what % 4 {
            0 => rib.went(100, mac),
            1 => rib.came(100, mac, true, now),
            2 if what & 4 == 0 => drop(rib.release(100, mac)),
            2 => rib.claims(100, mac, Ipv4Addr::new(10, 0, 0, *number).into()),
            _ => rib.came(100, mac, false, now),
        }
    }
}

/// Follows the changes. A station may be behind a host only after the tunnel was told of that host.
fn follow(rib: &mut Rib, known: &mut HashSet<u16>) {
    while let Some((_, change)) = rib.next_change() {
        match change {
            TableChange::Hosts { peers, flooded } => {
                let numbered = peers.iter().zip(1..).filter(|(ip, _)| !ip.is_unspecified());
                *known = numbered.map(|(_, number)| number).collect();
                assert!(flooded.iter().all(|number| known.contains(number)));
            }
            TableChange::Owners(owners) => assert!(owners.len() <= 512),
            TableChange::Stations(stations) => {
                assert!(stations.iter().all(|s| s.via == 0 || known.contains(&s.via)));
            }
        }
    }
}
