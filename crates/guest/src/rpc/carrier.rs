//! What packets travel in: Ethernet frames of a type of their own, or UDP datagrams.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use frame::checksum::Sum;
use frame::{ETHERNET_HEADER, Ipv4, Ipv6, Mac, Protocol, Udp};
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
    /// UDP datagrams, from and to this address. Over IPv4 they have no UDP checksum (RFC 768 allows
    /// that): the packet's own checksum covers more. Over IPv6 they have one (RFC 8200, 8.1).
    Udp(SocketAddr),
}

/// The EtherTypes of IPv4 and IPv6, as frames have them.
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

impl Carrier {
    /// Bytes of a frame before the packet.
    #[inline]
    pub(super) const fn head(self) -> usize {
        match self {
            Self::Ethernet => ETHERNET_HEADER,
            Self::Udp(SocketAddr::V4(_)) => ETHERNET_HEADER + Ipv4::LEN + Udp::LEN,
            Self::Udp(SocketAddr::V6(_)) => ETHERNET_HEADER + Ipv6::LEN + Udp::LEN,
        }
    }

    /// The network of an IPv6 address: its upper half.
    pub(super) fn network(self) -> Option<u64> {
        match self {
            Self::Udp(SocketAddr::V6(own)) => Some((own.ip().to_bits() >> 64) as u64),
            _ => None,
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
            Self::Udp(SocketAddr::V4(own)) if ethernet[12..] == IPV4 => {
                datagram(rest, own).map(|(from, packet)| (peer.with(from), packet))
            }
            Self::Udp(SocketAddr::V6(own)) if ethernet[12..] == IPV6 => {
                datagram_v6(rest, own).map(|(from, packet)| (peer.with(from), packet))
            }
            Self::Udp(_) => Err(Bad::Foreign),
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
        let ip_len = self.head() - ETHERNET_HEADER - Udp::LEN;
        let Some((ip, udp)) = rest.split_at_mut_checked(ip_len) else { return };
        let payload = (Udp::LEN + len) as u16;
        match (own, to.udp()) {
            (SocketAddr::V4(own), Some(SocketAddr::V4(to))) => {
                ethernet[12..].copy_from_slice(&IPV4);
                let header = Ipv4::new(*own.ip(), *to.ip(), Protocol::UDP, payload);
                ip.copy_from_slice(header.as_bytes());
            }
            (SocketAddr::V6(own), Some(SocketAddr::V6(to))) => {
                ethernet[12..].copy_from_slice(&IPV6);
                let header = Ipv6::new(*own.ip(), *to.ip(), Protocol::UDP, payload);
                ip.copy_from_slice(header.as_bytes());
            }
            // A peer has the family of this end.
            _ => return,
        }
        if let Some(udp) = udp.first_chunk_mut::<{ Udp::LEN }>() {
            udp.copy_from_slice(Udp::new(own.port(), to.port, len as u16).as_bytes());
        }
    }

    /// Completes a whole frame whose headers were [written](Self::write): with the UDP checksum
    /// that IPv6 requires.
    #[inline]
    pub(super) fn complete(self, frame: &mut [u8]) {
        if let Self::Udp(SocketAddr::V6(_)) = self {
            add_checksum(frame);
        }
    }
}

fn add_checksum(frame: &mut [u8]) {
    let Some((head, datagram)) = frame.split_at_mut_checked(ETHERNET_HEADER + Ipv6::LEN) else {
        return;
    };
    let addresses = &head[head.len() - 32..];
    let sum = Sum::new().with_pseudo_header(addresses, Protocol::UDP, datagram.len() as u32);
    // A sum of 0 would mean that there is none.
    let sum = match sum.with(datagram).checksum() {
        0 => u16::MAX,
        sum => sum,
    };
    if let Some(place) = datagram.get_mut(usize::from(Udp::CHECKSUM)..Udp::LEN) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Finds the packet in an IPv4 packet for `own`, and its sender.
fn datagram(packet: &[u8], own: SocketAddrV4) -> Result<(SocketAddr, &[u8]), Bad> {
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
    let (port, packet) = payload_of(payload, ip.addresses(), own.port(), false)?;
    Ok((SocketAddr::new(from.into(), port), packet))
}

/// Finds the packet in an IPv6 packet for `own`, without extension headers, and its sender.
fn datagram_v6(packet: &[u8], own: SocketAddrV6) -> Result<(SocketAddr, &[u8]), Bad> {
    let (ip, payload) = Ipv6::parse(packet).ok_or(Bad::Malformed)?;
    if ip.destination() != *own.ip() || ip.next_header() != Protocol::UDP {
        return Err(Bad::Foreign);
    }
    let from = ip.source();
    let is_no_host = from.is_multicast() || from.is_unspecified() || from.is_loopback();
    if is_no_host || from.to_ipv4_mapped().is_some() || from == *own.ip() {
        return Err(Bad::Malformed);
    }
    let payload = payload.get(..ip.payload_len()).ok_or(Bad::Malformed)?;
    let (port, packet) = payload_of(payload, ip.addresses(), own.port(), true)?;
    Ok((SocketAddr::new(from.into(), port), packet))
}

/// Finds the packet in a UDP datagram for port `own`, and the port of its sender. With `summed`, it
/// must have a checksum.
fn payload_of<'p>(
    payload: &'p [u8],
    addresses: &[u8],
    own: u16,
    summed: bool,
) -> Result<(u16, &'p [u8]), Bad> {
    let (udp, _) = Udp::parse(payload).ok_or(Bad::Malformed)?;
    if udp.destination() != own {
        return Err(Bad::Foreign);
    }
    let datagram = payload.get(..udp.datagram_len()).ok_or(Bad::Malformed)?;
    let packet = datagram.get(Udp::LEN..).ok_or(Bad::Malformed)?;
    if udp.checksum() != 0 {
        let sum = Sum::new();
        let sum = sum.with_pseudo_header(addresses, Protocol::UDP, datagram.len() as u32);
        if sum.with(datagram).checksum() != 0 {
            return Err(Bad::Checksum);
        }
    } else if summed {
        return Err(Bad::Checksum);
    }
    match udp.source() {
        0 => Err(Bad::Malformed),
        port => Ok((port, packet)),
    }
}

/// The address of the other end: a station of the link, and its UDP address where packets travel in
/// datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The IP address, of IPv4 as a mapped one (RFC 4291, 2.5.5.2); 0 without UDP.
    ip: u128,
    port: u16,
    mac: Mac,
}

