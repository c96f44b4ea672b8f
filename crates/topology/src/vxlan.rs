//! Tunnels to other hosts.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use fabric::VlanMode;
use frame::{Encapsulation, VlanId, Vni};
use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::place::in_namespace;
use crate::{Claim, Invalid, Kind, Policy};

/// A tunnel by VXLAN (RFC 7348) or Geneve (RFC 8926) to other hosts, which run toklat, Linux, or
/// any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Vxlan {
    /// The segment (VNI), 1 to 16,777,215, which carries the port's frames as they are. A host can
    /// have one port in it for each local address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(id = "vxlan", long = "vxlan", value_name = "VNI"))]
    #[cfg_attr(feature = "clap", arg(num_args = 0..=1))]
    pub vni: Option<Vni>,
    /// In place of one segment: a segment for each of these VLANs of the switch, whose frames have
    /// no tag in the tunnel; on the command line as in --vxlan-vlan 10=10010, once for each VLAN.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "vlan_map")]
    #[cfg_attr(feature = "clap", arg(long = "vxlan-vlan", value_name = "VLAN=VNI"))]
    #[cfg_attr(feature = "schemars", schemars(with = "std::collections::BTreeMap<String, Vni>"))]
    pub vlans: Vec<VlanSegment>,
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
    /// How frames lie in datagrams: vxlan, or geneve (RFC 8926) for peers that are configured.
    #[serde(default, skip_serializing_if = "Encapsulation::is_default")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Encapsulation::Vxlan))]
    pub encapsulation: Encapsulation,
    /// The UDP port of all hosts; default: 4789, and 6081 for Geneve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(id = "vxlan_port", long = "vxlan-port", value_name = "PORT"))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u16).range(1..)))]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 65_535)))]
    pub port: Option<u16>,
    /// The tunnel's network namespace: a name in /run/netns, a process id or an absolute path.
    /// Default: the daemon's.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub netns: Option<String>,
}

/// A VLAN, and the segment that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VlanSegment {
    /// The VLAN of the switch.
    pub vlan: VlanId,
    /// The segment.
    pub vni: Vni,
}

impl FromStr for VlanSegment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (vlan, vni) = text.split_once('=').ok_or("as in 10=10010: a VLAN and its VNI")?;
        let vlan = vlan.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { vlan, vni: vni.parse().map_err(|error| format!("{error}"))? })
    }
}

/// VLANs and their segments as a map, `{ "10" = 10010 }`, sorted by VLAN.
mod vlan_map {
    use std::collections::BTreeMap;

    use frame::Vni;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::VlanSegment;

    pub fn serialize<S: Serializer>(vlans: &[VlanSegment], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(vlans.iter().map(|VlanSegment { vlan, vni }| (vlan.to_string(), vni)))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<VlanSegment>, D::Error> {
        let map = BTreeMap::<String, Vni>::deserialize(from)?;
        let segment = |(vlan, vni): (String, Vni)| {
            vlan.parse().map(|vlan| VlanSegment { vlan, vni }).map_err(D::Error::custom)
        };
        let mut vlans = map.into_iter().map(segment).collect::<Result<Vec<_>, _>>()?;
        vlans.sort_unstable();
        Ok(vlans)
    }
}

impl Vxlan {
    /// The maximum number of peers: of other hosts, times the number of segments.
    pub const MAX_PEERS: usize = 1024;
    /// The maximum number of segments.
    pub const MAX_SEGMENTS: usize = 256;

    /// The UDP port of all hosts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.unwrap_or_else(|| self.encapsulation.port())
    }

    /// Its segments, each with the VLAN that it carries; without, the port's frames as they are.
    #[must_use]
    pub fn segments(&self) -> Vec<(Vni, Option<VlanId>)> {
        let plain = self.vni.map(|vni| (vni, None));
        plain.into_iter().chain(self.vlans.iter().map(|s| (s.vni, Some(s.vlan)))).collect()
    }

