//! What packets travel in: Ethernet frames of a type of their own, or UDP datagrams.

use std::net::{Ipv4Addr, SocketAddrV4};

use frame::checksum::Sum;
use frame::{ETHERNET_HEADER, Ipv4, Mac, Protocol, Udp};
use zerocopy::IntoBytes;

/// The EtherType: the second of those for local experiments (IEEE 802, 9.2).
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb6];
/// The reason why a frame is no packet for this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Another protocol, or another host's.
    Foreign,
    /// The packet is cut short, or its fields contradict each other.
    Malformed,
    /// The checksum is wrong, or missing where one is required.
    Checksum,
}

/// What packets travel in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// Ethernet frames of the type [`ETHERTYPE`], within a link.
    #[default]
    Ethernet,
    /// UDP datagrams over IPv4, from and to this address. They have no UDP checksum (RFC 768 allows
    /// that): the packet's own checksum covers more.
    Udp(SocketAddrV4),
}

/// IPv4's EtherType, as frames have it.
const IPV4: [u8; 2] = [0x08, 0x00];
/// The bytes of IPv4's and UDP's headers.
const UDP_HEADERS: usize = Ipv4::LEN + Udp::LEN;

impl Carrier {
    /// Bytes of a frame before the packet.
    #[inline]
    pub(super) const fn head(self) -> usize {
        match self {
            Self::Ethernet => ETHERNET_HEADER,
            Self::Udp(_) => ETHERNET_HEADER + UDP_HEADERS,
        }
    }

    /// Finds the packet in a frame, and who has sent it.
    #[inline]
    pub(super) fn open(self, frame: &[u8], own: Mac) -> Result<(Peer, &[u8]), Bad> {
        let (ethernet, rest) = frame.split_first_chunk::<ETHERNET_HEADER>().ok_or(Bad::Foreign)?;
        let [.., a, b, c, d, e, f, _, _] = *ethernet;
        let peer = Peer::from(Mac::new([a, b, c, d, e, f]));
        match self {
            _ if ethernet[..6] != own.octets() => Err(Bad::Foreign),
            Self::Ethernet if ethernet[12..] == ETHERTYPE => Ok((peer, rest)),
            Self::Ethernet => Err(Bad::Foreign),
            Self::Udp(_) if ethernet[12..] != IPV4 => Err(Bad::Foreign),
            Self::Udp(own) => datagram(rest, own).map(|(from, packet)| (peer.with(from), packet)),
        }
    }

    /// Writes the headers before a packet of `len` bytes.
    #[inline]
    pub(super) fn write(self, out: &mut [u8], (to, from): (Peer, Mac), len: usize) {
        let Some((ethernet, rest)) = out.split_first_chunk_mut::<ETHERNET_HEADER>() else { return };
        ethernet[..6].copy_from_slice(&to.mac.octets());
        ethernet[6..12].copy_from_slice(&from.octets());
        let Self::Udp(own) = self else {
            ethernet[12..].copy_from_slice(&ETHERTYPE);
            return;
        };
        ethernet[12..].copy_from_slice(&IPV4);
        let (Some(to), Some(head)) = (to.udp(), rest.first_chunk_mut::<UDP_HEADERS>()) else {
            return;
        };
        let payload = (Udp::LEN + len) as u16;
        let ip = Ipv4::new(*own.ip(), *to.ip(), Protocol::UDP, payload);
        head[..Ipv4::LEN].copy_from_slice(ip.as_bytes());
        let udp = Udp::new(own.port(), to.port(), len as u16);
        head[Ipv4::LEN..].copy_from_slice(udp.as_bytes());
    }
}

/// Finds the packet in an IPv4 packet for `own`, and its sender.
fn datagram(packet: &[u8], own: SocketAddrV4) -> Result<(SocketAddrV4, &[u8]), Bad> {
    let (ip, payload) = Ipv4::parse(packet).ok_or(Bad::Malformed)?;
    if ip.destination() != *own.ip() || ip.protocol() != Protocol::UDP {
        return Err(Bad::Foreign);
    }
    if !Ipv4::checksum_ok(packet) {
        return Err(Bad::Checksum);
    }
    let from = ip.source();
    let is_no_host = from.is_multicast() || from.is_unspecified() || from.is_loopback();
    if ip.is_fragment() || is_no_host || from.is_broadcast() || from == *own.ip() {
        return Err(Bad::Malformed);
    }
    let payload = ip
        .total_len()
        .checked_sub(ip.header_len())
        .and_then(|len| payload.get(..len))
        .ok_or(Bad::Malformed)?;
    let (udp, _) = Udp::parse(payload).ok_or(Bad::Malformed)?;
    if udp.destination() != own.port() {
        return Err(Bad::Foreign);
    }
    let datagram = payload.get(..udp.datagram_len()).ok_or(Bad::Malformed)?;
    let packet = datagram.get(Udp::LEN..).ok_or(Bad::Malformed)?;
    if udp.checksum() != 0 {
        let sum = Sum::new();
        let sum = sum.with_pseudo_header(ip.addresses(), Protocol::UDP, datagram.len() as u32);
        if sum.with(datagram).checksum() != 0 {
            return Err(Bad::Checksum);
        }
    }
    match udp.source() {
        0 => Err(Bad::Malformed),
        port => Ok((SocketAddrV4::new(from, port), packet)),
    }
}

