//! The way in of IPv6 packets: ICMPv6 and neighbour discovery, UDP, or a segment for TCP.

use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};

use frame::checksum::Sum;
use frame::{EtherType, Ipv6, Mac, Protocol, Udp};
use tcp::{Flow, Nanos, Segment, Seq};
use zerocopy::IntoBytes;

use crate::counters::Drop;
use crate::input::{Input, Packet};
use crate::link::Link;
use crate::neighbours::Advertised;
use crate::v6::groups::{QUERY, Query, ROUTER_ALERT};
use crate::v6::message::{
    self, Advertisement, ECHO_REQUEST, HOP_BY_HOP, NEVER_FORWARDED, Neighbour, REDIRECT,
    ROUTER_ADVERTISEMENT, SOLICITATION, TOO_BIG, UNREACHABLE,
};
use crate::v6::solicited_node;

/// Extension headers (RFC 8200, 4).
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// The code of an error that no socket has a port (RFC 4443, 3.1), and how much of the packet it
/// quotes: it fits any path.
const NO_PORT: u8 = 4;
const QUOTED: usize = 1280 - Ipv6::LEN - 8;
/// The maximum number of extension headers that are parsed.
const MAX_EXTENSIONS: usize = 8;

/// Returns the protocol after the extension headers, and where its part of `payload` begins.
fn upper_layer(ip: &Ipv6, payload: &[u8]) -> Result<(Protocol, usize), Drop> {
    let (mut next, mut at) = (ip.next_header().0, 0);
    for _ in 0..MAX_EXTENSIONS {
        if next == FRAGMENT {
            // A fragment that is the whole packet is one of no others (RFC 6946).
            let [following, _, high, low, ..] = *payload.get(at..).unwrap_or_default() else {
                return Err(Drop::Truncated);
            };
            if u16::from_be_bytes([high, low]) & 0xfff9 != 0 {
                return Err(Drop::Fragment);
            }
            payload.get(at..at + 8).ok_or(Drop::Truncated)?;
            (next, at) = (following, at + 8);
            continue;
        }
        if !matches!(next, HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS) {
            return Ok((Protocol(next), at));
        }
        let [following, len, _, left, ..] = *payload.get(at..).unwrap_or_default() else {
            return Err(Drop::Truncated);
        };
        let end = at + 8 + usize::from(len) * 8;
        let body = payload.get(at + 2..end).ok_or(Drop::Truncated)?;
        let bad = match next {
            // The packet is to go on to another host (RFC 8200, 4.4; RFC 5095).
            ROUTING => left > 0,
            _ => !are_known(body),
        };
        if bad {
            return Err(Drop::BadExtension);
        }
        (next, at) = (following, end);
    }
    Err(Drop::BadExtension)
}

/// Whether all options may be passed over (RFC 8200, 4.2).
fn are_known(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        // One byte of padding has no length.
        let Some((len, rest)) = rest.split_first().filter(|_| *kind != 0) else {
            if *kind != 0 {
                return false;
            }
            options = rest;
            continue;
        };
        match rest.get(usize::from(*len)..) {
            Some(rest) if kind >> 6 == 0 => options = rest,
            _ => return false,
        }
    }
    true
}

/// Whether a hop-by-hop header, all of whose options may be passed over, tells routers to look at a
/// message for multicast listeners (RFC 2711, 2.1).
fn has_router_alert(ip: &Ipv6, payload: &[u8]) -> bool {
    let [_, len, ..] = *payload else { return false };
    let options = payload.get(2..8 + usize::from(len) * 8);
    let mut options = options.filter(|_| ip.next_header().0 == HOP_BY_HOP).unwrap_or_default();
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (0, rest) => rest,
            (&ROUTER_ALERT, [2, 0, 0, ..]) => return true,
            (_, [len, rest @ ..]) => rest.get(usize::from(*len)..).unwrap_or_default(),
            (_, []) => return false,
        };
    }
    false
}

