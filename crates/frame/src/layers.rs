//! A parsed frame, and the hash of its flow.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ethernet::{Arp, EtherType, Ethernet, Tag};
use crate::ip::{Ipv4, Ipv6};
use crate::protocol::Protocol;
use crate::transport::{Icmp, Tcp, Udp};

/// A frame's headers, up to the first that is unknown or incomplete.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// The Ethernet header.
    pub ethernet: &'a Ethernet,
    /// The outermost VLAN tag.
    pub tag: Option<&'a Tag>,
    /// The type of what comes after the tags.
    pub ethertype: EtherType,
    /// What comes after the tags.
    pub network: Network<'a>,
    /// What the IP packet carries.
    pub transport: Transport<'a>,
    /// What follows the last header that was parsed.
    pub payload: &'a [u8],
}

/// Layer 3 of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Network<'a> {
    /// IPv4.
    Ipv4(&'a Ipv4),
    /// IPv6.
    Ipv6(&'a Ipv6),
    /// ARP for IPv4.
    Arp(&'a Arp),
    /// Another protocol, or a header that is cut short.
    Other,
}

/// Layer 4 of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Transport<'a> {
    /// UDP.
    Udp(&'a Udp),
    /// TCP.
    Tcp(&'a Tcp),
    /// ICMP or ICMPv6.
    Icmp(&'a Icmp),
    /// A fragment, another protocol, an incomplete header, or no IP packet.
    Other,
}

/// The maximum number of VLAN tags that are parsed.
const MAX_TAGS: usize = 2;

impl<'a> Layers<'a> {
    /// Parses the headers of `frame`, which may be the head of a longer one. `None` if not even the
    /// Ethernet header is complete.
    #[must_use]
    pub fn of(frame: &'a [u8]) -> Option<Self> {
        let (ethernet, mut rest) = Ethernet::parse(frame)?;
        let (mut ethertype, mut outermost) = (ethernet.ethertype(), None);
        for _ in 0..MAX_TAGS {
            if !matches!(ethertype, EtherType::VLAN | EtherType::SERVICE_VLAN) {
                break;
            }
            let Some((tag, after)) = Tag::parse(rest) else { break };
            outermost = outermost.or(Some(tag));
            (ethertype, rest) = (tag.ethertype(), after);
        }
        let (network, upper, rest) = Network::of(ethertype, rest);
        let (transport, payload) = match upper {
            Some(protocol) => Transport::of(protocol, rest),
            None => (Transport::Other, rest),
        };
        Some(Self { ethernet, tag: outermost, ethertype, network, transport, payload })
    }
}

impl<'a> Network<'a> {
    /// Parses the header of type `ethertype` at the start of `bytes`. Returns it, the protocol it
    /// carries (unless that is unknown or a fragment), and the rest.
    fn of(ethertype: EtherType, bytes: &'a [u8]) -> (Self, Option<Protocol>, &'a [u8]) {
        let known = match ethertype {
            EtherType::IPV4 => Ipv4::parse(bytes).map(|(header, rest)| {
                let whole = Some(header.protocol()).filter(|_| !header.is_fragment());
                (Self::Ipv4(header), whole, rest)
            }),
            EtherType::IPV6 => {
                Ipv6::parse(bytes).map(|(header, rest)| match header.upper_layer(rest) {
                    Some((protocol, rest)) => (Self::Ipv6(header), Some(protocol), rest),
                    None => (Self::Ipv6(header), None, rest),
                })
            }
            EtherType::ARP => Arp::parse(bytes).map(|arp| (Self::Arp(arp), None, &bytes[28..])),
            _ => None,
        };
        known.unwrap_or((Self::Other, None, bytes))
    }
}

impl<'a> Transport<'a> {
    fn of(protocol: Protocol, bytes: &'a [u8]) -> (Self, &'a [u8]) {
        let known = match protocol {
            Protocol::UDP => Udp::parse(bytes).map(|(header, rest)| (Self::Udp(header), rest)),
            Protocol::TCP => Tcp::parse(bytes).map(|(header, rest)| (Self::Tcp(header), rest)),
            Protocol::ICMP | Protocol::ICMPV6 => {
                Icmp::parse(bytes).map(|(header, rest)| (Self::Icmp(header), rest))
            }
            _ => None,
        };
        known.unwrap_or((Self::Other, bytes))
    }
}

/// Source and destination port: the first four bytes of a UDP, TCP or SCTP header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Ports([u8; 4]);

/// A number that is the same for all frames of a flow, but differs between its directions. It comes
/// from IP addresses and ports; for fragments and other protocols, from IP addresses alone; for
/// other frames, from MAC addresses. Any bytes have a hash, and `head` need not be the whole frame.
#[must_use]
pub fn flow_hash(head: &[u8]) -> u32 {
    let Some((ethernet, mut rest)) = Ethernet::parse(head) else { return 0 };
    let mut ethertype = ethernet.ethertype();
    for _ in 0..MAX_TAGS {
        match Tag::parse(rest) {
            Some((tag, after))
                if matches!(ethertype, EtherType::VLAN | EtherType::SERVICE_VLAN) =>
            {
                (ethertype, rest) = (tag.ethertype(), after);
            }
            _ => break,
        }
    }
    let (network, upper, rest) = Network::of(ethertype, rest);
    let hash = match network {
        Network::Ipv4(header) => mix(0, word(header.addresses(), 0)),
        Network::Ipv6(header) => {
            (0..4).fold(0, |hash, i| mix(hash, word(header.addresses(), 8 * i)))
        }
        _ => mix(ethernet.destination().word(), ethernet.source().word()),
    };
    let ports = match upper {
        Some(Protocol::UDP | Protocol::TCP | Protocol::SCTP) => Ports::read_from_prefix(rest).ok(),
        _ => None,
    };
    let ports = ports.map_or(0, |(ports, _)| u64::from(u32::from_le_bytes(ports.0)));
    (mix(hash, ports) >> 32) as u32
}

/// The eight bytes at `at` of `bytes`, with zeros beyond its end.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Mixes `word` into `hash` (a folded multiplication, as in wyhash).
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let a = u128::from(hash ^ 0x9e37_79b9_7f4a_7c15);
    let product = a * u128::from(word ^ 0xe703_7ed1_a0b4_28db);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mac, UdpFrame, VlanId};
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn frame_of(flow: u16, vlan: Option<u16>) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let headers = UdpFrame {
            source_port: flow,
            vlan: vlan.and_then(VlanId::new),
            ..UdpFrame::between(Mac::local(1), Mac::local(2))
        };
        headers.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_frame_is_taken_apart() {
        let bytes = frame_of(77, Some(5));
        let layers = Layers::of(&bytes).unwrap();
        assert_eq!(layers.tag.map(Tag::vlan), Some(5));
        assert!(matches!(layers.transport, Transport::Udp(udp) if udp.source() == 77));
        assert_eq!(layers.payload.len(), 100 - 14 - 4 - 20 - 8);
    }

    #[test]
    fn flows_spread_over_queues_and_tags_do_not_matter() {
        let hashes: Vec<u32> = (0..1000).map(|flow| flow_hash(&frame_of(flow, None))).collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 1000);
        for queues in [2, 3, 4, 16] {
            let mut load = vec![0usize; queues];
            hashes.iter().for_each(|h| load[*h as usize % queues] += 1);
            let fair = 1000 / queues;
            assert!(load.iter().all(|n| n.abs_diff(fair) < fair / 2), "{load:?}");
        }
        assert_eq!(flow_hash(&frame_of(3, None)), flow_hash(&frame_of(3, Some(9))));
    }

    #[test]
    fn the_payload_does_not_matter() {
        let mut bytes = frame_of(3, None);
        let hash = flow_hash(&bytes);
        bytes[60..].fill(0xff);
        assert_eq!(flow_hash(&bytes), hash);
    }

    proptest! {
        #[test]
        fn any_bytes_have_layers_and_a_hash(
            kind in prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x8100), Just(0x0806), any::<u16>()],
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Some(field) = bytes.get_mut(12..14) {
                field.copy_from_slice(&kind.to_be_bytes());
            }
            if let Some(version) = bytes.get_mut(14) {
                *version = if kind == 0x0800 { 0x45 } else { 0x60 };
            }
            let _ = Layers::of(&bytes);
            let _ = flow_hash(&bytes);
        }
    }
}
