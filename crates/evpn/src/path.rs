//! GoBGP's paths, read. What they hold comes from other hosts, so each part is checked.

use std::net::{IpAddr, Ipv4Addr};

use frame::Mac;

use crate::gobgp::attribute::Attr;
use crate::gobgp::extended_community::Extcom;
use crate::gobgp::nlri::Nlri;
use crate::gobgp::route_distinguisher::Rd;
use crate::gobgp::{
    Attribute, EvpnInclusiveMulticastEthernetTagRoute, EvpnMacIpAdvertisementRoute,
    ExtendedCommunity, Path, PmsiTunnelAttribute, RouteDistinguisher,
};
use crate::route::{Distinguisher, INGRESS_REPLICATION, Key, Mobility, RouteTarget, VXLAN};

/// The maximum number of route targets of a route that are looked at.
const MAX_TARGETS: usize = 64;

/// A route of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The key that identifies the route.
    pub key: Key,
    /// The host that the station is behind, or that wants floods.
    pub vtep: IpAddr,
    /// The segment.
    pub vni: u32,
    /// The route targets: which segments the route is for.
    pub targets: Vec<RouteTarget>,
    /// How often the station has moved.
    pub mobility: Mobility,
}

/// The contents of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A route came, or another one with the same key.
    Update(Update),
    /// The route is withdrawn.
    Withdraw(Key),
    /// A route of this host is in the daemon's table, with what the daemon counted.
    Own(Key, Mobility),
}

/// The reason why a path was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Other types of routes are for hosts with several links, and for routing.
    #[error("of another type")]
    OtherType,
    /// A part of the path is missing or invalid.
    #[error("malformed")]
    Malformed,
    /// The path is for another kind of tunnel.
    #[error("no VXLAN")]
    OtherTunnel,
}

/// Reads a path.
///
/// # Errors
/// [`Unusable`]: the path is counted, and otherwise ignored.
pub fn read(path: &Path) -> Result<Event, Unusable> {
    let (key, label) = match path.nlri.as_ref().and_then(|nlri| nlri.nlri.as_ref()) {
        Some(Nlri::EvpnMacadv(route)) => read_station(route).ok_or(Unusable::Malformed)?,
        Some(Nlri::EvpnMulticast(route)) => (read_host(route).ok_or(Unusable::Malformed)?, None),
        None => return Err(Unusable::OtherType),
    };
    let is_own = matches!(path.neighbor_ip.as_str(), "" | "<nil>");
    match (is_own, path.is_withdraw) {
        (true, true) => return Err(Unusable::OtherType),
        (false, true) => return Ok(Event::Withdraw(key)),
        (_, false) => {}
    }
    let attributes = Attributes::of(&path.pattrs);
    if is_own {
        return Ok(Event::Own(key, attributes.mobility));
    }
    if attributes.encapsulation.is_some_and(|kind| kind != u32::from(VXLAN)) {
        return Err(Unusable::OtherTunnel);
    }
    let vtep = attributes.next_hop.ok_or(Unusable::Malformed)?;
    let vni = match label {
        Some(vni) => vni,
        None => attributes.tunnel.and_then(segment_of).ok_or(Unusable::Malformed)?,
    };
    let Attributes { targets, mobility, .. } = attributes;
    Ok(Event::Update(Update { key, vtep, vni, targets, mobility }))
}

fn read_station(route: &EvpnMacIpAdvertisementRoute) -> Option<(Key, Option<u32>)> {
    let mac: Mac = route.mac_address.parse().ok()?;
    if mac.is_group() || mac.word() == 0 {
        return None;
    }
    let ip = match route.ip_address.as_str() {
        "" | "<nil>" => None,
        text => Some(text.parse().ok()?),
    };
    let vni = route.labels.first().copied().filter(|vni| *vni < 1 << 24)?;
    let key = Key::Mac { rd: read_rd(route.rd.as_ref()?)?, tag: route.ethernet_tag, mac, ip };
    Some((key, Some(vni)))
}