impl Input<'_> {
    /// Processes an IPv6 packet. `group`: its frame is for several hosts.
    pub fn ipv6<'f>(
        &mut self,
        packet: Packet<'f>,
        group: bool,
    ) -> Result<Option<(Segment<'f>, usize)>, Drop> {
        let Some(v6) = &self.link.v6 else { return Err(Drop::UnknownType) };
        let (ip, payload) = Ipv6::parse(packet.front).ok_or(Drop::Truncated)?;
        let end = Ipv6::LEN + ip.payload_len();
        if end > packet.len {
            return Err(Drop::Truncated);
        }
        let own = v6.is_own(ip.destination());
        if ip.next_header() == Protocol::TCP && own && !group {
            // The TCP machine verifies everything else itself.
            return Ok(self.tcp(packet, Ipv6::LEN, end, ip.addresses()));
        }
        let (protocol, at) = self.link.admit_v6(ip, payload, group)?;
        let from = ip.source();
        match protocol {
            Protocol::ICMPV6 => {
                let lost = self.link.icmp_v6((ip, payload, at), packet.trusted, self.now)?;
                match lost {
                    Some(Undelivered { flow, seq, mtu: Some(mtu) }) => {
                        self.machine.too_big(&flow, seq, mtu, self.now);
                    }
                    Some(Undelivered { flow, seq, mtu: None }) => {
                        self.machine.unreachable(&flow, seq);
                    }
                    None => {}
                }
            }
            // Only a host without an address has none, and it says nothing else.
            _ if from.is_unspecified() || self.link.is_own_v6(from) => return Err(Drop::BadSource),
            Protocol::UDP => {
                let done = self.udp_v6(ip, &payload[at..], packet.trusted);
                if done == Err(Drop::NoSocket) && own && !group {
                    self.report_v6(ip, packet.front);
                }
                done?;
            }
            _ if !own => return Err(Drop::NotForUs),
            // The machine knows no fragments.
            Protocol::TCP if ip.upper_layer(payload).is_none() => {
                let payload = payload.get(at..ip.payload_len()).ok_or(Drop::Truncated)?;
                let len = payload.len() as u16;
                let head = Ipv6::new(from, ip.destination(), Protocol::TCP, len);
                let whole = [head.as_bytes(), payload].concat();
                self.link.whole.push((whole, packet.trusted));
            }
            Protocol::TCP => return Ok(self.tcp(packet, Ipv6::LEN + at, end, ip.addresses())),
            _ => return Err(Drop::UnknownProtocol),
        }
        Ok(None)
    }

    /// Tells the sender of a datagram that no socket has its port (RFC 4443, 3.1).
    #[cold]
    fn report_v6(&mut self, ip: &Ipv6, packet: &[u8]) {
        if !self.link.may_report(self.now) {
            return;
        }
        let len = Ipv6::LEN + ip.payload_len();
        let quoted = &packet[..len.min(packet.len()).min(QUOTED)];
        let message = [&[UNREACHABLE, NO_PORT, 0, 0, 0, 0, 0, 0], quoted].concat();
        self.link.counters.unreachables += 1;
        self.link.push_icmp_v6(ip.destination(), ip.source(), message);
    }

    fn udp_v6(&mut self, ip: &Ipv6, payload: &[u8], trusted: bool) -> Result<(), Drop> {
        let (udp, _) = Udp::parse(payload).ok_or(Drop::Truncated)?;
        let datagram = payload.get(..udp.datagram_len()).ok_or(Drop::Truncated)?;
        let from = SocketAddrV6::new(ip.source(), udp.source(), 0, 0);
        // A datagram without a checksum is dropped (RFC 8200, 8.1).
        let sum =
            Sum::new().with_pseudo_header(ip.addresses(), Protocol::UDP, datagram.len() as u32);
        if !trusted && (udp.checksum() == 0 || sum.with(datagram).checksum() != 0) {
            return Err(Drop::BadChecksum);
        }
        self.deliver(udp.destination(), from.into(), &datagram[Udp::LEN..])
    }
}

/// A packet of ours that was not delivered, quoted in an error of ICMPv6.
#[derive(Debug)]
struct Undelivered {
    flow: Flow,
    seq: Seq,
    /// It was longer than this.
    mtu: Option<u16>,
}

/// A packet, its payload, and where the message begins after the extension headers.
type Message<'p> = (&'p Ipv6, &'p [u8], usize);

impl Link {
    /// Whether the host has the address.
    fn is_own_v6(&self, ip: Ipv6Addr) -> bool {
        self.v6.as_ref().is_some_and(|v6| v6.is_own(ip))
    }

    /// Checks a packet's addresses and extension headers. Returns what is behind them, and where.
    /// `group`: its frame is for several hosts.
    fn admit_v6(&self, ip: &Ipv6, payload: &[u8], group: bool) -> Result<(Protocol, usize), Drop> {
        let Some(v6) = &self.v6 else { return Err(Drop::UnknownType) };
        let (from, to) = (ip.source(), ip.destination());
        // A host that asks if it may have an address hears the others' messages about it.
        if !(v6.is_own(to) || group && v6.is_member(to)) {
            return Err(Drop::NotForUs);
        }
        if from.is_multicast() || from.is_loopback() || from.to_ipv4_mapped().is_some() {
            return Err(Drop::BadSource);
        }
        upper_layer(ip, payload)
    }

