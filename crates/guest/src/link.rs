//! The way out: routes, Ethernet headers, packets that wait for a neighbour, answers that wait for
//! a slot.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use frame::{
    Arp, ArpOperation, ETHERNET_HEADER, EtherType, Ethernet, Ipv4, Ipv6, Mac, Offload, Protocol,
};
use tcp::codec::{self, MAX_HEADERS, Summing};
use tcp::{Emit, Full, Nanos, Request};
use zerocopy::IntoBytes;

use crate::config::Config;
use crate::counters::{Counters, Drop};
use crate::dhcp::{Dhcp, Question, Route};
use crate::fragments::Fragments;
use crate::neighbours::{Due, Hop, Kept, Neighbours};
use crate::nic::{Nic, Pieces};
use crate::v6::V6;

/// Maximum number of answers that wait for free slots.
const OUTBOX: usize = 256;

/// Maximum number of ICMP errors in a second.
const ERRORS: u32 = 100;

/// A frame that waits for a free slot.
#[derive(Debug)]
enum Waiting {
    /// A whole frame, with its offload request.
    Frame(Vec<u8>, Offload),
    /// A packet to this IP address. Its Ethernet header is not written yet.
    Packet(IpAddr, Vec<u8>),
}

/// What the stack knows of its link.
#[derive(Debug)]
pub(crate) struct Link {
    pub mac: Mac,
    pub address: Ipv4Addr,
    mask: u32,
    gateway: Option<Ipv4Addr>,
    /// Announcements are for all hosts of the link. Otherwise they go to the host's own MAC
    /// address: a switch learns from them where the host is, and passes them on to none.
    announces: bool,
    /// Ways to other networks, the longest prefix first.
    routes: Vec<Route>,
    pub neighbours: Neighbours<Ipv4Addr>,
    pub v6: Option<Box<V6>>,
    pub dhcp: Option<Box<Dhcp>>,
    pub fragments: Fragments,
    /// Packets that are processed after the batch, as they were put together, and whether their
    /// checksums are right.
    pub whole: Vec<(Vec<u8>, bool)>,
    /// The second in which ICMP errors were last sent, and how many.
    errors: (u64, u32),
    /// The NIC's MTU.
    pub longest: u16,
    /// The MTU of packets to send.
    pub mtu: u16,
    outbox: VecDeque<Waiting>,
    pub counters: Counters,
}

impl Link {
    pub fn new(config: &Config, longest: u16) -> Self {
        let address = if config.dhcp { Ipv4Addr::UNSPECIFIED } else { config.address };
        Self {
            mac: config.mac,
            address,
            mask: mask(config.prefix),
            gateway: config.gateway,
            announces: config.announces,
            routes: Vec::new(),
            neighbours: Neighbours::new(config.max_neighbours),
            dhcp: config.dhcp.then(|| Box::new(Dhcp::new(config.mac, config.secret))),
            v6: config.v6.map(|v6| Box::new(V6::new(&v6, config.mac, config.max_neighbours))),
            fragments: Fragments::default(),
            whole: Vec::new(),
            errors: (0, 0),
            longest,
            mtu: longest,
            outbox: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    pub fn is_on_link(&self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()) & self.mask == 0
    }

    /// Returns true for the broadcast address of the network, or of all networks.
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        let own = self.mask < u32::MAX - 1
            && self.is_on_link(address)
            && address.to_bits() | self.mask == u32::MAX;
        own || address.is_broadcast()
    }

    fn next_hop(&self, to: Ipv4Addr) -> Option<Ipv4Addr> {
        let bad = to.is_unspecified() || to.is_loopback() || to == self.address;
        match self.is_on_link(to) {
            _ if bad => None,
            true => Some(to),
            false => self.route(to),
        }
    }

    /// The next hop to a host of another network.
    fn route(&self, to: Ipv4Addr) -> Option<Ipv4Addr> {
        let route = self.routes.iter().find(|route| route.leads_to(to));
        route.map_or(self.gateway, |route| Some(route.via.unwrap_or(to)))
    }

    /// Whether a host of this address may be a neighbour: one of the network, a router, or one to
    /// which a route leads without a router. Routers need not be in the network: a lease of a
    /// single address names one that cannot be.
    fn is_neighbour(&self, address: Ipv4Addr) -> bool {
        let is_router = || self.gateway == Some(address);
        let leads = |route: &Route| {
            route.via == Some(address) || route.via.is_none() && route.leads_to(address)
        };
        self.is_on_link(address) || is_router() || self.routes.iter().any(leads)
    }

