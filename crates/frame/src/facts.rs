//! What rules judge a frame by: facts from its head, parsed once.
//!
//! Forwarding copies a head of 128 bytes before any decision, and its sender may change the rest
//! later. So [`Facts`] come from the head alone, and say whether it holds all headers
//! ([`Facts::hidden`]).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ethernet::{EtherType, Ethernet};
use crate::layers::mix;
use crate::protocol::Protocol;
use crate::{ETHERNET_HEADER, Mac, VLAN_TAG};

/// The maximum number of VLAN tags that are parsed.
pub(crate) const MAX_TAGS: u8 = 2;
/// Types below this are lengths (IEEE 802.3, 3.2.6). LLC and SNAP headers may follow, and then a
/// type (RFC 1042).
const FIRST_TYPE: u16 = 0x600;
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// The destination option with the address that takes the source's place (RFC 6275, 6.3).
const HOME_ADDRESS: u8 = 0xc9;

/// Bytes of the UDP header, and of the others up to the last field that is looked at.
const UDP: usize = 8;
const TCP: usize = 14;
const PORTS: usize = 4;

/// What the head of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The source address.
    pub source: Mac,
    /// The destination address.
    pub destination: Mac,
    /// The number in the outermost VLAN tag.
    pub vlan: Option<u16>,
    /// How many VLAN tags there are.
    pub tags: u8,
    /// The type of what follows the tags.
    pub ethertype: EtherType,
    /// The source and the destination of an IP packet.
    pub ip: Option<(IpAddr, IpAddr)>,
    /// The protocol above IP, after all extension headers.
    pub protocol: Option<Protocol>,
    /// The source and the destination port of TCP, UDP or SCTP.
    pub ports: Option<(u16, u16)>,
    /// The flags of TCP (RFC 9293, 3.1), else 0.
    pub tcp_flags: u8,
    /// Which part of a packet the frame carries.
    pub fragment: Fragment,
    /// What the fragments of a packet have in common beside its addresses: the identification, 0 if
    /// the packet cannot have fragments.
    pub fragment_id: u32,
    /// Which headers are not in the head, or contradict themselves.
    pub hidden: Option<Hidden>,
    /// Where the first header begins that was not parsed.
    payload: usize,
}

/// Which part of an IP packet a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// All of it, or no IP packet.
    Whole,
    /// The first part. The only part of an IPv6 packet with a fragment header is one, too.
    First,
    /// A later part, without a transport header.
    Later,
}

/// Headers that the head does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// The addresses: there are too many tags, the packet's header is cut short or contradicts
    /// itself, or an option replaces the source.
    Network,
    /// The ports, or the type of an ICMP message.
    Transport,
}

/// Returns true for the types with which a VLAN tag begins.
#[must_use]
pub const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

impl Facts {
    /// The facts of a frame that begins with `head`. `None` if not even the Ethernet header is
    /// complete.
    #[must_use]
    pub fn of(head: &[u8]) -> Option<Self> {
        let (ethernet, _) = Ethernet::parse(head)?;
        let mut facts = Self {
            source: ethernet.source(),
            destination: ethernet.destination(),
            vlan: None,
            tags: 0,
            ethertype: ethernet.ethertype(),
            ip: None,
            protocol: None,
            ports: None,
            tcp_flags: 0,
            fragment: Fragment::Whole,
            fragment_id: 0,
            hidden: None,
            payload: ETHERNET_HEADER,
        };
        facts.hidden = facts.link(head).and_then(|()| facts.network(head)).err();
        Some(facts)
    }

