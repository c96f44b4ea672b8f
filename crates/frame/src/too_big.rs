//! "Packet too big" messages for a tunnel. A switch has no address, so they come from the packet's
//! destination, as in Linux's tunnels (`net/ipv4/ip_tunnel_core.c`).

use alloc::vec;
use alloc::vec::Vec;

use crate::checksum::{Sum, checksum};
use crate::{ETHERNET_HEADER, EtherType, Ethernet, Icmp, Ipv4, Ipv6, Mac, Protocol, VLAN_TAG};
use zerocopy::IntoBytes;

/// Bytes of an ICMP error's header.
const ERROR: usize = 8;
/// The destination cannot be reached: fragmentation is needed and forbidden (RFC 792; RFC 1191, 4).
const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
/// Packet too big (RFC 4443, 3.2).
const PACKET_TOO_BIG: [u8; 2] = [2, 0];

/// A frame that tells a packet's sender the largest packet that fits: `mtu` bytes, less the frame's
/// tag. `head` is the start of the frame. `None` where the RFCs allow no answer: for frames other
/// than IP, packets that may be fragmented, groups, and ICMP errors (RFC 1122, 3.2.2; RFC 4443,
/// 2.4).
#[must_use]
pub fn packet_too_big(head: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let (mut frame, ethertype, packet) = begin_answer(head)?;
    let mtu = mtu.saturating_sub((frame.len() - ETHERNET_HEADER) as u16);
    let answer = match ethertype {
        EtherType::IPV4 => too_big_v4(packet, mtu)?,
        EtherType::IPV6 => too_big_v6(packet, mtu)?,
        _ => return None,
    };
    frame.extend(answer);
    Some(frame)
}

/// The link headers of an answer to a frame, with the same tag, and the frame's packet with its
/// type. `None` for frames from or to groups.
pub(crate) fn begin_answer(head: &[u8]) -> Option<(Vec<u8>, EtherType, &[u8])> {
    let (ethernet, _) = Ethernet::parse(head)?;
    let (from, to) = (ethernet.source(), ethernet.destination());
    if from.is_group() || to.is_group() {
        return None;
    }
    let (mut at, mut ethertype) = (ETHERNET_HEADER, ethernet.ethertype());
    if ethertype == EtherType::VLAN {
        at += VLAN_TAG;
        let next: [u8; 2] = head.get(at - 2..at)?.try_into().ok()?;
        ethertype = EtherType(u16::from_be_bytes(next));
    }
    let packet = head.get(at..)?;
    let mut frame = [Mac::octets(from), Mac::octets(to)].concat();
    frame.extend_from_slice(&head[12..at]);
    Some((frame, ethertype, packet))
}

fn too_big_v4(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    const DONT_FRAGMENT: u8 = 0x40;
    let (header, rest) = Ipv4::parse(packet)?;
    let is_error = header.protocol() == Protocol::ICMP
        && Icmp::parse(rest).is_none_or(|(icmp, _)| !matches!(icmp.kind, 0 | 8));
    let may_be_cut = packet[6] & DONT_FRAGMENT == 0;
    let no_sender = header.source().is_unspecified() || header.source().is_multicast();
    let group = header.destination().is_multicast() || header.destination().is_broadcast();
    if is_error || may_be_cut || header.is_fragment() || no_sender || group {
        return None;
    }
    // Enough to identify the flow (RFC 792).
    let quoted = &packet[..packet.len().min(header.header_len() + 8)];
    let len = u16::try_from(ERROR + quoted.len()).ok()?;
    let ip = Ipv4::new(header.destination(), header.source(), Protocol::ICMP, len);
    let mut error = vec![0; ERROR];
    error[..2].copy_from_slice(&FRAGMENTATION_NEEDED);
    error[6..8].copy_from_slice(&mtu.to_be_bytes());
    error.extend_from_slice(quoted);
    let sum = checksum(&error);
    error[2..4].copy_from_slice(&sum.to_be_bytes());
    Some([ip.as_bytes(), &error].concat())
}

