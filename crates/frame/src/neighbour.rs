//! Neighbour discovery of stations behind a tunnel: which addresses a frame claims, and answers on
//! behalf of stations that other hosts report (ARP: RFC 826; ND: RFC 4861; RFC 9161 for EVPN).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;

use crate::checksum::Sum;
use crate::{
    Arp, ArpOperation, ETHERNET_HEADER, EtherType, Ethernet, Ipv6, Mac, Protocol, VLAN_TAG,
};

/// ICMPv6 types (RFC 4861, 4.3 and 4.4).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options with the sender's and the target's hardware address (RFC 4861, 4.6.1).
const SOURCE: u8 = 1;
const TARGET: u8 = 2;
/// Bytes of such a message without options.
const MESSAGE: usize = 24;

/// What a frame of ARP or neighbour discovery says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// The sender's hardware address and the IP address that it has.
    pub claim: Option<(Mac, IpAddr)>,
    /// The IP address whose owner is asked for.
    pub asks: Option<IpAddr>,
}

/// Reads a frame of ARP or neighbour discovery. `None` if it is another one, or makes no sense.
#[must_use]
pub fn discovery(head: &[u8]) -> Option<Discovery> {
    let (ethernet, at, ethertype) = network(head)?;
    let packet = head.get(at..)?;
    match ethertype {
        EtherType::ARP => arp(ethernet.source(), packet),
        EtherType::IPV6 => nd(ethernet.source(), packet),
        _ => None,
    }
}

/// The Ethernet header, the offset at which the packet begins, and the packet's type. At most one
/// tag is skipped.
fn network(head: &[u8]) -> Option<(&Ethernet, usize, EtherType)> {
    let (ethernet, _) = Ethernet::parse(head)?;
    if ethernet.ethertype() != EtherType::VLAN {
        return Some((ethernet, ETHERNET_HEADER, ethernet.ethertype()));
    }
    let at = ETHERNET_HEADER + VLAN_TAG;
    let inner: [u8; 2] = head.get(at - 2..at)?.try_into().ok()?;
    Some((ethernet, at, EtherType(u16::from_be_bytes(inner))))
}

fn arp(source: Mac, packet: &[u8]) -> Option<Discovery> {
    let arp = Arp::parse(packet)?;
    let ((sender, ip), (_, target)) = (arp.sender(), arp.target());
    // A sender that speaks for another station claims nothing, and neither does a probe without a
    // sender (RFC 5227, 2.1.1).
    let claim = (sender == source && is_host(ip)).then_some((sender, ip.into()));
    let asks = arp.operation() == ArpOperation::REQUEST && target != ip && is_host(target);
    Some(Discovery { claim, asks: asks.then_some(target.into()) })
}

fn is_host(ip: Ipv4Addr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast() && !ip.is_loopback()
}

fn nd(source: Mac, packet: &[u8]) -> Option<Discovery> {
    let (header, message) = Ipv6::parse(packet)?;
    // A message that crossed a router has another hop limit (RFC 4861, 7.1).
    let is_local = packet.get(7) == Some(&255) && header.next_header() == Protocol::ICMPV6;
    let (kind, target) = (*message.first()?, message.get(8..MESSAGE)?);
    if !is_local || message.get(1) != Some(&0) {
        return None;
    }
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(target).ok()?);
    let of = |kind| option(&message[MESSAGE..], kind) == Some(source);
    let is_host = |ip: Ipv6Addr| !ip.is_unspecified() && !ip.is_multicast();
    match kind {
        SOLICITATION => {
            let from = header.source();
            let claim = (is_host(from) && of(SOURCE)).then_some((source, from.into()));
            // A probe for duplicates has no sender: its owner must hear it (RFC 4862, 5.4).
            let asks = is_host(from) && is_host(target);
            Some(Discovery { claim, asks: asks.then_some(target.into()) })
        }
        ADVERTISEMENT => {
            let claim = (is_host(target) && of(TARGET)).then_some((source, target.into()));
            Some(Discovery { claim, asks: None })
        }
        _ => None,
    }
}

/// The hardware address in the first option of this type.
fn option(options: &[u8], kind: u8) -> Option<Mac> {
    let (mut rest, mut left) = (options, 8);
    while let [of, len, ..] = rest
        && *len > 0
        && left > 0
    {
        if (*of, *len) == (kind, 1) {
            return Some(Mac::new(rest.get(2..8)?.try_into().ok()?));
        }
        (rest, left) = (rest.get(usize::from(*len) * 8..)?, left - 1);
    }
    None
}

/// The answer of the station `owner` to a frame that [asks](Discovery::asks) for its address.
#[must_use]
pub fn neighbour_answer(head: &[u8], owner: Mac) -> Option<Vec<u8>> {
    let (ethernet, at, ethertype) = network(head)?;
    let asker = ethernet.source();
    let body = match ethertype {
        EtherType::ARP => {
            let arp = Arp::parse(head.get(at..)?)?;
            let (sender, target) = (arp.sender(), arp.target());
            let answer = Arp::new(ArpOperation::REPLY, (owner, target.1), sender);
            answer.as_bytes().to_vec()
        }
        EtherType::IPV6 => advertisement(head.get(at..)?, owner)?,
        _ => return None,
    };
    let mut frame = [asker.octets(), owner.octets()].concat();
    frame.extend_from_slice(&head[12..at]);
    frame.extend(body);
    Some(frame)
}