    /// What follows the last header that was parsed: an ARP packet, a transport header.
    #[must_use]
    pub fn payload<'h>(&self, head: &'h [u8]) -> &'h [u8] {
        head.get(self.payload..).unwrap_or_default()
    }

    /// Where that ends which rules and guards look at. `None` for messages that they look at as a
    /// whole: ARP, RARP, ICMP and ICMPv6.
    #[must_use]
    pub(crate) fn end(&self) -> Option<usize> {
        let looked_at = match (self.protocol, self.ethertype) {
            (Some(Protocol::ICMP | Protocol::ICMPV6), _) => return None,
            (Some(Protocol::UDP), _) => UDP,
            (Some(Protocol::TCP), _) => TCP,
            (Some(Protocol::SCTP), _) => PORTS,
            (Some(_), _) => 0,
            (None, EtherType::ARP | EtherType::REVERSE_ARP) => return None,
            (None, _) => 0,
        };
        Some(self.payload + looked_at)
    }

    /// A number that is the same for all frames of a flow, but differs between its directions, and
    /// cannot be foreseen without the key. It comes from IP addresses and ports; for fragments
    /// and other protocols, from IP addresses alone; for other frames, from MAC addresses.
    #[must_use]
    pub fn flow_hash(&self, key: u64) -> u32 {
        let hash = match self.ip {
            Some((IpAddr::V4(from), IpAddr::V4(to))) => {
                mix(key, u64::from(from.to_bits()) << 32 | u64::from(to.to_bits()))
            }
            Some((IpAddr::V6(from), IpAddr::V6(to))) => {
                let words = [from.to_bits(), to.to_bits()];
                words.iter().fold(key, |hash, ip| mix(mix(hash, (ip >> 64) as u64), *ip as u64))
            }
            _ => mix(mix(key, self.destination.word()), self.source.word()),
        };
        let ports = self.ports.filter(|_| self.fragment == Fragment::Whole).unwrap_or_default();
        (mix(hash, u64::from(ports.0) << 16 | u64::from(ports.1)) >> 32) as u32
    }

    /// Reads VLAN tags, LLC and SNAP.
    fn link(&mut self, head: &[u8]) -> Result<(), Hidden> {
        loop {
            let kind = self.ethertype.0;
            let (tag, snap) =
                (is_tag(kind), kind < FIRST_TYPE && self.payload(head).starts_with(&SNAP));
            let skip = match (tag, snap) {
                (true, _) if self.tags == MAX_TAGS => return Err(Hidden::Network),
                (true, _) => {
                    let tci = be16(self.payload(head), 0).ok_or(Hidden::Network)?;
                    self.vlan = self.vlan.or(Some(tci & 0xfff));
                    self.tags += 1;
                    VLAN_TAG
                }
                (_, true) => SNAP.len() + 2,
                _ => return Ok(()),
            };
            let next = be16(self.payload(head), skip - 2).ok_or(Hidden::Network)?;
            (self.ethertype, self.payload) = (EtherType(next), self.payload + skip);
        }
    }

    fn network(&mut self, head: &[u8]) -> Result<(), Hidden> {
        match self.ethertype {
            EtherType::IPV4 => self.ipv4(head)?,
            EtherType::IPV6 => self.ipv6(head)?,
            _ => return Ok(()),
        }
        match self.fragment {
            Fragment::Later => Ok(()),
            _ => self.transport(head),
        }
    }

    /// RFC 791.
    fn ipv4(&mut self, head: &[u8]) -> Result<(), Hidden> {
        let header: &[u8; 20] = self.payload(head).first_chunk().ok_or(Hidden::Network)?;
        let len = usize::from(header[0] & 0xf) * 4;
        if header[0] >> 4 != 4 || len < 20 {
            return Err(Hidden::Network);
        }
        let address = |at: usize| {
            Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]).into()
        };
        self.ip = Some((address(12), address(16)));
        self.protocol = Some(Protocol(header[9]));
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        self.fragment = Fragment::of(fragment & 0x1fff, fragment & 0x2000 != 0);
        self.fragment_id = u32::from(u16::from_be_bytes([header[4], header[5]]));
        self.payload += len;
        // It would replace the flags of the first fragment (RFC 3128).
        let overlaps = fragment & 0x1fff == 1 && self.protocol == Some(Protocol::TCP);
        if overlaps { Err(Hidden::Transport) } else { Ok(()) }
    }

    /// RFC 8200.
    fn ipv6(&mut self, head: &[u8]) -> Result<(), Hidden> {
        let header: &[u8; 40] = self.payload(head).first_chunk().ok_or(Hidden::Network)?;
        if header[0] >> 4 != 6 {
            return Err(Hidden::Network);
        }
        let address = |at: usize| {
            let octets = header[at..at + 16].first_chunk().copied().unwrap_or_default();
            Ipv6Addr::from_octets(octets).into()
        };
        self.ip = Some((address(8), address(24)));
        self.protocol = Some(Protocol(header[6]));
        self.payload += header.len();
        while let Some(skip) = self.extension(head)? {
            let rest = self.payload(head);
            let (Some(next), true) = (rest.first(), skip <= rest.len()) else {
                return Err(Hidden::Transport);
            };
            (self.protocol, self.payload) = (Some(Protocol(*next)), self.payload + skip);
            if self.fragment == Fragment::Later {
                break;
            }
        }
        Ok(())
    }

    /// The length of the IPv6 extension header that is next; `None` if there is none.
    fn extension(&mut self, head: &[u8]) -> Result<Option<usize>, Hidden> {
        let rest = self.payload(head);
        let len = || rest.get(1).map(|len| usize::from(*len)).ok_or(Hidden::Transport);
        Ok(match self.protocol {
            Some(Protocol::FRAGMENT) => {
                let at = be16(rest, 2).ok_or(Hidden::Transport)?;
                let id = rest.get(4..8).and_then(|id| id.first_chunk().copied());
                self.fragment_id = u32::from_be_bytes(id.ok_or(Hidden::Transport)?);
                self.fragment = match Fragment::of(at >> 3, true) {
                    Fragment::Whole => Fragment::First,
                    part => part,
                };
                Some(8)
            }
            Some(Protocol::DESTINATION_OPTIONS) => {
                let whole = 8 + 8 * len()?;
                if rest.get(2..whole).is_some_and(replaces_source) {
                    return Err(Hidden::Network);
                }
                Some(whole)
            }
            Some(Protocol::HOP_BY_HOP | Protocol::ROUTING) => Some(8 + 8 * len()?),
            // Its length is in units of 4 octets (RFC 4302, 2.2).
            Some(Protocol::AUTHENTICATION) => Some(8 + 4 * len()?),
            _ => None,
        })
    }

    fn transport(&mut self, head: &[u8]) -> Result<(), Hidden> {
        let rest = self.payload(head);
        let (least, has_ports) = match self.protocol {
            Some(Protocol::UDP) => (UDP, true),
            Some(Protocol::TCP) => (TCP, true),
            Some(Protocol::SCTP) => (PORTS, true),
            Some(Protocol::ICMP | Protocol::ICMPV6) => (1, false),
            _ => return Ok(()),
        };
        if rest.len() < least {
            return Err(Hidden::Transport);
        }
        self.ports = be16(rest, 0).zip(be16(rest, 2)).filter(|_| has_ports);
        if self.protocol == Some(Protocol::TCP) {
            self.tcp_flags = rest[13];
        }
        Ok(())
    }
}

