//! The way in: parses each frame, and passes it to ARP, ICMP, UDP, or as a segment to TCP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use frame::checksum::{Sum, checksum};
use frame::{
    ETHERNET_HEADER, EtherType, Ethernet, Icmp, Ipv4, Ipv6, Offload, Protocol, Udp, VLAN_TAG,
};
use tcp::codec::Verify;
use tcp::{Flags, Flow, Machine, Nanos, Receive, Segment, Seq};

use crate::counters::Drop;
use crate::dhcp;
use crate::fragments::Outcome;
use crate::link::Link;
use crate::nic::Frame;
use crate::udp::{Delivered, Sockets};

/// Maximum number of tags of a frame.
const MAX_TAGS: usize = 2;
/// Bytes of a packet that an ICMP error quotes (RFC 1812, 4.3.2.3; RFC 4443, 3.1).
const QUOTED: usize = 548;
/// Maximum number of segments that TCP gets at once.
const SEGMENTS: usize = 64;

/// Segments that are collected until the end of the batch.
#[derive(Default)]
struct Gathered<'f> {
    one: Option<Segment<'f>>,
    /// Two or more segments. `Segment` has no empty value, so copies of the second fill the array.
    many: Option<([Segment<'f>; SEGMENTS], usize)>,
}

/// A packet in place in its frame.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'f> {
    pub front: &'f [u8],
    rest: &'f [&'f [u8]],
    /// Bytes of `front` and the rest together.
    pub len: usize,
    /// The checksums need not be verified.
    pub trusted: bool,
}

impl<'f> Packet<'f> {
    fn of(frame: &Frame<'f>) -> Self {
        let len = frame.front.len() + frame.rest.iter().map(|piece| piece.len()).sum::<usize>();
        let trusted = frame.offload != Offload::NONE;
        Self { front: frame.front, rest: frame.rest, len, trusted }
    }

    /// Returns the packet without its first `n` bytes, which are in `front`.
    fn after(self, n: usize) -> Self {
        Self { front: &self.front[n..], len: self.len - n, ..self }
    }

    /// Adds the bytes from `from` to `to` to `sum`. `from` lies in `front`.
    fn sum(&self, sum: Sum, from: usize, to: usize) -> Sum {
        let mut left = to - from;
        let front = &self.front[from..];
        let pieces = std::iter::once(front).chain(self.rest.iter().copied());
        pieces.fold(sum, |sum, piece| {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            sum.with(piece)
        })
    }
}

/// Returns the bytes of tags that say a priority and no VLAN (IEEE 802.1Q, 6.9), and the type of
/// what is behind them; `None` for a tag of a VLAN.
fn priority_tags(front: &[u8]) -> Option<(usize, EtherType)> {
    let mut at = ETHERNET_HEADER;
    for _ in 0..=MAX_TAGS {
        let [a, b] = *front.get(at - 2..at)?.first_chunk()?;
        let kind = EtherType(u16::from_be_bytes([a, b]));
        if !matches!(kind, EtherType::VLAN | EtherType::SERVICE_VLAN) {
            return Some((at - ETHERNET_HEADER, kind));
        }
        let tag = u16::from_be_bytes(*front.get(at..)?.first_chunk()?);
        if tag & 0xfff != 0 {
            return None;
        }
        at += VLAN_TAG;
    }
    None
}

/// Returns true if a frame with this beginning carries TCP.
fn is_tcp(front: &[u8]) -> bool {
    let Some((ethernet, mut packet)) = Ethernet::parse(front) else { return false };
    let mut kind = ethernet.ethertype();
    if matches!(kind, EtherType::VLAN | EtherType::SERVICE_VLAN) {
        let Some((tags, behind)) = priority_tags(front) else { return false };
        (packet, kind) = (packet.get(tags..).unwrap_or_default(), behind);
    }
    match kind {
        EtherType::IPV4 => {
            Ipv4::parse(packet).is_some_and(|(ip, _)| ip.protocol() == Protocol::TCP)
        }
        EtherType::IPV6 => {
            Ipv6::parse(packet).is_some_and(|(ip, _)| ip.next_header() == Protocol::TCP)
        }
        _ => false,
    }
}

