//! The way out of IPv6 packets, and of the messages of neighbour discovery.

use std::net::{IpAddr, Ipv6Addr};

use frame::checksum::Sum;
use frame::{ETHERNET_HEADER, EtherType, Ipv6, Mac, Offload, Protocol};
use tcp::{Full, Nanos};
use zerocopy::IntoBytes;

use crate::counters::Drop;
use crate::link::{Link, joined, write_ethernet};
use crate::neighbours::{Due, Hop};
use crate::nic::{Nic, Pieces};
use crate::v6::message::Sent;
use crate::v6::{ALL_NODES, ALL_ROUTERS, Say, Way, group_mac, solicited_node};

impl Link {
    /// Sends an IPv6 packet: `head` starts with room for an Ethernet header.
    ///
    /// # Errors
    /// [`Full`] if there is no free slot. A packet that cannot be sent for another reason is
    /// dropped and counted.
    pub fn send_v6<'p, N: Nic>(
        &mut self,
        nic: &mut N,
        to: Ipv6Addr,
        head: &mut [u8],
        offload: Offload,
        payload: Pieces<impl Iterator<Item = &'p [u8]>>,
        now: Nanos,
    ) -> Result<(), Full> {
        let way = self.v6.as_mut().and_then(|v6| Some((v6.way(to)?, v6)));
        let Some((way, v6)) = way else {
            self.counters.count(Drop::NoRoute);
            return Ok(());
        };
        let mac = match way {
            Way::Group(mac) => mac,
            Way::Hop(hop) => match v6.neighbours.find(hop, now) {
                Hop::Known { mac, ask } => {
                    if ask {
                        // Only this neighbour is asked (RFC 4861, 7.3.3).
                        self.solicit(hop, Some(mac), now);
                    }
                    mac
                }
                Hop::Unknown { ask } => {
                    if !v6.neighbours.keep(hop, joined(head, payload.pieces), offload) {
                        self.counters.count(Drop::NeighbourFull);
                    }
                    if ask {
                        self.solicit(hop, None, now);
                    }
                    return Ok(());
                }
            },
        };
        self.put(nic, mac, EtherType::IPV6, head, offload, payload)
    }

    /// The station to which packets for a host go. If it is not known, the link is asked.
    pub fn station_of_v6(&mut self, to: Ipv6Addr, now: Nanos) -> Option<Mac> {
        let v6 = self.v6.as_mut()?;
        let Way::Hop(hop) = v6.way(to)? else { return None };
        let (mac, ask) = match v6.neighbours.find(hop, now) {
            Hop::Known { mac, ask } => (Some(mac), ask),
            Hop::Unknown { ask } => (None, ask),
        };
        if ask {
            self.solicit(hop, mac, now);
        }
        mac
    }

    /// Asks for a neighbour's address: the one that has it, or all that may have it.
    fn solicit(&mut self, target: Ipv6Addr, mac: Option<Mac>, now: Nanos) {
        let source = self.v6.as_ref().and_then(|v6| v6.source(target, now));
        let Some(from) = source else {
            self.counters.count(Drop::NoRoute);
            return;
        };
        self.counters.solicitations += 1;
        let message = Sent::Solicit { target, source: Some(self.mac) };
        match mac {
            Some(mac) => self.push_message(message, from, target, mac),
            None => self.push_to_group(message, from, solicited_node(target)),
        }
    }

    /// Answers a solicitation, or announces an address to all.
    pub fn advertise(&mut self, target: Ipv6Addr, to: Option<(Ipv6Addr, Mac)>) {
        let message = Sent::Advertise { target, mac: self.mac, solicited: to.is_some() };
        match to {
            Some((ip, mac)) => self.push_message(message, target, ip, mac),
            None => {
                let mac = self.audience(group_mac(ALL_NODES));
                self.push_message(message, target, ALL_NODES, mac);
            }
        }
    }

    /// Answers a solicitation whose sender's MAC address is not in it.
    pub fn advertise_by_address(&mut self, target: Ipv6Addr, to: Ipv6Addr) {
        let message = Sent::Advertise { target, mac: self.mac, solicited: true };
        let mut frame = vec![0; ETHERNET_HEADER];
        frame.extend(message.packet(target, to));
        self.push_unaddressed(IpAddr::V6(to), frame);
    }

    fn push_to_group(&mut self, message: Sent, from: Ipv6Addr, group: Ipv6Addr) {
        self.push_message(message, from, group, group_mac(group));
    }

    fn push_message(&mut self, message: Sent, from: Ipv6Addr, to: Ipv6Addr, mac: Mac) {
        self.push_packet_to(&message.packet(from, to), mac);
    }

    fn push_packet_to(&mut self, packet: &[u8], mac: Mac) {
        let mut frame = vec![0; ETHERNET_HEADER];
        write_ethernet(&mut frame, mac, self.mac, EtherType::IPV6);
        frame.extend_from_slice(packet);
        self.push_frame(frame);
    }

    /// Queues an ICMPv6 message of another kind; its checksum is computed here.
    pub fn push_icmp_v6(&mut self, from: Ipv6Addr, to: Ipv6Addr, mut message: Vec<u8>) {
        let Ok(len) = u16::try_from(message.len()) else {
            self.counters.count(Drop::TooLong);
            return;
        };
        let ip = Ipv6::new(from, to, Protocol::ICMPV6, len);
        let Some(field) = message.get_mut(2..4) else { return };
        field.fill(0);
        let sum = Sum::new().with_pseudo_header(ip.addresses(), Protocol::ICMPV6, len.into());
        let sum = sum.with(&message).checksum();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut frame = vec![0; ETHERNET_HEADER];
        frame.extend_from_slice(ip.as_bytes());
        frame.extend(message);
        self.push_unaddressed(IpAddr::V6(to), frame);
    }

    /// Does what is due: probes, announcements, questions for routers and for neighbours.
    pub fn run_v6(&mut self, now: Nanos) {
        while let Some(say) = self.v6.as_mut().and_then(|v6| v6.next(now)) {
            match say {
                Say::Probe(target) => {
                    let message = Sent::Solicit { target, source: None };
                    let group = solicited_node(target);
                    self.push_to_group(message, Ipv6Addr::UNSPECIFIED, group);
                }
                Say::Announce(target) => self.advertise(target, None),
                Say::Groups(told) => {
                    let from = self.v6.as_ref().map(|v6| v6.reporter());
                    let packet = told.packet(from.unwrap_or(Ipv6Addr::UNSPECIFIED));
                    self.counters.reports += 1;
                    self.push_packet_to(&packet, group_mac(told.to()));
                }
                Say::SolicitRouters => {
                    let from = self.v6.as_ref().and_then(|v6| v6.source(ALL_ROUTERS, now));
                    let message = Sent::SolicitRouters { source: from.map(|_| self.mac) };
                    let from = from.unwrap_or(Ipv6Addr::UNSPECIFIED);
                    self.push_to_group(message, from, ALL_ROUTERS);
                }
            }
        }
        // With an address that was probed until now, neighbours can be asked.
        while let Some(due) = self.v6.as_mut().and_then(|v6| v6.neighbours.due(now)) {
            match due {
                Due::Ask(hop) => self.solicit(hop, None, now),
                Due::Gone(hop, waiting) => {
                    self.counters.count_many(Drop::NoNeighbour, waiting);
                    self.v6.iter_mut().for_each(|v6| v6.lost(hop));
                }
            }
        }
    }
}
