//! Identities that a guest must not assume: another station, a DHCP server, a router.
//!
//! [`spoof`] inspects the head of a frame. It refuses everything that it cannot read there, or that
//! could hide such a message: a fragment that splits headers, extension headers beyond the head,
//! nested tags. Ordinary hosts, for which guarded ports are meant, send none of that.

use crate::{ETHERNET_HEADER, Mac, VLAN_TAG};

/// The maximum number of VLAN tags that are parsed.
const MAX_TAGS: usize = 2;
/// Protocol numbers (IANA, "Assigned Internet Protocol Numbers").
const UDP: u8 = 17;
const ICMP_V6: u8 = 58;
/// IPv6 extension headers with a following header, which give their length in units of 8 octets
/// (RFC 8200, 4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;
const FRAGMENT: u8 = 44;
/// The authentication header gives its length in units of 4 octets (RFC 4302, 2.2).
const AUTHENTICATION: u8 = 51;
/// UDP ports of DHCP servers (RFC 2131, 4.1; RFC 8415, 7.2).
const DHCP_SERVER: u16 = 67;
const DHCP_V6_SERVER: u16 = 547;

/// What a frame falsely claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// ARP or RARP with a sender address that is not the port's, or malformed.
    Arp,
    /// Neighbour discovery with another link-layer address, or in fragments (RFC 6980).
    Neighbour,
    /// A message of a DHCP server.
    DhcpServer,
    /// A router's advertisement or redirect.
    Router,
    /// Headers that cannot be checked, because they lie beyond the head or in fragments.
    Hidden,
}

/// What the frame that begins with `head` forges, if anything. `is_own` says whether an address
/// belongs to the port. The frame's own source address is not checked.
#[must_use]
pub fn spoof(head: &[u8], is_own: impl Fn(Mac) -> bool) -> Option<Spoof> {
    let mut at = 12;
    for _ in 0..=MAX_TAGS {
        match be16(head, at)? {
            0x8100 | 0x88a8 | 0x9100 => at += VLAN_TAG,
            0x0806 | 0x8035 => return arp(rest(head, at + 2), is_own),
            0x0800 => return ipv4(rest(head, at + 2)),
            0x86dd => return ipv6(rest(head, at + 2), is_own),
            _ => return None,
        }
    }
    Some(Spoof::Hidden)
}

/// True for the types with which a VLAN tag begins.
#[must_use]
pub const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

fn rest(bytes: &[u8], from: usize) -> &[u8] {
    bytes.get(from..).unwrap_or_default()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn mac(bytes: &[u8], at: usize) -> Option<Mac> {
    Some(Mac::new(bytes.get(at..at + 6)?.try_into().ok()?))
}

/// Only ARP and RARP for Ethernet and IPv4 pass, and only with the port's own address as the sender
/// (RFC 826, RFC 903).
fn arp(packet: &[u8], is_own: impl Fn(Mac) -> bool) -> Option<Spoof> {
    let is_ethernet = packet.get(..6) == Some(&[0, 1, 8, 0, 6, 4]);
    let own = mac(packet, 8).is_some_and(is_own);
    (!is_ethernet || !own || packet.len() < 28).then_some(Spoof::Arp)
}

/// RFC 791.
fn ipv4(packet: &[u8]) -> Option<Spoof> {
    let (Some(first), Some(fragment), Some(protocol)) =
        (packet.first(), be16(packet, 6), packet.get(9))
    else {
        return Some(Spoof::Hidden);
    };
    let (more, offset) = (fragment & 0x2000 != 0, fragment & 0x1fff);
    if *protocol != UDP || offset != 0 {
        return None;
    }
    let header = usize::from(first & 0xf) * 4;
    match be16(packet, header) {
        Some(DHCP_SERVER) => Some(Spoof::DhcpServer),
        // A first fragment without the whole UDP header, whose rest would come in the next one.
        _ if more && packet.len() < header + 8 => Some(Spoof::Hidden),
        Some(_) => None,
        None => Some(Spoof::Hidden),
    }
}

/// RFC 8200.
fn ipv6(packet: &[u8], is_own: impl Fn(Mac) -> bool) -> Option<Spoof> {
    let Some(mut next) = packet.get(6).copied() else { return Some(Spoof::Hidden) };
    let (mut rest, mut fragmented) = (rest(packet, 40), false);
    loop {
        let length = match next {
            UDP => {
                return match be16(rest, 0) {
                    Some(DHCP_V6_SERVER) => Some(Spoof::DhcpServer),
                    Some(_) => None,
                    None => Some(Spoof::Hidden),
                };
            }
            ICMP_V6 => return icmp_v6(rest, fragmented, is_own),
            FRAGMENT => {
                let Some(offset) = be16(rest, 2) else { return Some(Spoof::Hidden) };
                if offset & 0xfff8 != 0 {
                    // A later fragment is useless without the first one, which was checked.
                    return None;
                }
                fragmented = true;
                8
            }
            HOP_BY_HOP | ROUTING | DESTINATION => match rest.get(1) {
                Some(length) => 8 + 8 * usize::from(*length),
                None => return Some(Spoof::Hidden),
            },
            AUTHENTICATION => match rest.get(1) {
                Some(length) => 8 + 4 * usize::from(*length),
                None => return Some(Spoof::Hidden),
            },
            _ => return None,
        };
        let (Some(after), Some(beyond)) = (rest.first(), rest.get(length..)) else {
            return Some(Spoof::Hidden);
        };
        (next, rest) = (*after, beyond);
    }
}

/// RFC 4861: neighbour discovery messages, and their options (4.6.1).
fn icmp_v6(message: &[u8], fragmented: bool, is_own: impl Fn(Mac) -> bool) -> Option<Spoof> {
    let Some(kind) = message.first() else { return Some(Spoof::Hidden) };
    // The offset of the message's options, and the type of the option with the sender's address.
    let (options, sender) = match kind {
        133 => (8, 1),
        134 | 137 => return Some(Spoof::Router),
        135 => (24, 1),
        136 => (24, 2),
        _ => return None,
    };
    if fragmented {
        return Some(Spoof::Neighbour);
    }
    let mut options = rest(message, options);
    while let [kind, length, ..] = options {
        let Some(after) = options.get(usize::from(*length) * 8..).filter(|_| *length > 0) else {
            return Some(Spoof::Hidden);
        };
        if *kind == sender && !mac(options, 2).is_some_and(&is_own) {
            return Some(Spoof::Neighbour);
        }
        options = after;
    }
    None
}

/// The smallest head that suffices: tags, an IPv6 header, and a message with its option.
const _: () = assert!(ETHERNET_HEADER + MAX_TAGS * VLAN_TAG + 40 + 24 + 8 <= 128);

#[cfg(test)]
mod tests {
    use super::*;

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
        spoof(&frame[..frame.len().min(128)], |mac| mac.octets() == OWN)
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
            ("TCP from port 67", ethernet(0x0800, &ipv4(6, 0, 0, &udp(67))), None),
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
            ipv6(FRAGMENT, &[header, payload.to_vec()].concat())
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