impl Fragment {
    const fn of(offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First,
            _ => Self::Later,
        }
    }
}

/// Returns true if one of these destination options gives another source.
fn replaces_source(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (&HOME_ADDRESS, _) => return true,
            // Padding of one byte has no length (RFC 8200, 4.2).
            (0, rest) => rest,
            (_, [len, rest @ ..]) => rest.get(usize::from(*len)..).unwrap_or_default(),
            (_, []) => &[],
        };
    }
    false
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn of(head: &[u8]) -> Facts {
        Facts::of(head).unwrap()
    }

    fn ethernet(types: &[u16], payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1];
        for (i, kind) in types.iter().enumerate() {
            bytes.extend(kind.to_be_bytes());
            if is_tag(*kind) {
                bytes.extend([0x20, 5 + i as u8]);
            }
        }
        bytes.extend(payload);
        bytes
    }

    fn ipv4(options: usize, fragment: u16, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 20 + options];
        header[0] = 0x40 | (header.len() / 4) as u8;
        header[6..8].copy_from_slice(&fragment.to_be_bytes());
        header[9] = protocol;
        header[12..20].copy_from_slice(&[10, 0, 0, 7, 10, 0, 0, 1]);
        header.extend(upper);
        header
    }

    fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        header.extend([Ipv6Addr::LOCALHOST.octets(), Ipv6Addr::UNSPECIFIED.octets()].concat());
        header.extend(rest);
        header
    }

    fn tcp(flags: u8) -> Vec<u8> {
        let mut header = vec![0x1f, 0x90, 0, 22];
        header.resize(20, 0);
        header[13] = flags;
        header
    }

    #[test]
    fn addresses_ports_and_flags_are_read_behind_tags_options_and_extension_headers() {
        let (v4, v6) = (ipv4(0, 0, 6, &tcp(2)), ipv6(6, &tcp(2)));
        let extended = [&[43, 0, 0, 0, 0, 0, 0, 0][..], &[6, 1, 1, 12], &[0; 12], &tcp(2)].concat();
        let authenticated = [&[6, 4][..], &[0; 22], &tcp(2)].concat();
        for (frame, tags, vlan) in [
            (ethernet(&[0x800], &v4), 0, None),
            (ethernet(&[0x8100, 0x800], &v4), 1, Some(5)),
            (ethernet(&[0x88a8, 0x8100, 0x800], &v4), 2, Some(5)),
            (ethernet(&[0x800], &ipv4(40, 0x4000, 6, &tcp(2))), 0, None),
            (ethernet(&[0x86dd], &v6), 0, None),
            (ethernet(&[0x9100, 0x9100, 0x86dd], &v6), 2, Some(5)),
            (ethernet(&[0x86dd], &ipv6(0, &extended)), 0, None),
            (ethernet(&[0x86dd], &ipv6(51, &authenticated)), 0, None),
            (ethernet(&[40, 0xaaaa, 0x300, 0, 0x800], &v4), 0, None),
            (ethernet(&[0x8100, 40, 0xaaaa, 0x300, 0, 0x86dd], &v6), 1, Some(5)),
        ] {
            let facts = of(&frame);
            assert_eq!((facts.hidden, facts.tags, facts.vlan), (None, tags, vlan), "{frame:x?}");
            assert_eq!((facts.ports, facts.tcp_flags), (Some((8080, 22)), 2), "{frame:x?}");
            assert_eq!(facts.protocol, Some(Protocol::TCP));
            assert_eq!(facts.payload(&frame), tcp(2));
            let from = facts.ip.unwrap().0;
            assert!([IpAddr::from([10, 0, 0, 7]), Ipv6Addr::LOCALHOST.into()].contains(&from));
        }
    }

    #[test]
    fn fragments_are_told_apart() {
        let piece = |offset: u16, more: u16| {
            let header = [&[17, 0][..], &(offset << 3 | more).to_be_bytes(), &[0; 4]].concat();
            ethernet(&[0x86dd], &ipv6(44, &[header, vec![0, 68, 0, 67, 0, 8, 0, 0]].concat()))
        };
        for (frame, fragment) in [
            (ethernet(&[0x800], &ipv4(0, 0x4000, 17, &[0; 8])), Fragment::Whole),
            (ethernet(&[0x800], &ipv4(0, 0x2000, 17, &[0; 8])), Fragment::First),
            (ethernet(&[0x800], &ipv4(0, 0x2001, 17, &[0; 8])), Fragment::Later),
            (ethernet(&[0x800], &ipv4(0, 1, 17, &[])), Fragment::Later),
            (piece(0, 1), Fragment::First),
            (piece(0, 0), Fragment::First),
            (piece(1, 0), Fragment::Later),
        ] {
            let facts = of(&frame);
            assert_eq!((facts.fragment, facts.hidden), (fragment, None), "{frame:x?}");
            assert_eq!(facts.ports.is_some(), fragment != Fragment::Later);
        }
    }

    #[test]
    fn what_the_head_does_not_show_is_hidden() {
        let long = |next: u8| [&[next, 12][..], &[0; 102], &[0; 8]].concat();
        let home = [&[17, 2, 1, 2, 0, 0, HOME_ADDRESS, 16][..], &[0xfd; 16], &[0; 8]].concat();
        for (frame, hidden) in [
            (ethernet(&[0x8100, 0x8100, 0x8100, 0x800], &[0x45; 40]), Hidden::Network),
            (ethernet(&[0x8100], &[])[..15].to_vec(), Hidden::Network),
            (ethernet(&[0x800], &[0x45; 19]), Hidden::Network),
            (ethernet(&[0x800], &[0x65; 40]), Hidden::Network),
            (ethernet(&[0x800], &[0x44; 40]), Hidden::Network),
            (ethernet(&[0x86dd], &[0x60; 39]), Hidden::Network),
            (ethernet(&[0x86dd], &[0x45; 60]), Hidden::Network),
            (ethernet(&[0x86dd], &ipv6(60, &home)), Hidden::Network),
            (ethernet(&[0x800], &ipv4(0, 0, 17, &[0; 7])), Hidden::Transport),
            (ethernet(&[0x800], &ipv4(0, 0x2000, 6, &[0; 8])), Hidden::Transport),
            (ethernet(&[0x800], &ipv4(0, 1, 6, &[0; 12])), Hidden::Transport),
            (ethernet(&[0x800], &ipv4(0, 0, 1, &[])), Hidden::Transport),
            (ethernet(&[0x86dd], &ipv6(0, &long(6))), Hidden::Transport),
            (ethernet(&[0x86dd], &ipv6(43, &[])), Hidden::Transport),
            (ethernet(&[0x86dd], &ipv6(44, &[6, 0, 0])), Hidden::Transport),
        ] {
            let head = &frame[..frame.len().min(128)];
            assert_eq!(of(head).hidden, Some(hidden), "{head:x?}");
        }
        for other in
            [ethernet(&[0x88b5], &[]), ethernet(&[0x806], &[1]), ethernet(&[40, 0x4242], &[])]
        {
            assert_eq!(of(&other).hidden, None, "{other:x?}");
        }
        assert_eq!(Facts::of(&[0; 13]), None);
    }

    #[test]
    fn flows_have_a_hash_that_depends_on_the_key() {
        let flow = |port: u16| {
            of(&ethernet(
                &[0x800],
                &ipv4(0, 0, 17, &[port.to_be_bytes(), [0, 7], [0, 8], [0; 2]].concat()),
            ))
        };
        let hashes: HashSet<u32> = (0..1000).map(|port| flow(port).flow_hash(7)).collect();
        assert_eq!(hashes.len(), 1000);
        assert_ne!(flow(1).flow_hash(7), flow(1).flow_hash(8));
        let (first, later) = (ipv4(0, 0x2000, 17, &[1; 8]), ipv4(0, 9, 17, &[2; 8]));
        let [first, later] =
            [first, later].map(|piece| of(&ethernet(&[0x800], &piece)).flow_hash(7));
        assert_eq!(first, later, "fragments of a packet are one flow");
        assert_ne!(of(&ethernet(&[0x86dd], &ipv6(59, &[]))).flow_hash(7), first);
    }

    proptest! {
        /// Any bytes have facts, and a frame's rest changes none of them.
        #[test]
        fn facts_are_of_the_head_alone(
            kinds in proptest::collection::vec(prop_oneof![
                Just(0x800u16), Just(0x86dd), Just(0x8100), Just(0x88a8), Just(0x806), any::<u16>()
            ], 1..4),
            version in prop_oneof![Just(0x45u8), Just(0x4f), Just(0x60), any::<u8>()],
            next in prop_oneof![Just(0u8), Just(43), Just(44), Just(51), Just(60), any::<u8>()],
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Some(first) = bytes.first_mut() {
                *first = version;
            }
            if let Some(field) = bytes.get_mut(6) {
                *field = next;
            }
            let frame = ethernet(&kinds, &bytes);
            let facts = of(&frame[..frame.len().min(128)]);
            let _ = facts.flow_hash(1);
            prop_assert_eq!(facts.ip.is_some(), facts.protocol.is_some());
            if facts.hidden.is_none() {
                prop_assert_eq!(of(&frame), facts);
            }
        }
    }
}
