//! Tunnels to other hosts.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use frame::Vni;
use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::place::in_namespace;
use crate::{Claim, Invalid, Kind, Policy};

/// A VXLAN tunnel (RFC 7348) to other hosts, which run toklat, the Linux kernel's VXLAN, or any
/// other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Vxlan {
    /// The segment (VNI), 1 to 16,777,215. A host can have one port in it for each local address.
    #[cfg_attr(feature = "clap", arg(id = "vxlan", long = "vxlan", value_name = "VNI"))]
    pub vni: Vni,
    /// This host's address in the underlay network; with EVPN, `[evpn]` says it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "IP", required_unless_present = "evpn"))]
    pub local: Option<IpAddr>,
    /// The other hosts' addresses there, 1 to 1,024; on the command line, give it once for each
    /// host.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long = "peer", value_name = "IP"))]
    #[cfg_attr(feature = "clap", arg(required_unless_present = "evpn", conflicts_with = "evpn"))]
    #[cfg_attr(feature = "schemars", schemars(length(max = Vxlan::MAX_PEERS)))]
    pub peers: Vec<IpAddr>,
    /// EVPN says which hosts there are, and which stations they have; needs `[evpn]` in the
    /// topology.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "clap", arg(long))]
    pub evpn: bool,
    /// Frames to stations that are not known are dropped, not sent to all hosts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "clap", arg(long))]
    pub drop_unknown: bool,
    /// Lower the segment sizes that TCP connections through the tunnel announce to what the inner
    /// MTU takes (MSS clamping): for stations with a larger MTU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "clap", arg(long))]
    pub clamp_mss: bool,
    /// With EVPN: questions for the IP addresses of other hosts' stations (ARP, ND) go to all
    /// hosts, and are not answered here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "clap", arg(long, requires = "evpn"))]
    pub no_suppress: bool,
    /// Route targets of routes that are taken, as in 65000:100. Without, the AS and the VNI.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "clap", arg(long = "import-rt", value_name = "RT", requires = "evpn"))]
    pub import_rt: Vec<String>,
    /// Route targets of own routes. Without, the AS and the VNI.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "clap", arg(long = "export-rt", value_name = "RT", requires = "evpn"))]
    pub export_rt: Vec<String>,
    /// The UDP port of all hosts.
    #[serde(default = "vxlan_port")]
    #[cfg_attr(feature = "clap", arg(id = "vxlan_port", long = "vxlan-port", value_name = "PORT"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = vxlan_port()))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u16).range(1..)))]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 65_535)))]
    pub port: u16,
    /// The tunnel's network namespace: a name in /run/netns, a process id or an absolute path.
    /// Default: the daemon's.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub netns: Option<String>,
}

const fn vxlan_port() -> u16 {
    frame::VXLAN_PORT
}

impl Vxlan {
    /// The maximum number of other hosts.
    pub const MAX_PEERS: usize = 1024;

    fn check_peers(&self, port: &str) -> Result<(), Invalid> {
        if self.evpn {
            return match self.peers.first() {
                None => Ok(()),
                Some(peer) => {
                    let reason =
                        format!("{port}: the peer {peer} is configured, and EVPN says the peers");
                    Err(Invalid::new(reason, "leave peers out, or evpn"))
                }
            };
        }
        check_range(port, "peers", self.peers.len() as u64, 1, Self::MAX_PEERS as u64)?;
        let Some(local) = self.local else {
            let reason = format!("{port}: the tunnel has no local address");
            return Err(Invalid::new(reason, "name this host's address between the hosts: local"));
        };
        let mut seen = BTreeSet::from([local]);
        for peer in &self.peers {
            if peer.is_ipv4() != local.is_ipv4() {
                let reason = format!("{port}: {peer} and {local} are not of one IP version");
                let remedy = "use IPv4 for all hosts of a tunnel, or IPv6 for all";
                return Err(Invalid::new(reason, remedy));
            }
            if !seen.insert(*peer) {
                let what = if *peer == local { "this host" } else { "named twice" };
                let reason = format!("{port}: the peer {peer} is {what}");
                return Err(Invalid::new(reason, "name each of the other hosts once"));
            }
        }
        Ok(())
    }
}

impl Kind for Vxlan {
    fn check(&self, port: &str, policy: &Policy) -> Result<(), Invalid> {
        if policy.lossless {
            let reason = format!("{port}: a tunnel cannot be lossless");
            let remedy = "leave lossless out: the network between the hosts loses frames";
            return Err(Invalid::new(reason, remedy));
        }
        check_range(port, "port", self.port.into(), 1, u16::MAX.into())?;
        let wrong = |ip: &&IpAddr| ip.is_unspecified() || ip.is_multicast();
        if let Some(ip) = self.local.iter().chain(&self.peers).find(wrong) {
            let reason = format!("{port}: {ip} is not an address of one host");
            return Err(Invalid::new(reason, "name each host by its own address"));
        }
        self.check_peers(port)
    }

    fn claim(&self) -> Option<Claim> {
        let at = match self.local {
            Some(local) => SocketAddr::new(local, self.port).to_string(),
            None => format!("EVPN's address, port {}", self.port),
        };
        let what = format!("VNI {} at {at}{}", self.vni, in_namespace(self.netns.as_ref()));
        Some(Claim { what, remedy: "give each tunnel a VNI of its own" })
    }

    fn describe(&self) -> String {
        match self.local {
            _ if self.evpn => format!("VXLAN {} by EVPN", self.vni),
            Some(local) => {
                let (peers, plural) = match self.peers.len() {
                    1 => (1, ""),
                    n => (n, "s"),
                };
                format!("VXLAN {} at {local}, {peers} peer{plural}", self.vni)
            }
            None => format!("VXLAN {}", self.vni),
        }
    }
}