fn read_host(route: &EvpnInclusiveMulticastEthernetTagRoute) -> Option<Key> {
    let ip = route.ip_address.parse().ok()?;
    Some(Key::Multicast { rd: read_rd(route.rd.as_ref()?)?, tag: route.ethernet_tag, ip })
}

fn read_rd(rd: &RouteDistinguisher) -> Option<Distinguisher> {
    let with = |kind: u8, word: u32, number: u32| {
        let ([a, b, c, d], [x, y]) =
            (word.to_be_bytes(), u16::try_from(number).ok()?.to_be_bytes());
        Some([0, kind, a, b, c, d, x, y])
    };
    match rd.rd.as_ref()? {
        Rd::TwoOctetAsn(rd) => {
            let [a, b] = u16::try_from(rd.admin).ok()?.to_be_bytes();
            let [c, d, e, f] = rd.assigned.to_be_bytes();
            Some([0, 0, a, b, c, d, e, f])
        }
        Rd::IpAddress(rd) => with(1, rd.admin.parse::<Ipv4Addr>().ok()?.into(), rd.assigned),
        Rd::FourOctetAsn(rd) => with(2, rd.admin, rd.assigned),
    }
}

/// The VNI of a host that wants floods by ingress replication.
fn segment_of(tunnel: &PmsiTunnelAttribute) -> Option<u32> {
    let by_copies = tunnel.r#type == u32::from(INGRESS_REPLICATION);
    (by_copies && tunnel.label < 1 << 24).then_some(tunnel.label)
}

/// The attributes that count.
#[derive(Default)]
struct Attributes<'a> {
    next_hop: Option<IpAddr>,
    targets: Vec<RouteTarget>,
    encapsulation: Option<u32>,
    mobility: Mobility,
    tunnel: Option<&'a PmsiTunnelAttribute>,
}

impl<'a> Attributes<'a> {
    fn of(list: &'a [Attribute]) -> Self {
        let mut all = Self::default();
        for attribute in list.iter().filter_map(|attribute| attribute.attr.as_ref()) {
            match attribute {
                Attr::NextHop(hop) if all.next_hop.is_none() => {
                    all.next_hop = hop.next_hop.parse().ok();
                }
                Attr::MpReach(reach) => {
                    all.next_hop = reach.next_hops.first().and_then(|hop| hop.parse().ok());
                }
                Attr::ExtendedCommunities(list) => {
                    list.communities.iter().for_each(|community| all.note(community));
                }
                Attr::PmsiTunnel(tunnel) => all.tunnel = Some(tunnel),
                Attr::NextHop(_) => {}
            }
        }
        all
    }

    fn note(&mut self, community: &ExtendedCommunity) {
        /// A route target, as a subtype (RFC 4360, 4).
        const TARGET: u32 = 2;
        let short = |number: u32| u16::try_from(number).ok();
        let target = match community.extcom.as_ref() {
            Some(Extcom::Encap(encap)) => {
                self.encapsulation = Some(encap.tunnel_type);
                None
            }
            Some(Extcom::MacMobility(moves)) => {
                self.mobility = Mobility { sticky: moves.is_sticky, sequence: moves.sequence_num };
                None
            }
            Some(Extcom::TwoOctetAsSpecific(rt)) if rt.sub_type == TARGET => {
                short(rt.asn).map(|asn| RouteTarget::of_two_octets(asn, rt.local_admin))
            }
            Some(Extcom::FourOctetAsSpecific(rt)) if rt.sub_type == TARGET => {
                short(rt.local_admin).map(|number| RouteTarget::of_four_octets(rt.asn, number))
            }
            Some(Extcom::Ipv4AddressSpecific(rt)) if rt.sub_type == TARGET => {
                let address = rt.address.parse::<Ipv4Addr>().ok();
                let parts = address.zip(short(rt.local_admin));
                parts.map(|(address, number)| RouteTarget::of_address(address, number))
            }
            _ => None,
        };
        self.targets.extend(target.filter(|_| self.targets.len() < MAX_TARGETS));
    }
}
