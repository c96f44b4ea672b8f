//! Parses IP packets into TCP segments, and writes the headers of segments.

use core::net::IpAddr;

use frame::checksum::{Sum, checksum, update};
use frame::{Ipv4, Ipv6, Offload, Protocol, Tcp};
use zerocopy::IntoBytes;

use crate::counters::Drop;
use crate::flow::Flow;
use crate::options::{MAX_OPTIONS, Options};
use crate::segment::{Ecn, Flags, Header, Request, Segment};
use crate::seq::Seq;

/// Maximum length of the headers of a sent packet, in bytes: IPv6 and TCP with all options.
pub const MAX_HEADERS: usize = 40 + 20 + MAX_OPTIONS;

/// Says whether the checksums of received packets are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Checksums are verified. A packet with a wrong one is dropped.
    Checksums,
    /// Nothing is verified: the peer runs on this machine, or a device has verified the checksums.
    Nothing,
}

/// Says how much of the checksum of a sent packet is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summing {
    /// The whole checksum, payload included.
    Full,
    /// Only the sum of the pseudo header; a device completes it (virtio 1.2, 5.1.6.2).
    Partial,
}

/// Parses an IP packet. The local end of the segment's flow is the packet's destination.
///
/// # Errors
/// The reason why the packet must be dropped.
pub fn parse(packet: &[u8], verify: Verify) -> Result<Segment<'_>, Drop> {
    parse_ip(packet, packet.len(), verify).map(|(segment, _)| segment)
}

/// Parses a packet of `len` bytes from its first bytes, `front`, which hold all headers. Checksums
/// are not verified.
///
/// Returns the segment, whose payload is the part in `front`, and the number of payload bytes that
/// follow `front`.
///
/// # Errors
/// As for [`parse`].
pub fn parse_front(front: &[u8], len: usize) -> Result<(Segment<'_>, usize), Drop> {
    parse_ip(front, len, Verify::Nothing)
}

fn parse_ip(front: &[u8], len: usize, verify: Verify) -> Result<(Segment<'_>, usize), Drop> {
    let ip = match front.first().ok_or(Drop::Truncated)? >> 4 {
        4 => parse_v4(front, len, verify)?,
        6 => parse_v6(front, len)?,
        _ => return Err(Drop::NotTcp),
    };
    let (tcp, payload) = Tcp::parse(ip.payload).ok_or(Drop::Truncated)?;
    if verify == Verify::Checksums {
        let len = ip.payload.len() as u32;
        let sum = Sum::new().with_pseudo_header(ip.addresses, Protocol::TCP, len).with(ip.payload);
        if sum.checksum() != 0 {
            return Err(Drop::BadChecksum);
        }
    }
    let options = ip.payload.get(Tcp::LEN..tcp.header_len()).ok_or(Drop::Truncated)?;
    let options = Options::parse(options);
    let local = (ip.destination, tcp.destination());
    let remote = (ip.source, tcp.source());
    let flow = Flow::new(local, remote).filter(|_| is_plausible(&ip, tcp));
    let header = Header {
        flow: flow.ok_or(Drop::BadAddress)?,
        seq: Seq(tcp.sequence()),
        ack: Seq(tcp.acknowledgment()),
        flags: Flags::from_bits_retain(tcp.flags()),
        window: tcp.window(),
        ecn: Ecn::from_traffic_class(ip.class),
        options,
    };
    Ok((Segment { header, payload }, ip.rest))
}

struct Ip<'p> {
    source: IpAddr,
    destination: IpAddr,
    addresses: &'p [u8],
    class: u8,
    payload: &'p [u8],
    /// How many payload bytes lie beyond the given part of the packet.
    rest: usize,
}

fn parse_v4(packet: &[u8], len: usize, verify: Verify) -> Result<Ip<'_>, Drop> {
    let (ip, payload) = Ipv4::parse(packet).ok_or(Drop::Truncated)?;
    if ip.protocol() != Protocol::TCP {
        return Err(Drop::NotTcp);
    }
    if ip.is_fragment() {
        return Err(Drop::Fragment);
    }
    if ip.total_len() > len {
        return Err(Drop::Truncated);
    }
    if verify == Verify::Checksums && !Ipv4::checksum_ok(packet) {
        return Err(Drop::BadChecksum);
    }
    Ok(Ip {
        source: ip.source().into(),
        destination: ip.destination().into(),
        addresses: ip.addresses(),
        class: ip.tos(),
        payload,
        rest: ip.total_len().saturating_sub(packet.len()),
    })
}

fn parse_v6(packet: &[u8], len: usize) -> Result<Ip<'_>, Drop> {
    let (ip, rest) = Ipv6::parse(packet).ok_or(Drop::Truncated)?;
    if Ipv6::LEN + ip.payload_len() > len {
        return Err(Drop::Truncated);
    }
    let missing = ip.payload_len() - rest.len();
    let (protocol, payload) = ip.upper_layer(rest).ok_or(Drop::NotTcp)?;
    if protocol != Protocol::TCP {
        return Err(Drop::NotTcp);
    }
    Ok(Ip {
        source: ip.source().into(),
        destination: ip.destination().into(),
        addresses: ip.addresses(),
        class: packet[0] << 4 | packet[1] >> 4,
        payload,
        rest: missing,
    })
}

