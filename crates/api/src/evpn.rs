//! EVPN, as the daemon reports it. The crate `evpn` writes these objects; a test of `toklat` reads
//! them as these types.

use std::net::IpAddr;

use frame::Mac;
use serde::{Deserialize, Serialize};

/// The state of EVPN on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnInfo {
    /// The routing daemon answers.
    pub connected: bool,
    /// The reason why the routing daemon does not answer.
    pub trouble: Option<String>,
    /// How often the routing daemon was lost.
    pub restarts: u64,
    /// Routes of other hosts.
    pub routes: u64,
    /// Routes that were not confirmed since the daemon was lost.
    pub stale: u64,
    /// Routes of this host.
    pub own: u64,
    /// Events since the start.
    pub counters: EvpnCounters,
    /// The neighbours.
    pub neighbors: Vec<EvpnSession>,
    /// The hosts of all segments.
    pub vteps: Vec<EvpnHost>,
}

/// Routes that were not taken, and other events, since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnCounters {
    /// Updates that were taken.
    pub updates: u64,
    /// Withdrawals of routes that were there.
    pub withdrawals: u64,
    /// Routes that are malformed.
    pub malformed: u64,
    /// Routes for another kind of tunnel.
    pub other_tunnel: u64,
    /// Routes whose host is not valid: this host, an address of another IP version, a group.
    pub bad_host: u64,
    /// Routes beyond a limit.
    pub over_limit: u64,
    /// New routes of hosts that had withdrawn too many.
    pub damped: u64,
    /// Choices of stations that did not get into the table, as their segment has too many hosts.
    pub no_number: u64,
    /// Moves of stations between this host and others.
    pub moves: u64,
    /// Stations that stayed where they were because they moved too often.
    pub duplicates: u64,
}

/// A BGP neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnSession {
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

/// A host of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnHost {
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
    pub damped: bool,
}

/// A station of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnStation {
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
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnRoute {
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
    pub targets: Vec<String>,
    /// The station never moves.
    pub sticky: bool,
    /// The number of the station's moves.
    pub sequence: u32,
    /// A segment of this host uses the route.
    pub used: bool,
    /// The route was not confirmed since the routing daemon was lost.
    pub stale: bool,
}
