//! What refuses a TCP segment. A switch has no address, so the answer comes from the segment's
//! destination.

use alloc::vec;
use alloc::vec::Vec;

use zerocopy::IntoBytes;

use crate::checksum::Sum;
use crate::too_big::begin_answer;
use crate::{EtherType, Ipv4, Ipv6, Protocol, tcp_flags};

/// Bytes of a TCP header without options.
const TCP: usize = 20;

/// A frame that resets the connection of a TCP segment (RFC 9293, 3.10.7.1). `head` is the start of
/// the segment's frame. `None` for other frames, resets, parts of packets, and frames from or to
/// groups.
#[must_use]
pub fn tcp_reset(head: &[u8]) -> Option<Vec<u8>> {
    let (mut frame, ethertype, packet) = begin_answer(head)?;
    match ethertype {
        EtherType::IPV4 => {
            let (header, rest) = Ipv4::parse(packet)?;
            let group = header.source().is_multicast() || header.destination().is_multicast();
            if header.protocol() != Protocol::TCP || header.is_fragment() || group {
                return None;
            }
            let len = header.total_len().checked_sub(header.header_len())?;
            let ip = Ipv4::new(header.destination(), header.source(), Protocol::TCP, TCP as u16);
            frame.extend_from_slice(ip.as_bytes());
            frame.extend(segment(rest, len, ip.addresses())?);
        }
        EtherType::IPV6 => {
            let (header, rest) = Ipv6::parse(packet)?;
            let (protocol, segment_of) = header.upper_layer(rest)?;
            let group = header.source().is_multicast() || header.destination().is_multicast();
            if protocol != Protocol::TCP || group {
                return None;
            }
            let options = rest.len() - segment_of.len();
            let len = header.payload_len().checked_sub(options)?;
            let ip = Ipv6::new(header.destination(), header.source(), Protocol::TCP, TCP as u16);
            frame.extend_from_slice(ip.as_bytes());
            frame.extend(segment(segment_of, len, ip.addresses())?);
        }
        _ => return None,
    }
    Some(frame)
}

/// The segment that resets the connection of `refused`, which has `len` bytes; `addresses` are the
/// answer's.
fn segment(refused: &[u8], len: usize, addresses: &[u8]) -> Option<Vec<u8>> {
    let refused: &[u8; TCP] = refused.first_chunk()?;
    let flags = refused[13];
    if flags & tcp_flags::RST != 0 {
        return None;
    }
    let mut segment = vec![0; TCP];
    segment[..2].copy_from_slice(&refused[2..4]);
    segment[2..4].copy_from_slice(&refused[..2]);
    segment[12] = 0x50;
    if flags & tcp_flags::ACK != 0 {
        segment[4..8].copy_from_slice(&refused[8..12]);
        segment[13] = tcp_flags::RST;
    } else {
        let data = len.saturating_sub(usize::from(refused[12] >> 4) * 4) as u32;
        let marks = [tcp_flags::SYN, tcp_flags::FIN].iter().filter(|mark| flags & **mark != 0);
        let [a, b, c, d] = [refused[4], refused[5], refused[6], refused[7]];
        let next = u32::from_be_bytes([a, b, c, d]);
        let next = next.wrapping_add(data).wrapping_add(marks.count() as u32);
        segment[8..12].copy_from_slice(&next.to_be_bytes());
        segment[13] = tcp_flags::RST | tcp_flags::ACK;
    }
    let sum = Sum::new().with_pseudo_header(addresses, Protocol::TCP, TCP as u32);
    let sum = sum.with(&segment).checksum();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    Some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ethernet, Mac};

    /// A segment with 5 bytes of data and these flags.
    fn frame(v6: bool, flags: u8) -> Vec<u8> {
        let ethertype = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        let mut frame = Ethernet::new(Mac::local(2), Mac::local(1), ethertype).as_bytes().to_vec();
        if v6 {
            let (a, b) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
            frame.extend(Ipv6::new(a, b, Protocol::TCP, 25).as_bytes());
        } else {
            let (a, b) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            frame.extend(Ipv4::new(a, b, Protocol::TCP, 25).as_bytes());
        }
        frame.extend([0x0f, 0xa0, 0, 80, 0, 0, 1, 0, 0, 0, 2, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame.extend([7; 5]);
        frame
    }

    #[test]
    fn segments_are_refused_as_a_closed_port_refuses_them() {
        for (v6, flags, sequence, acknowledged, answer) in [
            (false, tcp_flags::SYN, 0, 0x106, tcp_flags::RST | tcp_flags::ACK),
            (true, tcp_flags::SYN, 0, 0x106, tcp_flags::RST | tcp_flags::ACK),
            (false, tcp_flags::ACK, 0x200, 0, tcp_flags::RST),
            (true, tcp_flags::ACK | tcp_flags::FIN, 0x200, 0, tcp_flags::RST),
            (false, tcp_flags::FIN, 0, 0x106, tcp_flags::RST | tcp_flags::ACK),
        ] {
            let reset = tcp_reset(&frame(v6, flags)).unwrap();
            let (ethernet, packet) = Ethernet::parse(&reset).unwrap();
            assert_eq!((ethernet.destination(), ethernet.source()), (Mac::local(1), Mac::local(2)));
            let (addresses, segment) = if v6 {
                let (header, segment) = Ipv6::parse(packet).unwrap();
                (header.addresses(), segment)
            } else {
                let (header, segment) = Ipv4::parse(packet).unwrap();
                assert!(Ipv4::checksum_ok(packet));
                (header.addresses(), segment)
            };
            assert_eq!(segment[..4], [0, 80, 0x0f, 0xa0]);
            assert_eq!(segment[4..8], u32::to_be_bytes(sequence));
            assert_eq!(segment[8..12], u32::to_be_bytes(acknowledged));
            assert_eq!((segment.len(), segment[13]), (20, answer));
            let sum = Sum::new().with_pseudo_header(addresses, Protocol::TCP, 20);
            assert_eq!(sum.with(segment).checksum(), 0);
        }
    }

    #[test]
    fn what_has_no_answer_gets_none() {
        assert!(tcp_reset(&frame(false, tcp_flags::RST)).is_none());
        let whole = frame(false, tcp_flags::SYN);
        for (at, byte) in [(0, 0xff), (6, 3), (20, 0x20), (23, 17), (30, 224), (12, 9)] {
            let mut frame = whole.clone();
            frame[at] = byte;
            assert!(tcp_reset(&frame).is_none(), "byte {at}");
        }
        for len in 0..54 {
            assert!(tcp_reset(&whole[..len]).is_none(), "{len}");
        }
    }
}