/// Returns false for addresses that no peer can have. An IPv4-mapped IPv6 address is one: it would
/// be taken for IPv4 (RFC 4291, 2.5.5.2).
fn is_plausible(ip: &Ip<'_>, tcp: &Tcp) -> bool {
    let peer = match ip.source {
        IpAddr::V4(v4) => !(v4.is_multicast() || v4.is_broadcast() || v4.is_unspecified()),
        IpAddr::V6(v6) => {
            !(v6.is_multicast() || v6.is_unspecified() || v6.to_ipv4_mapped().is_some())
        }
    };
    let us = match ip.destination {
        IpAddr::V4(v4) => !(v4.is_multicast() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_multicast() || v6.to_ipv4_mapped().is_some()),
    };
    peer && us && tcp.source() != 0 && tcp.destination() != 0
}

/// Writes the IP and TCP headers of a request to the start of `out`; returns their length. The
/// payload follows them.
///
/// `out` should have [`MAX_HEADERS`] bytes. Returns `None` if it is too short, or the packet is too
/// long for IP.
pub fn write_headers(request: &Request<'_>, out: &mut [u8], summing: Summing) -> Option<usize> {
    let header = &request.header;
    let ip_len = usize::from(header.flow.ip_header_len());
    let mut options = [0; MAX_OPTIONS];
    let options_len = header.options.write(&mut options);
    let tcp_len = Tcp::LEN + options_len;
    let total = u16::try_from(ip_len + tcp_len + request.payload.len()).ok()?;
    write_ip(header, total - ip_len as u16, out)?;
    let tcp = out.get_mut(ip_len..ip_len + tcp_len)?;
    let (fixed, rest) = tcp.split_first_chunk_mut::<{ Tcp::LEN }>()?;
    rest.copy_from_slice(&options[..options_len]);
    write_tcp(header, tcp_len, fixed);
    let sum = Sum::new().with(header.flow.local_octets()).with(header.flow.remote_octets());
    let sum = sum.with_pseudo_header(&[], Protocol::TCP, u32::from(total) - ip_len as u32);
    let value = match summing {
        Summing::Partial => !sum.checksum(),
        Summing::Full => {
            let sum = request.payload.pieces().fold(sum.with(tcp), Sum::with);
            sum.checksum()
        }
    };
    tcp[16..18].copy_from_slice(&value.to_be_bytes());
    Some(ip_len + tcp_len)
}

fn write_ip(header: &Header, payload_len: u16, out: &mut [u8]) -> Option<()> {
    let class = header.ecn as u8;
    match (header.flow.local().0, header.flow.remote().0) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let ip = Ipv4::new(local, remote, Protocol::TCP, payload_len);
            out.get_mut(..Ipv4::LEN)?.copy_from_slice(ip.as_bytes());
            if class != 0 {
                out[1] = class;
                let sum = update(ip.checksum(), 0x4500, 0x4500 | u16::from(class));
                out[10..12].copy_from_slice(&sum.to_be_bytes());
            }
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            let ip = Ipv6::new(local, remote, Protocol::TCP, payload_len);
            out.get_mut(..Ipv6::LEN)?.copy_from_slice(ip.as_bytes());
            out[1] |= class << 4;
        }
        _ => return None,
    }
    Some(())
}

fn write_tcp(header: &Header, len: usize, out: &mut [u8; Tcp::LEN]) {
    out[..2].copy_from_slice(&header.flow.local().1.to_be_bytes());
    out[2..4].copy_from_slice(&header.flow.remote().1.to_be_bytes());
    out[4..8].copy_from_slice(&header.seq.0.to_be_bytes());
    out[8..12].copy_from_slice(&header.ack.0.to_be_bytes());
    out[12..14].copy_from_slice(&[(len as u8 / 4) << 4, header.flags.bits()]);
    out[14..16].copy_from_slice(&header.window.to_be_bytes());
    out[16..].fill(0);
}

/// Returns the offload request of a frame whose packet follows `link_len` bytes of link header. The
/// checksum must have been written as [`Summing::Partial`].
#[must_use]
pub fn offload(request: &Request<'_>, link_len: u16) -> Offload {
    let header = &request.header;
    let start = link_len + header.flow.ip_header_len();
    let mut offload = Offload {
        flags: Offload::NEEDS_CHECKSUM,
        checksum_start: start,
        checksum_offset: Tcp::CHECKSUM,
        ..Offload::NONE
    };
    if request.gso_size != 0 {
        let kind = if header.flow.is_v4() { Offload::GSO_TCP4 } else { Offload::GSO_TCP6 };
        let ecn = if header.flags.contains(Flags::CWR) { Offload::GSO_ECN } else { 0 };
        offload.gso_type = kind | ecn;
        offload.gso_size = request.gso_size;
        offload.header_len = start + (Tcp::LEN + header.options.written_len()) as u16;
    }
    offload
}

/// Completes a checksum that was written as [`Summing::Partial`], for devices without checksum
/// offload. `packet` starts with the IP header.
pub fn complete(packet: &mut [u8], flow: &Flow) -> bool {
    let start = flow.ip_header_len();
    let Some(tcp) = packet.get_mut(usize::from(start)..) else { return false };
    let sum = checksum(tcp);
    let Some(field) = tcp.get_mut(16..18) else { return false };
    field.copy_from_slice(&sum.to_be_bytes());
    true
}