    /// Sends an IPv4 packet: `head` starts with room for an Ethernet header.
    ///
    /// # Errors
    /// [`Full`] if there is no free slot. A packet that cannot be sent for another reason is
    /// dropped and counted.
    pub fn send<'p, N: Nic>(
        &mut self,
        nic: &mut N,
        to: Ipv4Addr,
        head: &mut [u8],
        offload: Offload,
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        now: Nanos,
    ) -> Result<(), Full> {
        let mac = if self.is_broadcast(to) {
            Mac::BROADCAST
        } else {
            let Some(hop) = self.next_hop(to) else {
                self.counters.count(Drop::NoRoute);
                return Ok(());
            };
            let Some(mac) = self.find(hop, now) else {
                if !self.neighbours.keep(hop, joined(head, payload.pieces), offload) {
                    self.counters.count(Drop::NeighbourFull);
                }
                return Ok(());
            };
            mac
        };
        self.put(nic, mac, EtherType::IPV4, head, offload, payload)
    }

    /// Writes a packet with its Ethernet header into send slots.
    pub fn put<'p, N: Nic>(
        &mut self,
        nic: &mut N,
        to: Mac,
        kind: EtherType,
        head: &mut [u8],
        offload: Offload,
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
    ) -> Result<(), Full> {
        write_ethernet(head, to, self.mac, kind);
        nic.send(head, payload, offload)?;
        self.counters.frames_out += 1;
        Ok(())
    }

    /// The station of a next hop. Asks for it, where it is not known or was not heard of for long.
    fn find(&mut self, hop: Ipv4Addr, now: Nanos) -> Option<Mac> {
        match self.neighbours.find(hop, now) {
            Hop::Known { mac, ask } => {
                if ask {
                    // Only this neighbour is woken (RFC 1122, 2.3.2.1, "unicast poll").
                    self.request_arp(hop, mac);
                }
                Some(mac)
            }
            Hop::Unknown { ask } => {
                if ask {
                    self.request_arp(hop, Mac::BROADCAST);
                }
                None
            }
        }
    }

    /// The station to which packets for a host go. If it is not known, the link is asked.
    pub fn station_of(&mut self, to: Ipv4Addr, now: Nanos) -> Option<Mac> {
        let hop = self.next_hop(to)?;
        self.find(hop, now)
    }

    /// Handles a packet of ARP: notes its sender, and answers a request for this host.
    ///
    /// # Errors
    /// [`Drop::BadArp`].
    pub fn arp(&mut self, packet: &[u8], now: Nanos) -> Result<(), Drop> {
        let arp = Arp::parse(packet).ok_or(Drop::BadArp)?;
        let ((mac, address), (_, wanted)) = (arp.sender(), arp.target());
        if mac.is_group() || mac == Mac::from_word(0) || address == self.address {
            return Err(Drop::BadArp);
        }
        let request = arp.operation() == ArpOperation::REQUEST;
        let for_us = wanted == self.address && !wanted.is_unspecified();
        // RFC 5227, 2.1.1: the sender of a probe has no address yet.
        if !address.is_unspecified() {
            if self.is_broadcast(address) || address.is_multicast() || address.is_loopback() {
                return Err(Drop::BadArp);
            }
            match self.is_neighbour(address) {
                true => self.confirm(address, mac, request && for_us, now),
                // A host of another network on the same link gets its answer, and is not noted.
                false if request && for_us => {}
                false => return Err(Drop::BadArp),
            }
        }
        if request && for_us {
            self.reply_arp(mac, address);
        }
        Ok(())
    }

    /// Asks for a host's address: all hosts of the link, or the one that had it last.
    pub fn request_arp(&mut self, hop: Ipv4Addr, to: Mac) {
        self.counters.arp_requests += 1;
        self.push_arp(ArpOperation::REQUEST, to, (Mac::from_word(0), hop));
    }

    /// Answers an ARP request.
    pub fn reply_arp(&mut self, to: Mac, address: Ipv4Addr) {
        self.push_arp(ArpOperation::REPLY, to, (to, address));
    }

    fn push_arp(&mut self, operation: ArpOperation, to: Mac, target: (Mac, Ipv4Addr)) {
        let mut frame = vec![0; ETHERNET_HEADER + size_of::<Arp>()];
        write_ethernet(&mut frame, to, self.mac, EtherType::ARP);
        let arp = Arp::new(operation, (self.mac, self.address), target);
        frame[ETHERNET_HEADER..].copy_from_slice(arp.as_bytes());
        self.push(Waiting::Frame(frame, Offload::NONE));
    }

    /// Announces the host's address on the link, if it has one (RFC 5227, 3).
    pub fn announce(&mut self) {
        if self.address.is_unspecified() {
            return;
        }
        let to = self.audience(Mac::BROADCAST);
        self.push_arp(ArpOperation::REQUEST, to, (Mac::from_word(0), self.address));
    }

    /// The MAC address to which an announcement for `all` goes.
    pub fn audience(&self, all: Mac) -> Mac {
        if self.announces { all } else { self.mac }
    }

    /// Handles a frame for another MAC address. If its packet is for this host, its sender
    /// remembers a station that had the address before, and is told who has it now.
    #[cold]
    pub fn astray(&mut self, ethernet: &Ethernet, packet: &[u8], now: Nanos) {
        let sender = ethernet.source();
        if sender.is_group() || sender == self.mac {
            return;
        }
        match ethernet.ethertype() {
            EtherType::IPV4 => {
                let Some((ip, _)) = Ipv4::parse(packet) else { return };
                let own = ip.destination() == self.address && !self.address.is_unspecified();
                if own && self.may_report(now) {
                    self.reply_arp(sender, ip.source());
                }
            }
            EtherType::IPV6 => {
                let Some((ip, _)) = Ipv6::parse(packet) else { return };
                let (from, to) = (ip.source(), ip.destination());
                let own = self.v6.as_ref().is_some_and(|v6| v6.is_own(to));
                let is_host = !from.is_unspecified() && !from.is_multicast();
                if own && is_host && self.may_report(now) {
                    self.advertise(to, Some((from, sender)));
                }
            }
            _ => {}
        }
    }

    /// Notes a neighbour's address, and sends the packets that waited for it.
    pub fn confirm(&mut self, hop: Ipv4Addr, mac: Mac, new: bool, now: Nanos) {
        let kept = self.neighbours.confirm(hop, mac, new, now);
        self.push_kept(kept, mac, EtherType::IPV4);
    }

    /// Queues packets that have waited for a neighbour's address.
    pub fn push_kept(&mut self, kept: Kept, mac: Mac, kind: EtherType) {
        for (mut frame, offload) in kept {
            write_ethernet(&mut frame, mac, self.mac, kind);
            self.push(Waiting::Frame(frame, offload));
        }
    }

    /// Whether an ICMP error may be sent: so many in a second (RFC 1812, 4.3.2.8).
    pub fn may_report(&mut self, now: Nanos) -> bool {
        let second = now.0 / Nanos::SECOND;
        if self.errors.0 != second {
            self.errors = (second, 0);
        }
        self.errors.1 += 1;
        self.errors.1 <= ERRORS
    }

    /// Queues a frame.
    pub fn push_frame(&mut self, frame: Vec<u8>) {
        self.push(Waiting::Frame(frame, Offload::NONE));
    }

    /// Queues an IPv4 packet with a private copy of its payload, until a slot is free.
    pub fn push_packet(&mut self, to: Ipv4Addr, protocol: Protocol, payload: &[u8]) {
        let Ok(len) = u16::try_from(payload.len()) else {
            self.counters.count(Drop::TooLong);
            return;
        };
        let mut frame = vec![0; ETHERNET_HEADER];
        frame.extend_from_slice(Ipv4::new(self.address, to, protocol, len).as_bytes());
        frame.extend_from_slice(payload);
        self.push_unaddressed(to.into(), frame);
    }

    /// Queues a packet that begins with room for an Ethernet header.
    pub fn push_unaddressed(&mut self, to: IpAddr, frame: Vec<u8>) {
        self.push(Waiting::Packet(to, frame));
    }

    fn push(&mut self, waiting: Waiting) {
        if self.outbox.len() >= OUTBOX {
            self.counters.count(Drop::OutboxFull);
            return;
        }
        self.outbox.push_back(waiting);
    }

    /// Returns the number of frames that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Returns when [`transmit`](Self::transmit) next has work.
    pub fn deadline(&self) -> Option<Nanos> {
        let v6 = self.v6.as_ref().and_then(|v6| v6.deadline());
        let dhcp = self.dhcp.as_ref().and_then(|dhcp| dhcp.deadline());
        self.neighbours.deadline().into_iter().chain(v6).chain(dhcp).min()
    }

    /// Sends what the DHCP client has to say, and does what it has learned.
    fn run_dhcp(&mut self, now: Nanos) {
        let Some(dhcp) = &mut self.dhcp else { return };
        let (question, change) = dhcp.next(now);
        if let Some(Question { to, packet }) = question {
            let mut frame = vec![0; ETHERNET_HEADER];
            frame.extend(packet);
            self.push_unaddressed(to.into(), frame);
        }
        if change.is_some() {
            self.changed();
        }
    }

    /// Takes a datagram for the DHCP client; returns whether there is one.
    pub fn hear_dhcp(&mut self, datagram: &[u8], now: Nanos) -> bool {
        let Some(dhcp) = &mut self.dhcp else { return false };
        if dhcp.input(datagram, now).is_some() {
            self.changed();
        }
        true
    }

    /// Takes the addresses of the lease, or none if there is no lease any more.
    fn changed(&mut self) {
        let lease = self.dhcp.as_ref().and_then(|dhcp| dhcp.lease());
        self.counters.leases += u64::from(lease.is_some());
        let address = lease.map_or(Ipv4Addr::UNSPECIFIED, |lease| lease.address);
        let (prefix, gateway) = lease.map_or((0, None), |lease| (lease.prefix, lease.router));
        let routes = lease.map_or(Vec::new(), |lease| lease.routes.clone());
        let place = (address, mask(prefix), gateway);
        let is_other = place != (self.address, self.mask, self.gateway) || routes != self.routes;
        if is_other {
            self.routes = routes;
            (self.address, self.mask, self.gateway) = place;
            let waited = self.neighbours.clear();
            self.counters.count_many(Drop::NoNeighbour, waited);
            self.announce();
        }
        self.choose_mtu();
    }

    /// Takes the least MTU of those that the NIC, a router and a DHCP server say.
    pub fn choose_mtu(&mut self) {
        let router = self.v6.as_ref().and_then(|v6| v6.mtu());
        let server = self.dhcp.as_ref().and_then(|dhcp| dhcp.lease()?.mtu);
        self.mtu = [router, server].into_iter().flatten().fold(self.longest, u16::min);
    }

    /// Repeats unanswered requests for addresses, then sends queued frames.
    ///
    /// # Errors
    /// [`Full`] if frames are still queued.
    pub fn transmit<N: Nic>(&mut self, nic: &mut N, now: Nanos) -> Result<(), Full> {
        while let Some(due) = self.neighbours.due(now) {
            match due {
                Due::Ask(hop) => self.request_arp(hop, Mac::BROADCAST),
                Due::Gone(_, waiting) => self.counters.count_many(Drop::NoNeighbour, waiting),
            }
        }
        self.run_v6(now);
        self.run_dhcp(now);
        let late = self.fragments.expire(now);
        self.counters.count_many(Drop::Fragment, late);
        while let Some(waiting) = self.outbox.pop_front() {
            let (sent, waiting) = match waiting {
                Waiting::Frame(frame, offload) => {
                    let sent = nic.send(&frame, Pieces::none(), offload);
                    self.counters.frames_out += u64::from(sent.is_ok());
                    (sent, Waiting::Frame(frame, offload))
                }
                Waiting::Packet(to, mut frame) => {
                    let none = (Offload::NONE, Pieces::none());
                    let sent = match to {
                        IpAddr::V4(to) => self.send(nic, to, &mut frame, none.0, none.1, now),
                        IpAddr::V6(to) => self.send_v6(nic, to, &mut frame, none.0, none.1, now),
                    };
                    (sent, Waiting::Packet(to, frame))
                }
            };
            if sent.is_err() {
                self.outbox.push_front(waiting);
                return Err(Full);
            }
        }
        Ok(())
    }
}

