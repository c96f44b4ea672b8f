//! EVPN: how this host tells others which stations it has, by a BGP daemon.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// EVPN (RFC 7432, RFC 8365): which stations are behind which host, by GoBGP. Once for a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Evpn {
    /// This host's AS, 1 to 4,294,967,295.
    #[serde(rename = "as")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub asn: u32,
    /// Its router id, which no other host has.
    pub router_id: Ipv4Addr,
    /// Its address in the network between the hosts.
    pub vtep: IpAddr,
    /// Where GoBGP's API is: `spawn` to start gobgpd and look after it, or the socket of one that
    /// runs, as in `unix:///run/gobgp/api.sock`.
    #[serde(default = "spawn")]
    pub daemon: String,
    /// The program to start: gobgpd of version 4 or later.
    #[serde(default = "gobgpd")]
    pub program: String,
    /// Seconds for which neighbours keep this host's routes while gobgpd restarts, 1 to 4095.
    #[serde(default = "restart_time")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 4095)))]
    pub graceful_restart_s: u16,
    /// Most stations that another host may advertise.
    #[serde(default = "stations")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub max_stations_per_host: u32,
    /// The network namespace of the tunnels and of gobgpd: a name in /run/netns, a process id or an
    /// absolute path. Without, the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Route reflectors, leaf switches or other hosts.
    #[serde(default)]
    pub neighbor: Vec<EvpnNeighbor>,
}

/// A BGP neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnNeighbor {
    /// Its address.
    pub address: IpAddr,
    /// Its AS, if that is another one than this host's.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    pub asn: Option<u32>,
    /// Hops to it, if it is in another AS and not on the same link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub multihop: Option<u8>,
    /// Seconds without a message after which it is taken for dead, at least 3.
    #[serde(default = "hold_time")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 3)))]
    pub hold_time_s: u16,
    /// Detects its death faster, by BFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<EvpnBfd>,
    /// The session's password (RFC 2385).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// Detection of a dead neighbour by BFD (RFC 5880).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnBfd {
    /// Milliseconds between two packets, 10 to 60,000.
    #[cfg_attr(feature = "schemars", schemars(range(min = 10, max = 60_000)))]
    pub interval_ms: u32,
    /// How many may be missed.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub multiplier: u8,
}

fn spawn() -> String {
    "spawn".into()
}

fn gobgpd() -> String {
    Evpn::PROGRAM.into()
}

const fn restart_time() -> u16 {
    120
}

const fn hold_time() -> u16 {
    9
}

const fn stations() -> u32 {
    131_072
}

impl Evpn {
    /// The program that is started unless another one is named.
    pub const PROGRAM: &str = "gobgpd";

    /// The socket of a daemon that somebody else runs.
    #[must_use]
    pub fn socket(&self) -> Option<&str> {
        self.daemon.strip_prefix("unix://")
    }

    /// Checks each setting.
    ///
    /// # Errors
    /// Names the first that cannot be.
    pub fn check(&self) -> Result<(), Invalid> {
        let wrong = |what: String, remedy: &str| Err(Invalid::new(format!("evpn: {what}"), remedy));
        let is_nobody = |ip: &IpAddr| ip.is_unspecified() || ip.is_multicast();
        if self.asn == 0 || self.router_id.is_unspecified() {
            return wrong("AS 0 and router id 0.0.0.0 are nobody's".into(), "choose others");
        }
        if is_nobody(&self.vtep) {
            let what = format!("vtep {} is no address of one host", self.vtep);
            return wrong(what, "name the address of this host between the hosts");
        }
        if self.daemon != "spawn" && self.socket().is_none_or(str::is_empty) {
            let what = format!("daemon {:?} is neither \"spawn\" nor a socket", self.daemon);
            return wrong(what, "write \"unix:///run/gobgp/api.sock\" for a socket");
        }
        if !(1..=4095).contains(&self.graceful_restart_s) || self.max_stations_per_host == 0 {
            let what = "graceful_restart_s is 1 to 4095, max_stations_per_host at least 1".into();
            return wrong(what, "correct them");
        }
        let mut seen = BTreeSet::from([self.vtep]);
        for neighbor in &self.neighbor {
            let address = neighbor.address;
            if is_nobody(&address) || !seen.insert(address) {
                let what = format!("the neighbour {address} is named twice, this host or nobody");
                return wrong(what, "name each of the others once");
            }
            if neighbor.hold_time_s < 3 || neighbor.asn == Some(0) || neighbor.multihop == Some(0) {
                let what =
                    format!("{address}: hold_time_s is at least 3, as and multihop at least 1");
                return wrong(what, "correct them");
            }
            let odd =
                |bfd: &EvpnBfd| !(10..=60_000).contains(&bfd.interval_ms) || bfd.multiplier == 0;
            if neighbor.bfd.as_ref().is_some_and(odd) {
                let what =
                    format!("{address}: BFD's interval_ms is 10 to 60,000, multiplier at least 1");
                return wrong(what, "correct them");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_named() {
        let good = r#"{"as": 65000, "router_id": "10.0.0.1", "vtep": "10.0.0.1",
            "neighbor": [{"address": "10.0.0.9", "bfd": {"interval_ms": 300, "multiplier": 3}}]}"#;
        let read = |from: &str, to: &str| {
            let text = good.replace(from, to);
            assert!(from.is_empty() || text != good, "{from}");
            serde_json::from_str::<Evpn>(&text).unwrap().check()
        };
        assert_eq!(read("", ""), Ok(()));
        for (from, to, what) in [
            ("65000", "0", "AS 0"),
            (r#""vtep": "10.0.0.1""#, r#""vtep": "224.0.0.1""#, "vtep 224"),
            (r#""as""#, r#""daemon": "tcp://x", "as""#, "neither"),
            (r#""as""#, r#""daemon": "unix://", "as""#, "neither"),
            (r#""as""#, r#""graceful_restart_s": 5000, "as""#, "4095"),
            ("10.0.0.9", "10.0.0.1", "neighbour 10.0.0.1"),
            (r#""bfd""#, r#""hold_time_s": 2, "bfd""#, "hold_time_s"),
            ("300", "3", "interval_ms"),
        ] {
            let error = read(from, to).unwrap_err();
            assert!(error.reason.contains(what), "{to}: {error}");
        }
    }
}
