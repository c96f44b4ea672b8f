//! The neighbours of a host that calls or serves over UDP.

use std::net::{Ipv4Addr, SocketAddrV4};

use frame::{EtherType, Ethernet, Mac};
use tcp::Nanos;

use super::Config;
use super::carrier::Carrier;
use crate::link::Link;
use crate::nic::Nic;

/// Answers for a host's IPv4 address, and knows its neighbours'.
#[derive(Debug)]
pub struct Network(Link);

impl Network {
    /// A host's neighbours. `config` gets the host's end at a UDP port.
    pub fn new(host: &crate::Config, port: u16, config: &mut Config) -> Self {
        config.mac = host.mac;
        config.carrier = Carrier::Udp(SocketAddrV4::new(host.address, port));
        let host = crate::Config { v6: None, ..host.clone() };
        let mut link = Link::new(&host, config.mtu);
        link.announce();
        Self(link)
    }

    /// Handles a frame of ARP. Returns false for others.
    #[inline]
    pub fn frame(&mut self, frame: &[u8], now: Nanos) -> bool {
        match Ethernet::parse(frame) {
            Some((ethernet, packet)) if ethernet.ethertype() == EtherType::ARP => {
                self.arp(ethernet.destination(), packet, now);
                true
            }
            _ => false,
        }
    }

    #[cold]
    fn arp(&mut self, to: Mac, packet: &[u8], now: Nanos) {
        let link = &mut self.0;
        if to == link.mac || to.is_group() {
            // What cannot be is dropped.
            let _ = link.arp(packet, now);
        }
    }

    /// The station to which packets for an address go: the host's own, or the router's. If it is
    /// not known, the link is asked.
    pub fn station_of(&mut self, address: Ipv4Addr, now: Nanos) -> Option<Mac> {
        self.0.station_of(address, now)
    }

    /// Sends questions and answers. Returns when to call it again.
    pub fn transmit<N: Nic>(&mut self, nic: &mut N, now: Nanos) -> Option<Nanos> {
        match self.0.transmit(nic, now) {
            Ok(()) => self.0.deadline(),
            Err(_) => Some(now),
        }
    }
}