fn too_big_v6(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let (header, rest) = Ipv6::parse(packet)?;
    let is_error = header.next_header() == Protocol::ICMPV6
        && Icmp::parse(rest).is_none_or(|(icmp, _)| icmp.kind & 0x80 == 0);
    let no_sender = header.source().is_unspecified() || header.source().is_multicast();
    if is_error || no_sender || header.destination().is_multicast() {
        return None;
    }
    let len = u16::try_from(ERROR + packet.len()).ok()?;
    let ip = Ipv6::new(header.destination(), header.source(), Protocol::ICMPV6, len);
    let mut error = vec![0; ERROR];
    error[..2].copy_from_slice(&PACKET_TOO_BIG);
    error[6..8].copy_from_slice(&mtu.to_be_bytes());
    error.extend_from_slice(packet);
    let sum = Sum::new().with_pseudo_header(ip.addresses(), Protocol::ICMPV6, len.into());
    let sum = sum.with(&error).checksum();
    error[2..4].copy_from_slice(&sum.to_be_bytes());
    Some([ip.as_bytes(), &error].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layers, Transport, UdpFrame};

    fn ipv4() -> Vec<u8> {
        let mut frame = vec![0; 128];
        UdpFrame::between(Mac::local(1), Mac::local(2)).write(&mut frame).unwrap();
        frame
    }

    #[test]
    fn a_sender_is_told_by_its_destination() {
        let frame = ipv4();
        let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
        for (frame, ip, mtu) in [(&frame, 14, 1450u16), (&tagged, 18, 1446)] {
            let answer = packet_too_big(frame, 1450).unwrap();
            let (ethernet, _) = Ethernet::parse(&answer).unwrap();
            assert_eq!(ethernet.destination(), Mac::local(1));
            assert_eq!(ethernet.source(), Mac::local(2));
            assert_eq!(answer[12..ip], frame[12..ip], "the same tag");
            let (header, error) = Ipv4::parse(&answer[ip..]).unwrap();
            let (asked, _) = Ipv4::parse(&frame[ip..]).unwrap();
            assert!(Ipv4::checksum_ok(&answer[ip..]));
            assert_eq!(
                (header.source(), header.destination()),
                (asked.destination(), asked.source())
            );
            assert_eq!(header.total_len(), answer.len() - ip);
            assert_eq!((error[0], error[1], checksum(error)), (3, 4, 0));
            assert_eq!(error[6..8], mtu.to_be_bytes());
            assert_eq!(error[8..], frame[ip..ip + 28]);
        }
    }

    #[test]
    fn so_it_is_in_ipv6() {
        let mut frame = ipv4()[..14].to_vec();
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        let (a, b) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        frame.extend(Ipv6::new(a, b, Protocol::UDP, 1400).as_bytes());
        frame.extend([7; 60]);
        let answer = packet_too_big(&frame, 1280).unwrap();
        let (header, error) = Ipv6::parse(&answer[14..]).unwrap();
        assert_eq!((header.source(), header.destination()), (b, a));
        assert_eq!((error[0], error[1]), (2, 0));
        assert_eq!(error[4..8], 1280u32.to_be_bytes());
        assert_eq!(error[8..], frame[14..]);
        let sum =
            Sum::new().with_pseudo_header(header.addresses(), Protocol::ICMPV6, error.len() as u32);
        assert_eq!(sum.with(error).checksum(), 0);
        assert!(matches!(Layers::of(&answer).unwrap().transport, Transport::Icmp(_)));
        frame[20] = 58;
        assert!(packet_too_big(&frame, 1280).is_none(), "an error about an error");
    }

    #[test]
    fn senders_that_must_not_be_told_are_not() {
        for (at, byte) in
            [(0, 0xff), (6, 3), (20, 0), (20, 0x20), (21, 1), (30, 224), (13, 6), (23, 1)]
        {
            let mut frame = ipv4();
            // Changes the first byte of an ICMP error.
            frame[34] = 3;
            frame[at] = byte;
            assert!(packet_too_big(&frame, 1450).is_none(), "byte {at}");
        }
        let frame = ipv4();
        for len in 0..34 {
            assert!(packet_too_big(&frame[..len], 1450).is_none(), "{len}");
        }
    }
}