    /// How its segments are called in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.vni, &self.vlans[..]) {
            (Some(vni), _) => vni.to_string(),
            (None, []) => "without a VNI".into(),
            (None, [one]) => format!("{} for VLAN {}", one.vni, one.vlan),
            (None, [first, .., last]) => {
                format!("{} to {} for {} VLANs", first.vni, last.vni, self.vlans.len())
            }
        }
    }

    fn check_segments(&self, port: &str, policy: &Policy) -> Result<(), Invalid> {
        let remedy = "name the segment (vni), or one for each VLAN (vlans)";
        match (self.vni, self.vlans.len()) {
            (None, 0) => {
                return Err(Invalid::new(format!("{port}: the tunnel has no VNI"), remedy));
            }
            (Some(vni), 1..) => {
                let reason = format!("{port}: VNI {vni} is for all frames, and others for VLANs");
                return Err(Invalid::new(reason, remedy));
            }
            (Some(_), 0) => return Ok(()),
            (None, count) => {
                check_range(port, "vlans", count as u64, 1, Self::MAX_SEGMENTS as u64)?;
            }
        }
        let (mut vlans, mut vnis) = (BTreeSet::new(), BTreeSet::new());
        for VlanSegment { vlan, vni } in &self.vlans {
            if !vlans.insert(vlan) || !vnis.insert(vni) {
                let reason = format!("{port}: VLAN {vlan} or VNI {vni} is named twice");
                return Err(Invalid::new(reason, "give each VLAN a VNI of its own"));
            }
        }
        if policy.vlan != VlanMode::Unaware {
            let reason = format!("{port}: the tunnel's segments say its VLANs");
            return Err(Invalid::new(reason, "leave the port's own VLANs out"));
        }
        Ok(())
    }

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
        let most = Self::MAX_PEERS / self.segments().len().max(1);
        check_range(port, "peers", self.peers.len() as u64, 1, most as u64)?;
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
        check_range(port, "port", self.port().into(), 1, u16::MAX.into())?;
        if self.evpn && self.encapsulation == Encapsulation::Geneve {
            let reason = format!("{port}: EVPN's tunnels are VXLAN, not Geneve");
            return Err(Invalid::new(reason, "leave encapsulation out, or name the peers"));
        }
        self.check_segments(port, policy)?;
        let wrong = |ip: &&IpAddr| ip.is_unspecified() || ip.is_multicast();
        if let Some(ip) = self.local.iter().chain(&self.peers).find(wrong) {
            let reason = format!("{port}: {ip} is not an address of one host");
            return Err(Invalid::new(reason, "name each host by its own address"));
        }
        self.check_peers(port)
    }

    fn claims(&self) -> Vec<Claim> {
        let at = match self.local {
            Some(local) => SocketAddr::new(local, self.port()).to_string(),
            None => format!("EVPN's address, port {}", self.port()),
        };
        let claim = |(vni, _): (Vni, _)| {
            let what = format!("VNI {vni} at {at}{}", in_namespace(self.netns.as_ref()));
            Claim { what, remedy: "give each tunnel VNIs of its own" }
        };
        self.segments().into_iter().map(claim).collect()
    }

    fn vlans(&self) -> Option<VlanMode> {
        let allowed: Vec<_> = self.vlans.iter().map(|segment| segment.vlan).collect();
        (!allowed.is_empty()).then_some(VlanMode::Trunk { allowed, native: None })
    }

    fn complete(&mut self, _: &str) -> Result<(), Invalid> {
        self.vlans.sort_unstable();
        Ok(())
    }

    fn describe(&self) -> String {
        let way = match self.encapsulation {
            Encapsulation::Vxlan => "VXLAN",
            Encapsulation::Geneve => "Geneve",
        };
        match self.local {
            _ if self.evpn => format!("{way} {} by EVPN", self.name()),
            Some(local) => {
                let (peers, plural) = match self.peers.len() {
                    1 => (1, ""),
                    n => (n, "s"),
                };
                format!("{way} {} at {local}, {peers} peer{plural}", self.name())
            }
            None => format!("{way} {}", self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel(segments: &str) -> Result<Vxlan, toml::de::Error> {
        toml::from_str(&format!("{segments}\nlocal = '10.0.0.1'\npeers = ['10.0.0.2']"))
    }

    #[test]
    fn vlans_are_a_map_and_say_what_the_port_is_a_member_of() {
        let kind = tunnel("vlans = { '20' = 10020, '3' = 10003 }").unwrap();
        let [three, twenty] = [3, 20].map(|id| VlanId::new(id).unwrap());
        assert_eq!(
            kind.vlans(),
            Some(VlanMode::Trunk { allowed: vec![three, twenty], native: None })
        );
        assert_eq!(kind.segments()[1], (Vni::new(10020).unwrap(), Some(twenty)));
        assert_eq!(kind.describe(), "VXLAN 10003 to 10020 for 2 VLANs at 10.0.0.1, 1 peer");
        let claims: Vec<_> = kind.claims().into_iter().map(|claim| claim.what).collect();
        assert_eq!(claims, ["VNI 10003 at 10.0.0.1:4789", "VNI 10020 at 10.0.0.1:4789"]);
        let json = serde_json::to_value(&kind).unwrap();
        assert_eq!(json["vlans"], serde_json::json!({ "20": 10020, "3": 10003 }));
        assert_eq!(serde_json::from_value::<Vxlan>(json).unwrap(), kind);
        assert!(kind.check("v:p", &Policy::default()).is_ok());
        let access = Policy { vlan: VlanMode::Access(three), ..Policy::default() };
        assert!(kind.check("v:p", &access).is_err());
        let plain = tunnel("vni = 7").unwrap();
        assert_eq!(plain.segments(), [(Vni::new(7).unwrap(), None)]);
        assert!(plain.vlans().is_none() && plain.check("v:p", &access).is_ok());
        let geneve = tunnel("vni = 7\nencapsulation = 'geneve'").unwrap();
        assert_eq!((plain.port(), geneve.port()), (4789, 6081));
        assert_eq!(geneve.describe(), "Geneve 7 at 10.0.0.1, 1 peer");
        assert!(geneve.check("v:p", &access).is_ok());
        let evpn = Vxlan { evpn: true, local: None, peers: Vec::new(), ..geneve };
        assert!(evpn.check("v:p", &access).is_err());
    }

    #[test]
    fn segments_that_contradict_each_other_are_refused() {
        for text in [
            "vlans = { '0' = 1 }",
            "vlans = { '4095' = 1 }",
            "vlans = { 'x' = 1 }",
            "vlans = { '5' = 0 }",
        ] {
            assert!(tunnel(text).is_err(), "{text}");
        }
        for text in ["", "vni = 7\nvlans = { '5' = 8 }", "vlans = { '5' = 8, '6' = 8 }"] {
            assert!(tunnel(text).unwrap().check("v:p", &Policy::default()).is_err(), "{text}");
        }
        let many: Vec<_> = (1..=257).map(|n| format!("'{n}' = {n}")).collect();
        let most = |count: usize| tunnel(&format!("vlans = {{ {} }}", many[..count].join(", ")));
        assert!(most(256).unwrap().check("v:p", &Policy::default()).is_ok());
        assert!(most(257).unwrap().check("v:p", &Policy::default()).is_err());
        let mut kind = most(256).unwrap();
        kind.peers.extend((3..=6).map(|n| IpAddr::from([10, 0, 0, n])));
        assert!(kind.check("v:p", &Policy::default()).is_err(), "256 times 5 peers");
    }
}
