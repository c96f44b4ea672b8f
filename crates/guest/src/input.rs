//! The way in: each frame is parsed, and handed to ARP, ICMP, UDP, or as a segment to TCP.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use frame::checksum::{Sum, checksum};
use frame::{Arp, ArpOperation, EtherType, Ethernet, Icmp, Ipv4, Mac, Protocol, Udp};
use tcp::codec::Verify;
use tcp::{Flow, Machine, Nanos, Receive, Segment, Seq};

use crate::counters::Drop;
use crate::link::Link;
use crate::udp::{Delivered, Sockets};

/// Segments that TCP gets at once.
const SEGMENTS: usize = 32;

/// What a frame may change.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub link: &'a mut Link,
    pub machine: &'a mut Machine,
    pub udp: &'a mut Sockets,
    pub now: Nanos,
}

impl Input<'_> {
    /// Processes a batch of frames. Neighbours among TCP's segments are merged by the machine.
    pub fn frames(&mut self, frames: &[&[u8]], app: &mut impl Receive) {
        self.link.counters.frames_in += frames.len() as u64;
        for some in frames.chunks(SEGMENTS) {
            let mut segments = some.iter().enumerate();
            // The first segment fills the array: a `Segment` has no empty value.
            let Some((at, first)) = segments.find_map(|(at, f)| Some((at, self.frame(f)?))) else {
                continue;
            };
            if at + 1 == some.len() {
                self.machine.on_segment(&first, self.now, app);
                continue;
            }
            let mut batch: [Segment<'_>; SEGMENTS] = [first; SEGMENTS];
            let mut n = 1;
            for segment in segments.filter_map(|(_, frame)| self.frame(frame)) {
                batch[n] = segment;
                n += 1;
            }
            self.machine.on_batch(&batch[..n], self.now, app);
        }
    }

    /// Processes a frame; returns the segment if it is TCP's. What is dropped is counted.
    fn frame<'f>(&mut self, frame: &'f [u8]) -> Option<Segment<'f>> {
        let result = self.ethernet(frame);
        result.unwrap_or_else(|reason| {
            self.link.counters.count(reason);
            None
        })
    }

    fn ethernet<'f>(&mut self, frame: &'f [u8]) -> Result<Option<Segment<'f>>, Drop> {
        let (ethernet, packet) = Ethernet::parse(frame).ok_or(Drop::Truncated)?;
        let to = ethernet.destination();
        if to != self.link.mac && !to.is_group() {
            return Err(Drop::NotForUs);
        }
        match ethernet.ethertype() {
            EtherType::IPV4 => self.ipv4(packet, to.is_group()),
            EtherType::ARP => self.arp(packet).map(|()| None),
            _ => Err(Drop::UnknownType),
        }
    }

    fn arp(&mut self, packet: &[u8]) -> Result<(), Drop> {
        let arp = Arp::parse(packet).ok_or(Drop::BadArp)?;
        let ((mac, address), (_, wanted)) = (arp.sender(), arp.target());
        if mac.is_group() || mac == Mac::from_word(0) || address == self.link.address {
            return Err(Drop::BadArp);
        }
        let request = arp.operation() == ArpOperation::REQUEST;
        let for_us = wanted == self.link.address;
        // RFC 5227, 2.1.1: who probes for an address has none yet.
        if !address.is_unspecified() {
            if !self.link.is_on_link(address) || self.link.is_broadcast(address) {
                return Err(Drop::BadArp);
            }
            self.link.confirm(address, mac, request && for_us, self.now);
        }
        if request && for_us {
            self.link.tell(mac, address);
        }
        Ok(())
    }

    fn ipv4<'f>(&mut self, packet: &'f [u8], group: bool) -> Result<Option<Segment<'f>>, Drop> {
        let (ip, payload) = Ipv4::parse(packet).ok_or(Drop::Truncated)?;
        if ip.total_len() > packet.len() {
            return Err(Drop::Truncated);
        }
        let (from, to) = (ip.source(), ip.destination());
        let broadcast = group || self.link.is_broadcast(to);
        if to != self.link.address && !(broadcast && self.link.is_broadcast(to)) {
            return Err(Drop::NotForUs);
        }
        if ip.protocol() == Protocol::TCP && !broadcast {
            // It looks at everything else itself.
            return Ok(self.machine.parse(packet, Verify::Checksums));
        }
        if !Ipv4::checksum_ok(packet) {
            return Err(Drop::BadChecksum);
        }
        if ip.is_fragment() {
            return Err(Drop::Fragment);
        }
        let is_no_host = from.is_multicast() || from.is_unspecified() || from.is_loopback();
        if is_no_host || self.link.is_broadcast(from) || from == self.link.address {
            return Err(Drop::BadSource);
        }
        match ip.protocol() {
            Protocol::ICMP if !broadcast => self.icmp(from, payload)?,
            Protocol::UDP => self.udp(ip, payload)?,
            // Only datagrams are for all.
            _ if broadcast => return Err(Drop::NotForUs),
            _ => return Err(Drop::UnknownProtocol),
        }
        Ok(None)
    }

    fn udp(&mut self, ip: &Ipv4, payload: &[u8]) -> Result<(), Drop> {
        let (udp, _) = Udp::parse(payload).ok_or(Drop::Truncated)?;
        let datagram = payload.get(..udp.datagram_len()).ok_or(Drop::Truncated)?;
        if udp.checksum() != 0 {
            let sum = Sum::new();
            let sum = sum.with_pseudo_header(ip.addresses(), Protocol::UDP, datagram.len() as u32);
            if sum.with(datagram).checksum() != 0 {
                return Err(Drop::BadChecksum);
            }
        }
        let from = SocketAddrV4::new(ip.source(), udp.source());
        match self.udp.deliver(udp.destination(), from, &datagram[Udp::LEN..]) {
            Delivered::Queued => self.link.counters.datagrams_in += 1,
            Delivered::NoSocket => return Err(Drop::NoSocket),
            Delivered::Full => return Err(Drop::SocketFull),
        }
        Ok(())
    }

    fn icmp(&mut self, from: Ipv4Addr, message: &[u8]) -> Result<(), Drop> {
        let (icmp, quoted) = Icmp::parse(message).ok_or(Drop::Truncated)?;
        if checksum(message) != 0 {
            return Err(Drop::BadChecksum);
        }
        match (icmp.kind, icmp.code) {
            (8, 0) => {
                self.echo(from, message);
                Ok(())
            }
            (3, code) => {
                // Next-hop MTU (RFC 1191, 4): the field that is the sequence number in an echo.
                let mtu = icmp.echo().1;
                self.unreachable(code, mtu, quoted).ok_or(Drop::OtherIcmp)
            }
            _ => Err(Drop::OtherIcmp),
        }
    }

    fn echo(&mut self, to: Ipv4Addr, request: &[u8]) {
        let mut reply = request.to_vec();
        reply[..4].fill(0);
        let sum = checksum(&reply);
        reply[2..4].copy_from_slice(&sum.to_be_bytes());
        self.link.counters.echoes += 1;
        self.link.push_packet(to, Protocol::ICMP, &reply);
    }

    /// A router or the peer says that a packet of ours, quoted in part, did not arrive.
    fn unreachable(&mut self, code: u8, mtu: u16, quoted: &[u8]) -> Option<()> {
        let (ip, rest) = Ipv4::parse(quoted)?;
        if ip.protocol() != Protocol::TCP || ip.source() != self.link.address {
            return None;
        }
        let (ports, seq) = rest.split_first_chunk::<4>().zip(rest.get(4..8))?;
        let port = |at: usize| u16::from_be_bytes([ports.0[at], ports.0[at + 1]]);
        let local = (IpAddr::V4(ip.source()), port(0));
        let remote = (IpAddr::V4(ip.destination()), port(2));
        let flow = Flow::new(local, remote)?;
        let seq = Seq(u32::from_be_bytes(seq.try_into().ok()?));
        match code {
            4 => self.machine.too_big(&flow, seq, mtu, self.now),
            _ => self.machine.unreachable(&flow, seq),
        }
        Some(())
    }
}
