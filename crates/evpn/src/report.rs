//! What operators see: hosts, stations, routes, neighbours.

use std::collections::HashSet;
use std::net::IpAddr;

use frame::Mac;
use serde::{Deserialize, Serialize};

use crate::rib::{Counters, Rib};
use crate::route::{Key, Mobility, RouteTarget};

/// A host of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VtepInfo {
    /// The segment; of a host without routes, that of its last one.
    pub vni: u32,
    /// Its address.
    pub address: IpAddr,
    /// The host's number in the tunnel, from 1; 0 for a host that has none of its routes in it.
    pub number: u16,
    /// Routes of stations behind the host.
    pub stations: u32,
    /// The host gets floods.
    pub floods: bool,
    /// Routes that were ignored because the host exceeded its limit, since the host is known.
    pub ignored: u64,
    /// The host has withdrawn too many routes, so new ones are refused for a while.
    #[serde(default)]
    pub damped: bool,
}

/// A station of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacInfo {
    /// The segment.
    pub vni: u32,
    /// Its address.
    pub mac: Mac,
    /// The station's host; `None` for this one.
    pub host: Option<IpAddr>,
    /// The station never moves.
    pub sticky: bool,
    /// The number of moves of the station, as routes count them.
    pub sequence: u32,
    /// The station's moves within the last three minutes.
    pub moves: u32,
    /// The station moved too often, and stays where it is.
    pub duplicate: bool,
}

/// A route of another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteInfo {
    /// 2 for a station, 3 for a host that wants floods.
    pub kind: u8,
    /// Its distinguisher.
    pub rd: String,
    /// The segment.
    pub vni: u32,
    /// The station.
    pub mac: Option<Mac>,
    /// The station's address, or the host that wants floods.
    pub ip: Option<IpAddr>,
    /// Its host.
    pub host: IpAddr,
    /// The targets to which the route is addressed.
    pub targets: Vec<RouteTarget>,
    /// The station never moves.
    pub sticky: bool,
    /// The number of the station's moves.
    pub sequence: u32,
    /// A segment of this host uses the route.
    pub used: bool,
    /// The route was not confirmed since the routing daemon was lost.
    pub stale: bool,
}

/// A BGP neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighborInfo {
    /// Its address.
    pub address: String,
    /// Its AS.
    #[serde(rename = "as")]
    pub asn: u32,
    /// The session's state (RFC 4271, 8.2.2), as `established`.
    pub state: String,
    /// Routes that the neighbour sent and that were accepted.
    pub received: u64,
    /// Routes that were sent to the neighbour.
    pub advertised: u64,
    /// How often the session went down.
    pub flaps: u32,
    /// The reason why the session last went down.
    pub reason: String,
}

impl NeighborInfo {
    /// True if the neighbour has a session.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == "established"
    }
}

/// The state of EVPN on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The routing daemon answers.
    pub connected: bool,
    /// The reason why the routing daemon does not answer.
    pub trouble: Option<String>,
    /// How often the routing daemon was lost.
    pub restarts: u64,
    /// Routes of other hosts.
    pub routes: usize,
    /// Routes that were not confirmed since the daemon was lost.
    pub stale: usize,
    /// Routes of this host.
    pub own: usize,
    /// Events since the start.
    pub counters: Counters,
    /// The neighbours.
    pub neighbors: Vec<NeighborInfo>,
    /// The hosts of all segments.
    pub vteps: Vec<VtepInfo>,
}

impl Summary {
    /// The number of neighbours with an established session.
    #[must_use]
    pub fn neighbors_up(&self) -> usize {
        self.neighbors.iter().filter(|neighbor| neighbor.is_up()).count()
    }

    /// How many hosts are in tunnels, each as often as it is.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.vteps.iter().filter(|vtep| vtep.number != 0).count()
    }
}

impl Rib {
    /// All hosts, by segment and number; then those whose routes are ignored and that are in no
    /// segment.
    #[must_use]
    pub fn vteps(&self) -> Vec<VtepInfo> {
        let info = |vni, (number, address, stations, floods)| {
            let share = self.shares.get(&address).copied().unwrap_or_default();
            let (ignored, damped) = (share.ignored, share.damped.is_some());
            VtepInfo { vni, address, number, stations, floods, ignored, damped }
        };
        let of = |(vni, segment): (&u32, &crate::segment::Segment)| {
            segment.hosts.each().map(|host| info(*vni, host)).collect::<Vec<_>>()
        };
        let mut all: Vec<VtepInfo> = self.segments.iter().flat_map(of).collect();
        let shown: HashSet<IpAddr> = all.iter().map(|info| info.address).collect();
        let others = self.shares.iter().filter(|(address, share)| {
            !shown.contains(address) && (share.damped.is_some() || share.ignored > 0)
        });
        let mut others: Vec<_> =
            others.map(|(address, share)| info(share.vni, (0, *address, 0, false))).collect();
        others.sort_by_key(|info| (info.vni, info.address));
        all.append(&mut others);
        all
    }

    /// All stations, by segment and address.
    #[must_use]
    pub fn macs(&self) -> Vec<MacInfo> {
        let mut all = Vec::new();
        for (vni, segment) in &self.segments {
            let info = |mac: Mac, host, Mobility { sticky, sequence }| {
                let (moves, duplicate) = (segment.moves_of(mac), segment.frozen.contains_key(&mac));
                MacInfo { vni: *vni, mac, host, sticky, sequence, moves, duplicate }
            };
            let local = segment.local.iter().map(|(mac, local)| {
                let (sticky, sequence) = (local.sticky, local.sequence);
                info(*mac, None, Mobility { sticky, sequence })
            });
            let remote = segment.table.keys().filter_map(|mac| {
                let best = segment.best(*mac, &self.routes)?;
                Some(info(*mac, Some(best.vtep), best.mobility))
            });
            all.extend(local.chain(remote));
        }
        all.sort_by_key(|info| (info.vni, info.mac.octets()));
        all
    }

    /// All routes of other hosts, by key.
    #[must_use]
    pub fn route_list(&self) -> Vec<RouteInfo> {
        let info = |(key, stored): (&Key, &crate::told::Stored)| {
            let update = &stored.update;
            let (kind, mac, ip) = match *key {
                Key::Mac { mac, ip, .. } => (2, Some(mac), ip),
                Key::Multicast { ip, .. } => (3, None, Some(ip)),
            };
            let used = self.segments.values().any(|segment| segment.takes(update));
            let Mobility { sticky, sequence } = update.mobility;
            let (vni, host, targets) = (update.vni, update.vtep, update.targets.clone());
            let (rd, stale) = (rd_text(key.rd()), stored.stale);
            RouteInfo { kind, rd, vni, mac, ip, host, targets, sticky, sequence, used, stale }
        };
        let mut routes: Vec<_> = self.routes.iter().collect();
        routes.sort_by_key(|(key, _)| **key);
        routes.into_iter().map(info).collect()
    }

    /// The number of this host's routes.
    #[must_use]
    pub fn own_count(&self) -> usize {
        self.segments.values().map(|segment| segment.local.len() + 1).sum()
    }

    /// The number of other hosts' routes.
    #[must_use]
    pub fn route_count(&self) -> usize {
        self.routes.len()
    }
}

/// A distinguisher as text (RFC 4364, 4.2).
fn rd_text(rd: crate::route::Distinguisher) -> String {
    let [_, kind, rest @ ..] = rd;
    crate::route::RouteTarget([kind, 2, rest[0], rest[1], rest[2], rest[3], rest[4], rest[5]])
        .to_string()
}