/// The state that a received frame may change.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub link: &'a mut Link,
    pub machine: &'a mut Machine,
    pub udp: &'a mut Sockets,
    pub now: Nanos,
}

impl Input<'_> {
    /// Processes a batch of frames. The machine merges consecutive TCP segments. The pieces of a
    /// long frame arrive as such segments, so it merges them, too.
    pub fn frames(&mut self, frames: &[Frame<'_>], app: &mut impl Receive) {
        self.link.counters.frames_in += frames.len() as u64;
        let mut gathered = Gathered::default();
        for frame in frames {
            let Some((mut segment, mut left)) = self.frame(frame) else { continue };
            let end = segment.header.flags & (Flags::PSH | Flags::FIN);
            for piece in frame.rest {
                let piece = &piece[..piece.len().min(left)];
                if piece.is_empty() {
                    break;
                }
                left -= piece.len();
                let next = segment.header.seq + segment.payload.len() as u32;
                segment.header.flags -= end;
                if !segment.payload.is_empty() {
                    self.gather(&mut gathered, segment, app);
                }
                segment.payload = piece;
                segment.header.seq = next;
                segment.header.flags |= end;
            }
            self.gather(&mut gathered, segment, app);
        }
        self.hand_in(&mut gathered, app);
        if !self.link.whole.is_empty() {
            self.whole_packets(app);
        }
    }

    /// Processes the packets that were put together.
    #[cold]
    fn whole_packets(&mut self, app: &mut impl Receive) {
        for (packet, trusted) in std::mem::take(&mut self.link.whole) {
            let packet = Packet { front: &packet, rest: &[], len: packet.len(), trusted };
            let done = match packet.front.first().map(|byte| byte >> 4) {
                Some(6) => self.ipv6(packet, false),
                _ => self.ipv4(packet, false),
            };
            match done {
                Ok(Some((segment, _))) => self.machine.on_segment(&segment, self.now, app),
                Ok(None) => {}
                Err(reason) => self.link.counters.count(reason),
            }
        }
    }

    /// Collects a segment for the machine. When the array is full, the machine gets its content
    /// first.
    #[inline]
    fn gather<'f>(
        &mut self,
        gathered: &mut Gathered<'f>,
        segment: Segment<'f>,
        app: &mut impl Receive,
    ) {
        if let Some((list, n)) = &mut gathered.many {
            list[*n] = segment;
            *n += 1;
            if *n == SEGMENTS {
                self.hand_in(gathered, app);
            }
        } else if let Some(first) = gathered.one.take() {
            let (list, _) = gathered.many.insert(([segment; SEGMENTS], 2));
            list[0] = first;
        } else {
            gathered.one = Some(segment);
        }
    }

    fn hand_in(&mut self, gathered: &mut Gathered<'_>, app: &mut impl Receive) {
        if let Some((list, n)) = &gathered.many {
            self.machine.on_batch(&list[..*n], self.now, app);
            gathered.many = None;
        }
        if let Some(segment) = gathered.one.take() {
            self.machine.on_segment(&segment, self.now, app);
        }
    }

    /// Processes a frame. For TCP, returns the segment, and how many of its bytes lie in the
    /// frame's other pieces. Drops are counted.
    fn frame<'f>(&mut self, frame: &Frame<'f>) -> Option<(Segment<'f>, usize)> {
        let result = match frame.rest.is_empty() || is_tcp(frame.front) {
            true => self.ethernet(Packet::of(frame)),
            // Long frames of other protocols are rare.
            false => {
                let whole = frame.to_vec();
                let frame = Frame { front: &whole, rest: &[], ..*frame };
                self.ethernet(Packet::of(&frame)).map(|_| None)
            }
        };
        result.unwrap_or_else(|reason| {
            self.link.counters.count(reason);
            None
        })
    }

    fn ethernet<'f>(&mut self, frame: Packet<'f>) -> Result<Option<(Segment<'f>, usize)>, Drop> {
        let (ethernet, packet) = Ethernet::parse(frame.front).ok_or(Drop::Truncated)?;
        let to = ethernet.destination();
        if to != self.link.mac && !to.is_group() {
            self.link.astray(ethernet, packet, self.now);
            return Err(Drop::NotForUs);
        }
        match ethernet.ethertype() {
            EtherType::IPV4 => self.ipv4(frame.after(ETHERNET_HEADER), to.is_group()),
            EtherType::IPV6 => self.ipv6(frame.after(ETHERNET_HEADER), to.is_group()),
            EtherType::ARP => self.link.arp(packet, self.now).map(|()| None),
            EtherType::VLAN | EtherType::SERVICE_VLAN => self.tagged(frame, to.is_group()),
            _ => Err(Drop::UnknownType),
        }
    }

    /// Processes a frame with tags. Those that say a priority alone are passed over.
    #[cold]
    fn tagged<'f>(
        &mut self,
        frame: Packet<'f>,
        group: bool,
    ) -> Result<Option<(Segment<'f>, usize)>, Drop> {
        let (tags, kind) = priority_tags(frame.front).ok_or(Drop::UnknownType)?;
        let packet = frame.after(ETHERNET_HEADER + tags);
        match kind {
            EtherType::IPV4 => self.ipv4(packet, group),
            EtherType::IPV6 => self.ipv6(packet, group),
            EtherType::ARP => self.link.arp(packet.front, self.now).map(|()| None),
            _ => Err(Drop::UnknownType),
        }
    }

    /// Keeps a fragment, until its packet is whole.
    #[cold]
    fn fragment(&mut self, ip: &Ipv4, packet: &[u8]) -> Result<(), Drop> {
        // Padding may follow the packet.
        let packet = packet.get(..ip.total_len()).ok_or(Drop::Truncated)?;
        if !Ipv4::checksum_ok(packet) {
            return Err(Drop::BadChecksum);
        }
        let (outcome, gone) = self.link.fragments.insert(packet, self.now);
        self.link.counters.count_many(Drop::Fragment, gone);
        match outcome {
            Outcome::Kept => {}
            Outcome::Whole(packet) => {
                self.link.counters.reassembled += 1;
                self.link.whole.push((packet, false));
            }
            Outcome::Dropped => return Err(Drop::Fragment),
        }
        Ok(())
    }

    fn ipv4<'f>(
        &mut self,
        packet: Packet<'f>,
        group: bool,
    ) -> Result<Option<(Segment<'f>, usize)>, Drop> {
        let (ip, payload) = Ipv4::parse(packet.front).ok_or(Drop::Truncated)?;
        if ip.total_len() > packet.len {
            return Err(Drop::Truncated);
        }
        let (from, to) = (ip.source(), ip.destination());
        let broadcast = group || self.link.is_broadcast(to);
        let own = to == self.link.address && !to.is_unspecified();
        if !(own || broadcast && self.link.is_broadcast(to)) {
            return Err(Drop::NotForUs);
        }
        if ip.protocol() == Protocol::TCP && !broadcast {
            // The TCP machine verifies everything else itself.
            let segment = self.tcp(packet, ip.header_len(), ip.total_len(), ip.addresses());
            if segment.is_none() && ip.is_fragment() {
                self.fragment(ip, packet.front)?;
            }
            return Ok(segment);
        }
        if !Ipv4::checksum_ok(packet.front) {
            return Err(Drop::BadChecksum);
        }
        if ip.is_fragment() {
            return self.fragment(ip, packet.front).map(|()| None);
        }
        let is_no_host = from.is_multicast() || from.is_unspecified() || from.is_loopback();
        if is_no_host || self.link.is_broadcast(from) || from == self.link.address {
            return Err(Drop::BadSource);
        }
        match ip.protocol() {
            Protocol::ICMP if !broadcast => self.icmp(from, payload)?,
            Protocol::UDP => {
                let done = self.udp(ip, payload, packet.trusted);
                if done == Err(Drop::NoSocket) && !broadcast {
                    self.report(packet.front, ip);
                }
                done?;
            }
            // Only datagrams may be broadcast.
            _ if broadcast => return Err(Drop::NotForUs),
            _ => return Err(Drop::UnknownProtocol),
        }
        Ok(None)
    }

    /// Parses a packet with TCP, whose payload starts at `at` and ends at `end`.
    pub fn tcp<'f>(
        &mut self,
        packet: Packet<'f>,
        at: usize,
        end: usize,
        addresses: &[u8],
    ) -> Option<(Segment<'f>, usize)> {
        if packet.rest.is_empty() && !packet.trusted {
            return self.machine.parse(packet.front, Verify::Checksums).map(|segment| (segment, 0));
        }
        let good = packet.trusted || {
            let sum = Sum::new();
            let sum = sum.with_pseudo_header(addresses, Protocol::TCP, (end - at) as u32);
            at <= packet.front.len() && packet.sum(sum, at, end).checksum() == 0
        };
        if !good {
            self.link.counters.count(Drop::BadChecksum);
            return None;
        }
        self.machine.parse_front(packet.front, packet.len)
    }

    fn udp(&mut self, ip: &Ipv4, payload: &[u8], trusted: bool) -> Result<(), Drop> {
        let (udp, _) = Udp::parse(payload).ok_or(Drop::Truncated)?;
        let datagram = payload.get(..udp.datagram_len()).ok_or(Drop::Truncated)?;
        if udp.checksum() != 0 && !trusted {
            let sum = Sum::new();
            let sum = sum.with_pseudo_header(ip.addresses(), Protocol::UDP, datagram.len() as u32);
            if sum.with(datagram).checksum() != 0 {
                return Err(Drop::BadChecksum);
            }
        }
        if udp.destination() == dhcp::CLIENT && self.link.hear_dhcp(&datagram[Udp::LEN..], self.now)
        {
            return Ok(());
        }
        let from = SocketAddrV4::new(ip.source(), udp.source());
        self.deliver(udp.destination(), from.into(), &datagram[Udp::LEN..])
    }

    /// Tells the sender of a datagram that no socket has its port (RFC 1122, 4.1.3.1).
    #[cold]
    fn report(&mut self, packet: &[u8], ip: &Ipv4) {
        if !self.link.may_report(self.now) {
            return;
        }
        let quoted = &packet[..ip.total_len().min(packet.len()).min(QUOTED)];
        let mut message = [&[3, 3, 0, 0, 0, 0, 0, 0], quoted].concat();
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.link.counters.unreachables += 1;
        self.link.push_packet(ip.source(), Protocol::ICMP, &message);
    }

    /// Queues a datagram for the socket at `port`.
    pub fn deliver(&mut self, port: u16, from: SocketAddr, data: &[u8]) -> Result<(), Drop> {
        match self.udp.deliver(port, from, data) {
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
                // Next-hop MTU (RFC 1191, 4): in the place of an echo's sequence number.
                let mtu = icmp.echo().1;
                self.unreachable(code, mtu, quoted).ok_or(Drop::OtherIcmp)
            }
            // Any host of the link could forge one, and packets take the same way without it.
            (5, _) => Err(Drop::Redirect),
            _ => Err(Drop::OtherIcmp),
        }
    }

    fn echo(&mut self, to: Ipv4Addr, request: &[u8]) {
        // A question in fragments has an answer that would need them.
        if Ipv4::LEN + request.len() > usize::from(self.link.mtu) {
            return self.link.counters.count(Drop::TooLong);
        }
        let mut reply = request.to_vec();
        reply[..4].fill(0);
        let sum = checksum(&reply);
        reply[2..4].copy_from_slice(&sum.to_be_bytes());
        self.link.counters.echoes += 1;
        self.link.push_packet(to, Protocol::ICMP, &reply);
    }

    /// Handles an ICMP error: a packet of ours, quoted in part, was not delivered.
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
