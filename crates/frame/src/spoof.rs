//! Identities that a guest must not assume: another station, a DHCP server, a router.
//!
//! [`Identity::forged`] inspects the head of a frame. It refuses everything that it cannot read
//! there, or that could hide such a message: a fragment that splits headers, extension headers
//! beyond the head, nested tags. Ordinary hosts, for which guarded ports are meant, send none of
//! that.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::facts::{Facts, Fragment, MAX_TAGS};
use crate::protocol::Protocol;
use crate::{ETHERNET_HEADER, EtherType, Mac, VLAN_TAG};

/// Operations of ARP and RARP (RFC 826, RFC 903).
const ARP_REQUEST: u16 = 1;
const REVERSE_REQUEST: u16 = 3;
/// UDP ports of DHCP clients and servers (RFC 2131, 4.1; RFC 8415, 7.2).
const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;
const DHCP_V6_SERVER: u16 = 547;
/// Messages of ICMP that only routers send: redirect (RFC 792), advertisement (RFC 1256).
const ICMP_OF_ROUTERS: [u8; 2] = [5, 9];
/// Messages of ICMPv6: reports of multicast listeners (RFC 2710, RFC 3810), and neighbour discovery
/// (RFC 4861, 4).
const LISTENER_REPORTS: [u8; 2] = [131, 143];
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// What a frame falsely claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// An IP packet with a source that is not the port's.
    Source,
    /// ARP or RARP with a sender address that is not the port's, or malformed.
    Arp,
    /// Neighbour discovery with another link-layer address, for another's address, or in fragments
    /// (RFC 6980).
    Neighbour,
    /// A message of a DHCP server.
    DhcpServer,
    /// A router's advertisement or redirect.
    Router,
    /// Headers that cannot be checked, because they lie beyond the head or in fragments.
    Hidden,
}

/// The addresses that a guarded port may speak for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    macs: Vec<Mac>,
    /// Empty for any.
    ips: Vec<IpAddr>,
}

impl Identity {
    /// The identity of a port with these addresses; without `ips`, any IP address is its own. With
    /// an IPv6 address, it has the link-local ones of its MAC addresses (RFC 4291, 2.5.6), too:
    /// neighbour discovery takes them as sources.
    #[must_use]
    pub fn new(macs: &[Mac], ips: &[IpAddr]) -> Self {
        let mut all = ips.to_vec();
        if ips.iter().any(IpAddr::is_ipv6) {
            all.extend(macs.iter().map(|mac| IpAddr::from(link_local(*mac))));
        }
        Self { macs: macs.to_vec(), ips: all }
    }

    /// What the frame that begins with `head` forges, if anything. The frame's own source address
    /// is not checked.
    #[must_use]
    pub fn forged(&self, head: &[u8]) -> Option<Spoof> {
        let facts = Facts::of(head)?;
        if facts.hidden.is_some() {
            return Some(Spoof::Hidden);
        }
        let payload = facts.payload(head);
        match facts.ip {
            Some((from, _)) if !self.has(from) && !is_without_address(&facts, payload) => {
                Some(Spoof::Source)
            }
            Some(_) if facts.fragment == Fragment::Later => None,
            Some((from, _)) => self.message(&facts, from, payload),
            None if [EtherType::ARP, EtherType::REVERSE_ARP].contains(&facts.ethertype) => {
                self.arp(facts.ethertype, payload)
            }
            None => None,
        }
    }

    fn has(&self, ip: IpAddr) -> bool {
        self.ips.is_empty() || self.ips.contains(&ip)
    }

    fn has_mac(&self, mac: Option<Mac>) -> bool {
        mac.is_some_and(|mac| self.macs.contains(&mac))
    }