/// The address of the other end: a station of the link, and its UDP address where packets travel in
/// datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The UDP address: the port in the low 16 bits, the IPv4 address above; 0 without UDP.
    udp: u64,
    mac: Mac,
}

impl Peer {
    /// The other end of UDP datagrams. The station is the next hop.
    #[must_use]
    pub fn over_udp(mac: Mac, address: SocketAddrV4) -> Self {
        Self::from(mac).with(address)
    }

    /// The station of the link to which packets go.
    #[must_use]
    pub fn mac(self) -> Mac {
        self.mac
    }

    /// The UDP address.
    #[must_use]
    pub fn udp(self) -> Option<SocketAddrV4> {
        let address = Ipv4Addr::from_bits((self.udp >> 16) as u32);
        (self.udp != 0).then(|| SocketAddrV4::new(address, self.udp as u16))
    }

    #[inline]
    fn with(self, address: SocketAddrV4) -> Self {
        let udp = u64::from(address.ip().to_bits()) << 16 | u64::from(address.port());
        Self { udp, ..self }
    }

    /// The same end behind another station.
    pub(super) fn at(self, mac: Mac) -> Self {
        Self { mac, ..self }
    }

    /// The host, whose limits hold for all of its UDP ports, and wherever it is.
    pub(super) fn host(self) -> Self {
        match self.udp {
            0 => self,
            udp => Self { udp: udp | 0xffff, mac: Mac::from_word(0) },
        }
    }
}

impl From<Mac> for Peer {
    #[inline]
    fn from(mac: Mac) -> Self {
        Self { udp: 0, mac }
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.udp() {
            Some(address) => write!(f, "{address} at {}", self.mac),
            None => write!(f, "{}", self.mac),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac::local(1);
    const PEER: Mac = Mac::local(2);

    fn address(host: u8, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), port)
    }

    /// A datagram from host 2 to host 1, and the end that it is for.
    fn frame() -> (Vec<u8>, Carrier) {
        let sender = Carrier::Udp(address(2, 700));
        let mut frame = vec![0; sender.head()];
        frame.extend_from_slice(b"packet");
        sender.write(&mut frame, (Peer::over_udp(OWN, address(1, 7)), PEER), 6);
        (frame, Carrier::Udp(address(1, 7)))
    }

    /// Changes bytes of a datagram, and makes its header's checksum right again.
    fn changed(at: usize, bytes: &[u8]) -> Result<(Peer, Vec<u8>), Bad> {
        let (mut frame, carrier) = frame();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        let ip = ETHERNET_HEADER..ETHERNET_HEADER + Ipv4::LEN;
        frame[24..26].fill(0);
        let sum = frame::checksum::checksum(&frame[ip]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        carrier.open(&frame, OWN).map(|(peer, packet)| (peer, packet.to_vec()))
    }

    #[test]
    fn a_datagram_is_read_as_it_was_written() {
        let (mut frame, carrier) = frame();
        frame.extend_from_slice(&[9; 20]);
        let (peer, packet) = carrier.open(&frame, OWN).unwrap();
        assert_eq!((peer.mac(), peer.udp(), packet), (PEER, Some(address(2, 700)), &b"packet"[..]));
        assert_eq!(carrier.open(&frame, PEER), Err(Bad::Foreign));
        for len in 0..frame.len() - 20 {
            assert!(carrier.open(&frame[..len], OWN).is_err(), "{len} bytes");
        }
        frame[24] ^= 1;
        assert_eq!(carrier.open(&frame, OWN), Err(Bad::Checksum));
    }

    #[test]
    fn datagrams_that_no_host_can_have_sent_or_for_others_are_refused() {
        assert!(changed(14, &[]).is_ok());
        for (at, bytes, bad) in [
            (12, &[0x86, 0xdd][..], Bad::Foreign),
            (14, &[0x46], Bad::Checksum),
            (16, &[0, 27], Bad::Malformed),
            (16, &[0, 200], Bad::Malformed),
            (20, &[0x20, 0], Bad::Malformed),
            (20, &[0, 1], Bad::Malformed),
            (23, &[6], Bad::Foreign),
            (26, &[224, 0, 0, 1], Bad::Malformed),
            (26, &[255, 255, 255, 255], Bad::Malformed),
            (26, &[0, 0, 0, 0], Bad::Malformed),
            (26, &[127, 0, 0, 1], Bad::Malformed),
            (26, &[10, 0, 0, 1], Bad::Malformed),
            (30, &[10, 0, 0, 9], Bad::Foreign),
            (34, &[0, 0], Bad::Malformed),
            (36, &[0, 8], Bad::Foreign),
            (38, &[0, 7], Bad::Malformed),
            (38, &[0, 200], Bad::Malformed),
            (40, &[1, 2], Bad::Checksum),
        ] {
            assert_eq!(changed(at, bytes).unwrap_err(), bad, "{bytes:?} at {at}");
        }
    }

    #[test]
    fn all_ports_of_a_host_are_one_host() {
        let peer = |mac, port| Peer::over_udp(mac, address(2, port));
        assert_ne!(peer(PEER, 1), peer(PEER, 2));
        assert_eq!(peer(PEER, 1).host(), peer(OWN, 2).host());
        assert_ne!(Peer::from(PEER).host(), Peer::from(OWN).host());
        assert_ne!(peer(PEER, 1).host(), Peer::over_udp(PEER, address(3, 1)).host());
    }
}