impl Peer {
    /// The other end of UDP datagrams. The station is the next hop.
    #[must_use]
    pub fn over_udp(mac: Mac, address: impl Into<SocketAddr>) -> Self {
        Self::from(mac).with(address.into())
    }

    /// The station of the link to which packets go.
    #[must_use]
    pub fn mac(self) -> Mac {
        self.mac
    }

    /// The UDP address.
    #[must_use]
    pub fn udp(self) -> Option<SocketAddr> {
        let ip = Ipv6Addr::from_bits(self.ip).to_canonical();
        (self.ip != 0).then(|| SocketAddr::new(ip, self.port))
    }

    #[inline]
    fn with(self, address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self { ip: ip.to_bits(), port: address.port(), ..self }
    }

    /// The same end behind another station.
    pub(super) fn at(self, mac: Mac) -> Self {
        Self { mac, ..self }
    }

    /// The host, whose limits hold for all of its UDP ports, and wherever it is. A host of another
    /// IPv6 network than `own` may have any address of its /64, so these are one host.
    pub(super) fn host(self, own: Option<u64>) -> Self {
        let network = self.ip >> 64;
        let ip = match (self.ip, own) {
            (0, _) => return self,
            (_, Some(own)) if network != u128::from(own) => network << 64 | 1,
            (ip, _) => ip,
        };
        Self { ip, port: u16::MAX, mac: Mac::from_word(0) }
    }
}

impl From<Mac> for Peer {
    #[inline]
    fn from(mac: Mac) -> Self {
        Self { ip: 0, port: 0, mac }
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
    use std::net::Ipv4Addr;

    use super::*;

    const OWN: Mac = Mac::local(1);
    const PEER: Mac = Mac::local(2);

    fn address(host: u8, port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::new(10, 0, 0, host).into(), port)
    }