    /// Handles a packet for a host without a [`Stack`](crate::Stack): neighbour discovery, queries
    /// for listeners, and echoes.
    ///
    /// # Errors
    /// The reason why it is dropped.
    pub fn control_v6(&mut self, packet: &[u8], group: bool, now: Nanos) -> Result<(), Drop> {
        let (ip, payload) = Ipv6::parse(packet).ok_or(Drop::Truncated)?;
        if payload.len() < ip.payload_len() {
            return Err(Drop::Truncated);
        }
        match self.admit_v6(ip, payload, group)? {
            (Protocol::ICMPV6, at) => self.icmp_v6((ip, payload, at), false, now).map(|_| ()),
            _ => Err(Drop::UnknownProtocol),
        }
    }

    /// Handles a message of ICMPv6. An error is returned if it is about a segment of TCP.
    fn icmp_v6(
        &mut self,
        (ip, payload, at): Message<'_>,
        trusted: bool,
        now: Nanos,
    ) -> Result<Option<Undelivered>, Drop> {
        let bytes = &payload[at..];
        let sum =
            Sum::new().with_pseudo_header(ip.addresses(), Protocol::ICMPV6, bytes.len() as u32);
        if !trusted && sum.with(bytes).checksum() != 0 {
            return Err(Drop::BadChecksum);
        }
        let [kind, code, _, _, a, b, c, d, rest @ ..] = bytes else { return Err(Drop::Truncated) };
        let (from, to) = (ip.source(), ip.destination());
        let local = ip.hop_limit() == NEVER_FORWARDED && *code == 0;
        let done = match *kind {
            ROUTER_ADVERTISEMENT | SOLICITATION | message::ADVERTISEMENT if !local => {
                Err(Drop::BadDiscovery)
            }
            QUERY => self.query((ip, payload, at), now),
            ROUTER_ADVERTISEMENT => self.router(from, bytes, now),
            SOLICITATION | message::ADVERTISEMENT => self.neighbour((from, to), bytes, now),
            // Any host of the link could forge one, and packets take the same way without it.
            REDIRECT => Err(Drop::Redirect),
            _ if from.is_unspecified() => Err(Drop::BadSource),
            ECHO_REQUEST => self.echo_v6((from, to), bytes, now),
            // Every path carries 1280 bytes: a smaller MTU is raised to that.
            TOO_BIG => {
                let mtu = u32::from_be_bytes([*a, *b, *c, *d]);
                let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                return self.undelivered(rest, Some(mtu)).ok_or(Drop::OtherIcmp).map(Some);
            }
            UNREACHABLE => return self.undelivered(rest, None).ok_or(Drop::OtherIcmp).map(Some),
            _ => Err(Drop::OtherIcmp),
        };
        done.map(|()| None)
    }

    /// A query for the groups that the host listens to (RFC 3810, 6.2).
    fn query(&mut self, (ip, payload, at): Message<'_>, now: Nanos) -> Result<(), Drop> {
        let message = &payload[at..];
        let local = ip.source().is_unicast_link_local() && ip.hop_limit() == 1;
        let alert = local && message.get(1) == Some(&0) && has_router_alert(ip, payload);
        let query = Query::parse(message).filter(|_| alert).ok_or(Drop::BadQuery)?;
        let Some(v6) = &mut self.v6 else { return Err(Drop::UnknownType) };
        if v6.is_own(ip.source()) {
            return Err(Drop::BadSource);
        }
        v6.asked(&query, now);
        Ok(())
    }

    fn echo_v6(
        &mut self,
        (from, to): (Ipv6Addr, Ipv6Addr),
        request: &[u8],
        now: Nanos,
    ) -> Result<(), Drop> {
        let v6 = self.v6.as_ref();
        let own = v6.and_then(|v6| match v6.is_own(to) {
            true => Some(to),
            // A question to a group is answered from the host's own address (RFC 4443, 4.2).
            false => v6.source(from, now),
        });
        let own = own.filter(|own| *own != from).ok_or(Drop::BadSource)?;
        let mut reply = request.to_vec();
        reply[0] = message::ECHO_REPLY;
        self.counters.echoes += 1;
        self.push_icmp_v6(own, from, reply);
        Ok(())
    }