    /// Only ARP and RARP for Ethernet and IPv4 pass, and only with the port's own addresses as the
    /// sender (RFC 826, RFC 903). A probe for an own address has no sender yet (RFC 5227, 1.1).
    fn arp(&self, kind: EtherType, packet: &[u8]) -> Option<Spoof> {
        let ip = |at: usize| {
            let octets: Option<&[u8; 4]> = packet.get(at..)?.first_chunk();
            octets.map(|octets| Ipv4Addr::from_octets(*octets))
        };
        let is_ethernet = packet.get(..6) == Some(&[0, 1, 8, 0, 6, 4]);
        let (Some(sender), Some(target), true) = (ip(14), ip(24), is_ethernet) else {
            return Some(Spoof::Arp);
        };
        let operation = be16(packet, 6)?;
        let is_nothing = sender.is_unspecified();
        let own = match kind {
            _ if self.ips.is_empty() => true,
            EtherType::REVERSE_ARP => {
                operation == REVERSE_REQUEST && (is_nothing || self.has(sender.into()))
            }
            _ if is_nothing => operation == ARP_REQUEST && self.has(target.into()),
            _ => self.has(sender.into()),
        };
        (!own || !self.has_mac(mac(packet, 8))).then_some(Spoof::Arp)
    }

    /// Messages above IP, of which `payload` is the beginning.
    fn message(&self, facts: &Facts, from: IpAddr, payload: &[u8]) -> Option<Spoof> {
        let first = payload.first().copied().unwrap_or_default();
        match (facts.protocol?, from) {
            (Protocol::UDP, _) => {
                let server = if from.is_ipv4() { DHCP_SERVER } else { DHCP_V6_SERVER };
                (facts.ports?.0 == server).then_some(Spoof::DhcpServer)
            }
            (Protocol::ICMP, IpAddr::V4(_)) => {
                ICMP_OF_ROUTERS.contains(&first).then_some(Spoof::Router)
            }
            (Protocol::ICMPV6, IpAddr::V6(from)) => self.discovery(facts, from, payload),
            _ => None,
        }
    }

    /// RFC 4861: neighbour discovery messages, and their options (4.6.1).
    fn discovery(&self, facts: &Facts, from: Ipv6Addr, message: &[u8]) -> Option<Spoof> {
        // The offset of the message's options, and the type of the option with the sender's
        // address.
        let (options, sender) = match *message.first()? {
            ROUTER_SOLICITATION => (8, 1),
            ROUTER_ADVERTISEMENT | REDIRECT => return Some(Spoof::Router),
            NEIGHBOUR_SOLICITATION => (24, 1),
            NEIGHBOUR_ADVERTISEMENT => (24, 2),
            _ => return None,
        };
        if facts.fragment != Fragment::Whole {
            return Some(Spoof::Neighbour);
        }
        let Some(mut rest) = message.get(options..) else { return Some(Spoof::Hidden) };
        // An advertisement is for its target. So is a solicitation without a source, which asks
        // whether another station has that address already (RFC 4862, 5.4.2).
        let is_for_target = message[0] == NEIGHBOUR_ADVERTISEMENT
            || message[0] == NEIGHBOUR_SOLICITATION && from.is_unspecified();
        let target = message.get(8..).and_then(|rest| rest.first_chunk::<16>());
        let own = target.is_some_and(|ip| self.has(Ipv6Addr::from_octets(*ip).into()));
        if is_for_target && !own {
            return Some(Spoof::Neighbour);
        }
        while let [kind, length, ..] = rest {
            let Some(after) = rest.get(usize::from(*length) * 8..).filter(|_| *length > 0) else {
                return Some(Spoof::Hidden);
            };
            if *kind == sender && !self.has_mac(mac(rest, 2)) {
                return Some(Spoof::Neighbour);
            }
            rest = after;
        }
        None
    }
}