impl Route {
    fn leads_to(&self, to: Ipv4Addr) -> bool {
        (to.to_bits() ^ self.network.to_bits()) & mask(self.prefix) == 0
    }
}

/// The mask of a network.
fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

/// A frame in one piece.
pub(crate) fn joined<'p>(head: &[u8], payload: impl Iterator<Item = &'p [u8]>) -> Vec<u8> {
    let mut frame = head.to_vec();
    payload.for_each(|piece| frame.extend_from_slice(piece));
    frame
}

pub(crate) fn write_ethernet(frame: &mut [u8], to: Mac, from: Mac, kind: EtherType) {
    if let Some(header) = frame.get_mut(..ETHERNET_HEADER) {
        header.copy_from_slice(Ethernet::new(to, from, kind).as_bytes());
    }
}

/// Writes TCP's segments straight into send slots.
#[derive(Debug)]
pub(crate) struct Segments<'a, N> {
    pub nic: &'a mut N,
    pub link: &'a mut Link,
    pub now: Nanos,
    /// Whether the NIC completes checksums.
    pub summing: Summing,
}

impl<N: Nic> Emit for Segments<'_, N> {
    fn emit(&mut self, request: &Request<'_>) -> Result<(), Full> {
        let mut head = [0; ETHERNET_HEADER + MAX_HEADERS];
        let packet = &mut head[ETHERNET_HEADER..];
        let to = request.header.flow.remote().0;
        let Some(len) = codec::write_headers(request, packet, self.summing) else {
            self.link.counters.count(Drop::TooLong);
            return Ok(());
        };
        let head = &mut head[..ETHERNET_HEADER + len];
        let offload = match self.summing {
            Summing::Partial => codec::offload(request, ETHERNET_HEADER as u16),
            Summing::Full => Offload::NONE,
        };
        let payload = Pieces { pieces: request.payload.pieces(), len: request.payload.len() };
        match to {
            IpAddr::V4(to) => self.link.send(self.nic, to, head, offload, payload, self.now),
            IpAddr::V6(to) => self.link.send_v6(self.nic, to, head, offload, payload, self.now),
        }
    }
}