    fn address_v6(network: u16, host: u8, port: u16) -> SocketAddr {
        let ip = Ipv6Addr::new(0xfd00, network, 0, 0, 0, 0, 0, host.into());
        SocketAddr::new(ip.into(), port)
    }

    /// The same over IPv6.
    fn frame_v6() -> (Vec<u8>, Carrier) {
        let sender = Carrier::Udp(address_v6(0, 2, 700));
        let mut frame = vec![0; sender.head()];
        frame.extend_from_slice(b"packet");
        sender.write(&mut frame, (Peer::over_udp(OWN, address_v6(0, 1, 7)), PEER), 6);
        sender.complete(&mut frame);
        (frame, Carrier::Udp(address_v6(0, 1, 7)))
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
    fn a_datagram_over_ipv6_has_a_checksum_and_is_read_as_it_was_written() {
        let (mut frame, carrier) = frame_v6();
        frame.extend_from_slice(&[9; 20]);
        let (peer, packet) = carrier.open(&frame, OWN).unwrap();
        let expected = (PEER, Some(address_v6(0, 2, 700)), &b"packet"[..]);
        assert_eq!((peer.mac(), peer.udp(), packet), expected);
        for len in 0..frame.len() - 20 {
            assert!(carrier.open(&frame[..len], OWN).is_err(), "{len} bytes");
        }
        let other = Carrier::Udp(address(1, 7));
        assert_eq!(other.open(&frame, OWN), Err(Bad::Foreign));
        let changed = |at: usize, bytes: &[u8], sum: bool| {
            let mut frame = frame_v6().0;
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            if sum {
                frame[60..62].fill(0);
                add_checksum(&mut frame);
            }
            carrier.open(&frame, OWN).map(|(peer, packet)| (peer, packet.to_vec()))
        };
        assert!(changed(14, &[], true).is_ok());
        let mapped = Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped();
        for (at, bytes, sum, bad) in [
            (12, &[0x08, 0x00][..], true, Bad::Foreign),
            (14, &[0x40], true, Bad::Malformed),
            (18, &[0, 15], true, Bad::Malformed),
            // A fragment, or another extension header.
            (20, &[44], true, Bad::Foreign),
            (22, &[0xff, 2], true, Bad::Malformed),
            (22, &[0; 16], true, Bad::Malformed),
            (22, &Ipv6Addr::LOCALHOST.octets(), true, Bad::Malformed),
            (22, &mapped.octets(), true, Bad::Malformed),
            (37, &[1], true, Bad::Malformed),
            (53, &[9], true, Bad::Foreign),
            (54, &[0, 0], true, Bad::Malformed),
            (56, &[0, 8], true, Bad::Foreign),
            (58, &[0, 7], true, Bad::Malformed),
            (60, &[0, 0], false, Bad::Checksum),
            (66, &[1], false, Bad::Checksum),
        ] {
            assert_eq!(changed(at, bytes, sum).unwrap_err(), bad, "{bytes:?} at {at}");
        }
    }

    #[test]
    fn all_ports_of_a_host_are_one_host() {
        let peer = |mac, port| Peer::over_udp(mac, address(2, port));
        assert_ne!(peer(PEER, 1), peer(PEER, 2));
        let host = |peer: Peer| peer.host(None);
        assert_eq!(host(peer(PEER, 1)), host(peer(OWN, 2)));
        assert_ne!(host(Peer::from(PEER)), host(Peer::from(OWN)));
        assert_ne!(host(peer(PEER, 1)), host(Peer::over_udp(PEER, address(3, 1))));
    }

    #[test]
    fn hosts_of_the_own_ipv6_network_have_addresses_and_others_networks() {
        let own = Carrier::Udp(address_v6(0, 1, 7)).network();
        let host = |network, host| Peer::over_udp(PEER, address_v6(network, host, 7)).host(own);
        assert_ne!(host(0, 2), host(0, 3));
        assert_eq!(host(1, 2), host(1, 3));
        assert_ne!(host(1, 2), host(2, 2));
        assert_eq!(Carrier::Udp(address(1, 7)).network(), None);
    }
}