    /// Reads an ICMPv6 error: a packet of ours, quoted in part, was not delivered. With `mtu`, it
    /// was too big.
    fn undelivered(&self, quoted: &[u8], mtu: Option<u16>) -> Option<Undelivered> {
        let (ip, rest) = Ipv6::parse(quoted)?;
        if ip.next_header() != Protocol::TCP || !self.is_own_v6(ip.source()) {
            return None;
        }
        let [a, b, c, d, e, f, g, h, ..] = *rest else { return None };
        let local = (IpAddr::V6(ip.source()), u16::from_be_bytes([a, b]));
        let remote = (IpAddr::V6(ip.destination()), u16::from_be_bytes([c, d]));
        let (flow, seq) = (Flow::new(local, remote)?, Seq(u32::from_be_bytes([e, f, g, h])));
        Some(Undelivered { flow, seq, mtu })
    }

    /// A router advertisement (RFC 4861, 6.1.2).
    fn router(&mut self, from: Ipv6Addr, bytes: &[u8], now: Nanos) -> Result<(), Drop> {
        let told = Advertisement::parse(bytes).filter(|_| from.is_unicast_link_local());
        let told = told.ok_or(Drop::BadDiscovery)?;
        let longest = self.longest;
        let Some(v6) = &mut self.v6 else { return Err(Drop::UnknownType) };
        if v6.is_own(from) {
            return Err(Drop::BadSource);
        }
        v6.advertised(from, &told, longest, now);
        self.choose_mtu();
        if let Some(mac) = told.source() {
            self.mention(from, mac, now);
        }
        Ok(())
    }

    fn mention(&mut self, ip: Ipv6Addr, mac: Mac, now: Nanos) {
        let Some(v6) = &mut self.v6 else { return };
        let kept = v6.neighbours.mention(ip, mac, true, now);
        self.push_kept(kept, mac, EtherType::IPV6);
    }

    /// A solicitation or an advertisement of a neighbour (RFC 4861, 7.1 and 7.2).
    fn neighbour(
        &mut self,
        (from, to): (Ipv6Addr, Ipv6Addr),
        bytes: &[u8],
        now: Nanos,
    ) -> Result<(), Drop> {
        let Some(v6) = &mut self.v6 else { return Err(Drop::UnknownType) };
        let told = Neighbour::parse(bytes).ok_or(Drop::BadDiscovery)?;
        if v6.is_own(from) {
            return Err(Drop::BadSource);
        }
        match told {
            Neighbour::Solicitation { target, source } => {
                self.solicitation((from, to), target, source, now)
            }
            Neighbour::Advertisement { target, .. } if target.is_multicast() => {
                Err(Drop::BadDiscovery)
            }
            Neighbour::Advertisement { solicited: true, .. } if to.is_multicast() => {
                Err(Drop::BadDiscovery)
            }
            Neighbour::Advertisement { target, .. } if v6.is_taken(target) || v6.is_own(target) => {
                Err(Drop::Duplicate)
            }
            Neighbour::Advertisement { target, mac, solicited, overrides, router } => {
                let how = Advertised { solicited, overrides };
                let kept = v6.neighbours.advertise(target, mac, how, now);
                if !router {
                    v6.is_no_router(target);
                }
                if let Some(mac) = mac {
                    self.push_kept(kept, mac, EtherType::IPV6);
                }
                Ok(())
            }
        }
    }

    /// A question for an address (RFC 4861, 7.2.3), or a probe for duplicates (RFC 4862, 5.4.3).
    fn solicitation(
        &mut self,
        (from, to): (Ipv6Addr, Ipv6Addr),
        target: Ipv6Addr,
        source: Option<Mac>,
        now: Nanos,
    ) -> Result<(), Drop> {
        let Some(v6) = &mut self.v6 else { return Err(Drop::UnknownType) };
        let probe = from.is_unspecified();
        let bad = probe && (to != solicited_node(target) || source.is_some());
        if bad || target.is_multicast() {
            return Err(Drop::BadDiscovery);
        }
        if v6.is_tentative(target) {
            // Another host probes for the same address. Questions are for later.
            return match probe && v6.is_taken(target) {
                true => Err(Drop::Duplicate),
                false => Ok(()),
            };
        }
        if !v6.is_own(target) {
            return Err(Drop::NotForUs);
        }
        match (probe, source) {
            (true, _) => self.advertise(target, None),
            (false, Some(mac)) => {
                self.mention(from, mac, now);
                self.advertise(target, Some((from, mac)));
            }
            // Its address is known, or has to be asked for.
            (false, None) => self.advertise_by_address(target, from),
        }
        Ok(())
    }
}