/// A neighbour advertisement (RFC 4861, 4.4): solicited, and it overrides.
fn advertisement(packet: &[u8], owner: Mac) -> Option<Vec<u8>> {
    const FLAGS: u8 = 0x60;
    let (header, message) = Ipv6::parse(packet)?;
    let target: [u8; 16] = message.get(8..MESSAGE)?.try_into().ok()?;
    let mut answer =
        [&[ADVERTISEMENT, 0, 0, 0, FLAGS, 0, 0, 0][..], &target, &[TARGET, 1]].concat();
    answer.extend(owner.octets());
    let len = answer.len() as u16;
    let ip = Ipv6::new(target.into(), header.source(), Protocol::ICMPV6, len);
    let sum = Sum::new().with_pseudo_header(ip.addresses(), Protocol::ICMPV6, len.into());
    let sum = sum.with(&answer).checksum();
    answer[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = ip.as_bytes().to_vec();
    // The hop limit that proves that no router forwarded the packet.
    packet[7] = 255;
    packet.extend(answer);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

    fn frame(to: Mac, from: Mac, ethertype: EtherType, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_HEADER];
        Ethernet::new(to, from, ethertype).write_to(&mut frame[..]).unwrap();
        frame.extend(body);
        frame
    }

    fn request() -> Vec<u8> {
        let arp =
            Arp::new(ArpOperation::REQUEST, (Mac::local(1), V4[0]), (Mac::from_word(0), V4[1]));
        frame(Mac::BROADCAST, Mac::local(1), EtherType::ARP, arp.as_bytes())
    }

    fn v6(n: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n)
    }

    fn solicitation(from: Ipv6Addr) -> Vec<u8> {
        let mut message = [&[SOLICITATION, 0, 0, 0, 0, 0, 0, 0][..], &v6(2).octets()].concat();
        message.extend([&[SOURCE, 1][..], &Mac::local(1).octets()].concat());
        let ip = Ipv6::new(from, v6(0xff), Protocol::ICMPV6, message.len() as u16);
        let mut packet = [ip.as_bytes(), &message].concat();
        packet[7] = 255;
        frame(Mac::new([0x33, 0x33, 0, 0, 0, 1]), Mac::local(1), EtherType::IPV6, &packet)
    }

    #[test]
    fn requests_are_read_and_answered_in_the_name_of_the_owner() {
        let asked = request();
        let tagged = [&asked[..12], &[0x81, 0, 0, 5], &asked[12..]].concat();
        for (asked, at) in [(asked, 14), (tagged, 18)] {
            let found = discovery(&asked).unwrap();
            assert_eq!(found.claim, Some((Mac::local(1), V4[0].into())));
            assert_eq!(found.asks, Some(V4[1].into()));
            let answer = neighbour_answer(&asked, Mac::local(2)).unwrap();
            assert_eq!(answer[12..at], asked[12..at], "the same tag");
            let arp = Arp::parse(&answer[at..]).unwrap();
            assert_eq!(
                (arp.operation(), arp.sender()),
                (ArpOperation::REPLY, (Mac::local(2), V4[1]))
            );
            assert_eq!(arp.target(), (Mac::local(1), V4[0]));
            assert_eq!(discovery(&answer).unwrap().asks, None);
        }
    }

    #[test]
    fn solicitations_are_read_and_answered_in_the_name_of_the_owner() {
        let asked = solicitation(v6(1));
        let found = discovery(&asked).unwrap();
        assert_eq!(
            (found.claim, found.asks),
            (Some((Mac::local(1), v6(1).into())), Some(v6(2).into()))
        );
        let answer = neighbour_answer(&asked, Mac::local(2)).unwrap();
        let claim = discovery(&answer).unwrap();
        assert_eq!((claim.claim, claim.asks), (Some((Mac::local(2), v6(2).into())), None));
        let (header, message) = Ipv6::parse(&answer[14..]).unwrap();
        assert_eq!((header.source(), header.destination()), (v6(2), v6(1)));
        let sum = Sum::new().with_pseudo_header(
            header.addresses(),
            Protocol::ICMPV6,
            message.len() as u32,
        );
        assert_eq!(sum.with(message).checksum(), 0);
        // A probe for duplicates.
        let probe = discovery(&solicitation(Ipv6Addr::UNSPECIFIED)).unwrap();
        assert_eq!((probe.claim, probe.asks), (None, None));
    }

    #[test]
    fn what_speaks_for_another_or_crossed_a_router_claims_nothing() {
        let mut other = request();
        other[6] ^= 4;
        assert_eq!(discovery(&other).unwrap().claim, None);
        let announcement = Arp::announcement(Mac::local(1), V4[0]);
        let gratuitous =
            frame(Mac::BROADCAST, Mac::local(1), EtherType::ARP, announcement.as_bytes());
        let found = discovery(&gratuitous).unwrap();
        assert_eq!((found.claim.is_some(), found.asks), (true, None));
        let mut routed = solicitation(v6(1));
        routed[14 + 7] = 254;
        assert_eq!(discovery(&routed), None);
        for whole in [request(), solicitation(v6(1))] {
            for len in 0..whole.len() {
                let _ = (discovery(&whole[..len]), neighbour_answer(&whole[..len], Mac::local(2)));
            }
        }
    }
}