/// True for packets that a host sends before it has an address: the requests of DHCP clients (RFC
/// 2131, 4.1), and with IPv6 the detection of duplicates and the reports that it needs (RFC 4862,
/// 5.4.2; RFC 3590).
fn is_without_address(facts: &Facts, payload: &[u8]) -> bool {
    let first = payload.first().copied().unwrap_or_default();
    facts.fragment == Fragment::Whole
        && match facts.ip {
            Some((IpAddr::V4(Ipv4Addr::UNSPECIFIED), to)) => {
                facts.protocol == Some(Protocol::UDP)
                    && to == Ipv4Addr::BROADCAST
                    && facts.ports == Some((DHCP_CLIENT, DHCP_SERVER))
            }
            Some((IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(to))) => {
                facts.protocol == Some(Protocol::ICMPV6)
                    && to.segments()[0] == 0xff02
                    && (first == NEIGHBOUR_SOLICITATION || LISTENER_REPORTS.contains(&first))
            }
            _ => false,
        }
}

/// The link-local address that is made of a MAC address.
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.octets();
    Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn mac(bytes: &[u8], at: usize) -> Option<Mac> {
    Some(Mac::new(bytes.get(at..at + 6)?.try_into().ok()?))
}

/// The smallest head that suffices: tags, an IPv6 header, and a message with its option.
const _: () = assert!(ETHERNET_HEADER + MAX_TAGS as usize * VLAN_TAG + 40 + 24 + 8 <= 128);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
        [&[0xff; 6], &OWN[..], &ethertype.to_be_bytes(), payload].concat()
    }

    fn arp(operation: u8, sender: [u8; 6]) -> Vec<u8> {
        [&[0, 1, 8, 0, 6, 4, 0, operation][..], &sender, &[10, 0, 0, 1], &[0; 10]].concat()
    }

    fn ipv4(protocol: u8, fragment: u16, options: usize, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 20 + options];
        header[0] = 0x40 | (header.len() / 4) as u8;
        header[6..8].copy_from_slice(&fragment.to_be_bytes());
        header[9] = protocol;
        [header, payload.to_vec()].concat()
    }

    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![0x60, 0, 0, 0, 0, 0, next, 255];
        header.resize(40, 0);
        [header, payload.to_vec()].concat()
    }

    fn udp(from: u16) -> Vec<u8> {
        [&from.to_be_bytes()[..], &[0, 68, 0, 8, 0, 0]].concat()
    }

    fn nd(kind: u8, options: &[u8]) -> Vec<u8> {
        let fixed = if kind == 133 { 8 } else { 24 };
        let mut message = vec![kind];
        message.resize(fixed, 0);
        [message, options.to_vec()].concat()
    }

    fn option(kind: u8, address: [u8; 6]) -> Vec<u8> {
        [&[kind, 1][..], &address].concat()
    }

    fn verdict(frame: &[u8]) -> Option<Spoof> {
        Identity::new(&[Mac::new(OWN)], &[]).forged(&frame[..frame.len().min(128)])
    }

    #[test]
    fn what_a_station_says_of_itself_passes_and_nothing_else() {
        let cases: [(&str, Vec<u8>, Option<Spoof>); 30] = [
            ("own ARP request", ethernet(0x0806, &arp(1, OWN)), None),
            ("own ARP reply", ethernet(0x0806, &arp(2, OWN)), None),
            ("RARP of a move", ethernet(0x8035, &arp(3, OWN)), None),
            ("other's ARP reply", ethernet(0x0806, &arp(2, OTHER)), Some(Spoof::Arp)),
            ("other's RARP", ethernet(0x8035, &arp(3, OTHER)), Some(Spoof::Arp)),
            ("cut ARP", ethernet(0x0806, &arp(2, OWN)[..20]), Some(Spoof::Arp)),
            ("DHCP client", ethernet(0x0800, &ipv4(17, 0, 0, &udp(68))), None),
            ("DHCP server", ethernet(0x0800, &ipv4(17, 0, 0, &udp(67))), Some(Spoof::DhcpServer)),
            (
                "behind options",
                ethernet(0x0800, &ipv4(17, 0, 40, &udp(67))),
                Some(Spoof::DhcpServer),
            ),
            (
                "TCP from port 67",
                ethernet(0x0800, &ipv4(6, 0, 0, &[&udp(67)[..], &[0; 12]].concat())),
                None,
            ),
            (
                "first piece",
                ethernet(0x0800, &ipv4(17, 0x2000, 0, &udp(67))),
                Some(Spoof::DhcpServer),
            ),
            (
                "tiny first piece",
                ethernet(0x0800, &ipv4(17, 0x2000, 0, &udp(68)[..4])),
                Some(Spoof::Hidden),
            ),
            ("no ports at all", ethernet(0x0800, &ipv4(17, 0x2000, 0, &[])), Some(Spoof::Hidden)),
            ("later piece", ethernet(0x0800, &ipv4(17, 0x2001, 0, &udp(67))), None),
            ("cut IPv4", ethernet(0x0800, &[0x45, 0]), Some(Spoof::Hidden)),
            ("DHCPv6 client", ethernet(0x86dd, &ipv6(17, &udp(546))), None),
            ("DHCPv6 server", ethernet(0x86dd, &ipv6(17, &udp(547))), Some(Spoof::DhcpServer)),
            ("echo", ethernet(0x86dd, &ipv6(58, &[128, 0])), None),
            (
                "router's advertisement",
                ethernet(0x86dd, &ipv6(58, &nd(134, &[]))),
                Some(Spoof::Router),
            ),
            ("redirect", ethernet(0x86dd, &ipv6(58, &nd(137, &[]))), Some(Spoof::Router)),
            ("own solicitation", ethernet(0x86dd, &ipv6(58, &nd(135, &option(1, OWN)))), None),
            (
                "other's solicitation",
                ethernet(0x86dd, &ipv6(58, &nd(135, &option(1, OTHER)))),
                Some(Spoof::Neighbour),
            ),
            ("probe for duplicates", ethernet(0x86dd, &ipv6(58, &nd(135, &[]))), None),
            ("own advertisement", ethernet(0x86dd, &ipv6(58, &nd(136, &option(2, OWN)))), None),
            (
                "other's advertisement",
                ethernet(0x86dd, &ipv6(58, &nd(136, &option(2, OTHER)))),
                Some(Spoof::Neighbour),
            ),
            (
                "behind another option",
                ethernet(
                    0x86dd,
                    &ipv6(58, &nd(136, &[option(14, OTHER), option(2, OTHER)].concat())),
                ),
                Some(Spoof::Neighbour),
            ),
            (
                "an option of no length",
                ethernet(0x86dd, &ipv6(58, &nd(136, &[14, 0, 0, 0, 0, 0, 0, 0]))),
                Some(Spoof::Hidden),
            ),
            (
                "router's solicitation",
                ethernet(0x86dd, &ipv6(58, &nd(133, &option(1, OTHER)))),
                Some(Spoof::Neighbour),
            ),
            ("IPv6 without a header", ethernet(0x86dd, &[0x60]), Some(Spoof::Hidden)),
            ("something else", ethernet(0x88b5, &[1; 50]), None),
        ];
        for (what, frame, expected) in cases {
            assert_eq!(verdict(&frame), expected, "{what}");
        }
    }

    #[test]
    fn tags_extension_headers_and_fragments_hide_nothing() {
        let advertisement = nd(134, &[]);
        let behind = |next: u8, length: u8, inner: u8, payload: &[u8]| {
            let mut header = vec![inner, length];
            header.resize(8 + 8 * usize::from(length), 0);
            ipv6(next, &[header, payload.to_vec()].concat())
        };
        let fragment = |offset: u16, inner: u8, payload: &[u8]| {
            let header = [&[inner, 0][..], &offset.to_be_bytes(), &[0; 4]].concat();
            ipv6(44, &[header, payload.to_vec()].concat())
        };
        let packet = ipv6(58, &advertisement);
        let tagged = |packet: &[u8]| [&[0, 5, 0x86, 0xdd][..], packet].concat();
        let twice = [&[0, 5, 0x81, 0][..], &tagged(&packet)].concat();
        let thrice = [&[0, 5, 0x88, 0xa8][..], &twice].concat();
        for (what, frame, expected) in [
            ("a tag", ethernet(0x8100, &tagged(&packet)), Spoof::Router),
            ("two tags", ethernet(0x88a8, &twice), Spoof::Router),
            ("three tags", ethernet(0x8100, &thrice), Spoof::Hidden),
            ("hop-by-hop", ethernet(0x86dd, &behind(0, 0, 58, &advertisement)), Spoof::Router),
            ("routing", ethernet(0x86dd, &behind(43, 1, 58, &advertisement)), Spoof::Router),
            ("a long one", ethernet(0x86dd, &behind(60, 20, 58, &advertisement)), Spoof::Hidden),
            ("first fragment", ethernet(0x86dd, &fragment(1, 58, &advertisement)), Spoof::Router),
            (
                "whole in one",
                ethernet(0x86dd, &fragment(0, 58, &nd(136, &option(2, OWN)))),
                Spoof::Neighbour,
            ),
            ("empty first fragment", ethernet(0x86dd, &fragment(1, 58, &[])), Spoof::Hidden),
            ("fragment before a header", ethernet(0x86dd, &fragment(1, 60, &[58])), Spoof::Hidden),
        ] {
            assert_eq!(verdict(&frame), Some(expected), "{what}");
        }
        assert_eq!(verdict(&ethernet(0x86dd, &fragment(8, 58, &advertisement))), None);
    }

    const IP: [u8; 4] = [10, 0, 0, 7];
    const OTHER_IP: [u8; 4] = [10, 0, 0, 1];

    /// What a port forges that has `OWN`, 10.0.0.7 and fd00::7.
    fn with_ips(frame: &[u8]) -> Option<Spoof> {
        let ips = [IpAddr::from(IP), "fd00::7".parse().unwrap()];
        Identity::new(&[Mac::new(OWN)], &ips).forged(&frame[..frame.len().min(128)])
    }

    fn from4(from: [u8; 4], mut packet: Vec<u8>) -> Vec<u8> {
        packet[12..16].copy_from_slice(&from);
        packet[16..20].copy_from_slice(&[255; 4]);
        packet
    }

    fn from6(from: &str, to: &str, mut packet: Vec<u8>) -> Vec<u8> {
        for (at, ip) in [(8, from), (24, to)] {
            packet[at..at + 16].copy_from_slice(&ip.parse::<Ipv6Addr>().unwrap().octets());
        }
        packet
    }

    fn arp_of(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut packet = arp(operation, OWN);
        packet[14..18].copy_from_slice(&sender);
        packet[24..28].copy_from_slice(&target);
        packet
    }

    /// Every way in which an IP packet of `source` may be dressed.
    fn dressed(ethertype: u16, packet: &[u8]) -> Vec<Vec<u8>> {
        let tagged = [&[0, 5][..], &ethertype.to_be_bytes(), packet].concat();
        let stacked = [&[0, 9, 0x81, 0][..], &tagged].concat();
        let snap = [&SNAP_HEADER[..], &ethertype.to_be_bytes(), packet].concat();
        vec![
            ethernet(ethertype, packet),
            ethernet(0x8100, &tagged),
            ethernet(0x88a8, &stacked),
            ethernet(packet.len() as u16 + 8, &snap),
        ]
    }

    const SNAP_HEADER: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];

    #[test]
    fn only_own_addresses_are_sources_whatever_the_packet_is_dressed_in() {
        let echo = [128, 0, 0, 0, 0, 0, 0, 0];
        let v4 = |ip| {
            [0, 40].into_iter().flat_map(move |options| {
                [0, 0x2000, 0x2001].map(|part| from4(ip, ipv4(17, part, options, &udp(9))))
            })
        };
        let v6 = |ip: &'static str| {
            let pieces = [(58, echo.to_vec()), (0, [&[58, 0][..], &[0; 6], &echo].concat())];
            let later = (44, [&[58, 0, 0, 8][..], &[0; 4], &echo].concat());
            let first = (44, [&[58, 0, 0, 1][..], &[0; 4], &echo].concat());
            let all = pieces.into_iter().chain([later, first]);
            all.map(move |(next, rest)| from6(ip, "fd00::1", ipv6(next, &rest)))
        };
        for (own, other) in v4(IP).zip(v4(OTHER_IP)) {
            for (own, other) in dressed(0x800, &own).iter().zip(dressed(0x800, &other)) {
                assert_eq!(with_ips(own), None, "{own:x?}");
                assert_eq!(with_ips(&other), Some(Spoof::Source), "{other:x?}");
                assert_eq!(verdict(&other), None, "a port without ips has any");
            }
        }
        for ((own, local), other) in v6("fd00::7").zip(v6("fe80::ff:fe00:1")).zip(v6("fe80::1")) {
            for own in [own, local].iter().flat_map(|packet| dressed(0x86dd, packet)) {
                assert_eq!(with_ips(&own), None, "{own:x?}");
            }
            for other in dressed(0x86dd, &other) {
                assert_eq!(with_ips(&other), Some(Spoof::Source), "{other:x?}");
                assert_eq!(verdict(&other), None, "a port without ips has any");
            }
        }
        let none_of_v6 = Identity::new(&[Mac::new(OWN)], &[IpAddr::from(IP)]);
        let local = from6("fe80::ff:fe00:1", "ff02::1", ipv6(58, &echo));
        assert_eq!(none_of_v6.forged(&ethernet(0x86dd, &local)), Some(Spoof::Source));
    }

    #[test]
    fn senders_and_targets_are_own_addresses() {
        let none_yet = [0; 4];
        let target = |kind: u8, ip: &str| {
            let mut message = nd(kind, &[]);
            message[8..24].copy_from_slice(&ip.parse::<Ipv6Addr>().unwrap().octets());
            message
        };
        let v6 = |from: &str, to: &str, message: &[u8]| from6(from, to, ipv6(58, message));
        let dhcp = [&[0, 68, 0, 67, 0, 8, 0, 0][..], &[1; 20]].concat();
        let joined = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &[143; 1], &[0; 27]].concat();
        let to_all = |packet: Vec<u8>, to: [u8; 4]| [&packet[..16], &to, &packet[20..]].concat();
        for (what, kind, packet, expected) in [
            ("request", 0x806, arp_of(1, IP, OTHER_IP), None),
            ("reply", 0x806, arp_of(2, IP, OTHER_IP), None),
            ("10.0.0.1 is at me", 0x806, arp_of(2, OTHER_IP, IP), Some(Spoof::Arp)),
            ("announcement", 0x806, arp_of(1, OTHER_IP, OTHER_IP), Some(Spoof::Arp)),
            ("probe", 0x806, arp_of(1, none_yet, IP), None),
            ("probe of another's", 0x806, arp_of(1, none_yet, OTHER_IP), Some(Spoof::Arp)),
            ("reply from 0.0.0.0", 0x806, arp_of(2, none_yet, IP), Some(Spoof::Arp)),
            ("RARP of a move", 0x8035, arp_of(3, none_yet, none_yet), None),
            ("RARP reply", 0x8035, arp_of(4, IP, OTHER_IP), Some(Spoof::Arp)),
            ("DHCP", 0x800, from4(none_yet, ipv4(17, 0, 0, &dhcp)), None),
            (
                "DHCP to one",
                0x800,
                to_all(from4(none_yet, ipv4(17, 0, 0, &dhcp)), OTHER_IP),
                Some(Spoof::Source),
            ),
            (
                "DHCP in parts",
                0x800,
                from4(none_yet, ipv4(17, 0x2000, 0, &dhcp)),
                Some(Spoof::Source),
            ),
            ("from 0.0.0.0", 0x800, from4(none_yet, ipv4(17, 0, 0, &udp(9))), Some(Spoof::Source)),
            ("redirect", 0x800, from4(IP, ipv4(1, 0, 0, &[5, 1, 0, 0])), Some(Spoof::Router)),
            ("router, v4", 0x800, from4(IP, ipv4(1, 0, 40, &[9, 0])), Some(Spoof::Router)),
            ("echo", 0x800, from4(IP, ipv4(1, 0, 0, &[8, 0])), None),
            ("asks", 0x86dd, v6("fd00::7", "ff02::1", &target(135, "fd00::1")), None),
            ("says", 0x86dd, v6("fd00::7", "ff02::1", &target(136, "fd00::7")), None),
            (
                "says of another's",
                0x86dd,
                v6("fd00::7", "ff02::1", &target(136, "fd00::1")),
                Some(Spoof::Neighbour),
            ),
            ("DAD", 0x86dd, v6("::", "ff02::1:ff00:7", &target(135, "fd00::7")), None),
            ("DAD of its own", 0x86dd, v6("::", "ff02::1", &target(135, "fe80::ff:fe00:1")), None),
            (
                "DAD of another's",
                0x86dd,
                v6("::", "ff02::1", &target(135, "fd00::1")),
                Some(Spoof::Neighbour),
            ),
            (
                "DAD to one",
                0x86dd,
                v6("::", "fd00::1", &target(135, "fd00::7")),
                Some(Spoof::Source),
            ),
            ("joins", 0x86dd, from6("::", "ff02::16", ipv6(0, &joined)), None),
            (
                "advertises",
                0x86dd,
                v6("::", "ff02::1", &target(136, "fd00::7")),
                Some(Spoof::Source),
            ),
            ("echo, v6", 0x86dd, v6("::", "ff02::1", &[128, 0]), Some(Spoof::Source)),
            ("redirect, v6", 0x86dd, v6("fd00::7", "fd00::1", &nd(137, &[])), Some(Spoof::Router)),
        ] {
            for frame in dressed(kind, &packet) {
                assert_eq!(with_ips(&frame), expected, "{what}: {frame:x?}");
            }
        }
    }

    proptest! {
        /// No IP packet with another's source passes, whatever follows its addresses.
        #[test]
        fn no_bytes_make_a_foreign_source_pass(
            tags in 0usize..4,
            is_v6: bool,
            source in 1u32..,
            mut packet in proptest::collection::vec(any::<u8>(), 40..180),
        ) {
            let source = if source == u32::from_be_bytes(IP) { 1 } else { source };
            let first = if is_v6 { 0x60 } else { 0x45 + packet[0] % 4 };
            packet[0] = first;
            let at = if is_v6 { 20 } else { 12 };
            packet[at..at + 4].copy_from_slice(&source.to_be_bytes());
            let mut kinds: Vec<u8> = (0..tags).flat_map(|_| [0x81, 0, 0, 5]).collect();
            kinds.extend(if is_v6 { [0x86, 0xdd] } else { [8, 0] });
            let frame = [&[2; 6], &OWN[..], &kinds, &packet].concat();
            // The other octets of an IPv6 source are random, so it is no own address.
            prop_assert!(with_ips(&frame).is_some());
        }

        #[test]
        fn any_head_is_judged(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = with_ips(&bytes);
            let _ = verdict(&bytes);
        }
    }

    #[test]
    fn no_head_is_too_short_to_be_judged() {
        let whole = ethernet(0x86dd, &ipv6(58, &nd(136, &option(2, OWN))));
        for len in 14..whole.len() - 8 {
            let said = verdict(&whole[..len]);
            assert!(matches!(said, Some(Spoof::Hidden) | None), "{len}: {said:?}");
        }
        assert_eq!(verdict(&whole), None);
    }
}
