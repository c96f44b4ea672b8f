//! The neighbours of a host that calls or serves over UDP.

use std::net::{IpAddr, SocketAddr};

use frame::{EtherType, Ethernet, Mac, Protocol};
use tcp::Nanos;

use super::Config;
use super::carrier::Carrier;
use crate::link::Link;
use crate::nic::Nic;

/// Where the next header of an IPv6 packet is.
const NEXT_HEADER: usize = 6;

/// Answers for a host's IP address, and knows its neighbours'.
#[derive(Debug)]
pub struct Network(Link);

impl Network {
    /// A host's neighbours. `config` gets the host's end at a UDP port.
    pub fn new(host: &crate::Config, port: u16, config: &mut Config) -> Self {
        let own = host.v6.and_then(|v6| v6.address).map(|(ip, _)| IpAddr::V6(ip));
        let own = own.filter(|_| host.address.is_unspecified());
        let ip = own.unwrap_or_else(|| host.address.into());
        config.mac = host.mac;
        config.carrier = Carrier::Udp(SocketAddr::new(ip, port));
        let v6 = host.v6.filter(|_| ip.is_ipv6());
        let host = crate::Config { v6, ..host.clone() };
        let mut link = Link::new(&host, config.mtu);
        link.announce();
        Self(link)
    }

    /// Handles a frame of ARP, or an IPv6 packet that carries no datagram. Returns false for
    /// others.
    #[inline]
    pub fn frame(&mut self, frame: &[u8], now: Nanos) -> bool {
        let Some((ethernet, packet)) = Ethernet::parse(frame) else { return false };
        let is_taken = match ethernet.ethertype() {
            EtherType::ARP => true,
            EtherType::IPV6 => packet.get(NEXT_HEADER) != Some(&Protocol::UDP.0),
            _ => false,
        };
        if is_taken {
            self.control(ethernet, packet, now);
        }
        is_taken
    }

    #[cold]
    fn control(&mut self, ethernet: &Ethernet, packet: &[u8], now: Nanos) {
        let (link, to) = (&mut self.0, ethernet.destination());
        if to != link.mac && !to.is_group() {
            return;
        }
        // What cannot be is dropped.
        let _ = match ethernet.ethertype() {
            EtherType::ARP => link.arp(packet, now),
            _ => link.control_v6(packet, to.is_group(), now),
        };
    }

    /// The station to which packets for an address go: the host's own, or the router's. If it is
    /// not known, the link is asked.
    pub fn station_of(&mut self, address: IpAddr, now: Nanos) -> Option<Mac> {
        match address {
            IpAddr::V4(address) => self.0.station_of(address, now),
            IpAddr::V6(address) => self.0.station_of_v6(address, now),
        }
    }

    /// Sends questions and answers. Returns when to call it again.
    pub fn transmit<N: Nic>(&mut self, nic: &mut N, now: Nanos) -> Option<Nanos> {
        match self.0.transmit(nic, now) {
            Ok(()) => self.0.deadline(),
            Err(_) => Some(now),
        }
    }
}
