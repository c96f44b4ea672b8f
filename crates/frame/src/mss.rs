//! The segment size that a TCP sender announces, lowered to what fits a path (MSS clamping).

use crate::checksum::update_bytes;
use crate::offload::{Headers, Version};
use crate::{ETHERNET_HEADER, Ipv4, Ipv6, Protocol, Tcp, tcp_flags};

/// Options of TCP (RFC 9293, 3.1): end of the list, padding, maximum segment size.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
/// The maximum number of bytes of options.
const MAX_OPTIONS: usize = 40;
/// No size is set below this one, as Linux refuses smaller ones (`TCP_MIN_MSS`).
const LEAST: u16 = 88;

/// Lowers the maximum segment size in a TCP SYN to what fits packets of `mtu` bytes, less the
/// frame's tags. Updates the checksum, which may be complete or wrong, but not partial. `frame` is
/// the whole frame. Returns true if it has changed: a frame that is no SYN, is cut short, or has
/// malformed options stays as it is.
pub fn clamp_mss(frame: &mut [u8], mtu: u16) -> bool {
    let Some(syn) = Syn::find(frame) else { return false };
    let most = usize::from(mtu).saturating_sub(syn.overhead).max(LEAST.into());
    let tcp = &mut frame[syn.tcp..syn.end];
    let mut options = [0; MAX_OPTIONS];
    let (header, own) = tcp.split_at_mut(Tcp::LEN);
    let options = &mut options[..own.len()];
    options.copy_from_slice(own);
    if !lower(options, u16::try_from(most).unwrap_or(u16::MAX)) {
        return false;
    }
    let at = usize::from(Tcp::CHECKSUM);
    let sum = u16::from_be_bytes([header[at], header[at + 1]]);
    header[at..at + 2].copy_from_slice(&update_bytes(sum, own, options).to_be_bytes());
    own.copy_from_slice(options);
    true
}

/// Where a SYN's TCP header is.
struct Syn {
    tcp: usize,
    /// Where the options end.
    end: usize,
    /// Bytes of tags, IP header and TCP header, without options (RFC 6691).
    overhead: usize,
}

impl Syn {
    fn find(frame: &[u8]) -> Option<Self> {
        let headers = Headers::find(frame).filter(|h| h.protocol == Some(Protocol::TCP))?;
        let (tcp, ip) = (headers.transport, frame.get(headers.network..)?);
        let (ip_header, packet) = match headers.version? {
            Version::V4 => (Ipv4::LEN, Ipv4::parse(ip)?.0.total_len()),
            Version::V6 => (Ipv6::LEN, Ipv6::LEN + Ipv6::parse(ip)?.0.payload_len()),
        };
        let (header, _) = Tcp::parse(frame.get(tcp..)?)?;
        let end = tcp + header.header_len();
        let is_whole = end <= frame.len().min(headers.network + packet);
        let overhead = headers.network - ETHERNET_HEADER + ip_header + Tcp::LEN;
        let is_syn = header.flags() & tcp_flags::SYN != 0;
        (is_syn && is_whole).then_some(Self { tcp, end, overhead })
    }
}

/// Lowers each size in the options to `most`. Returns false if there is nothing to lower, or the
/// options are malformed.
fn lower(options: &mut [u8], most: u16) -> bool {
    let (mut rest, mut lowered) = (options, false);
    loop {
        let len = match *rest {
            [] | [END, ..] => return lowered,
            [NO_OPERATION, ..] => 1,
            [MSS, 4, ref mut a, ref mut b, ..] => {
                if u16::from_be_bytes([*a, *b]) > most {
                    [*a, *b] = most.to_be_bytes();
                    lowered = true;
                }
                4
            }
            [_, len, ..] if len >= 2 => usize::from(len),
            _ => return false,
        };
        match rest.get_mut(len..) {
            Some(following) => rest = following,
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Sum;
    use crate::{EtherType, Mac};
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    /// A SYN with these options and tags, its checksum right; `true` for IPv6.
    fn syn(v6: bool, tags: usize, options: &[u8]) -> Vec<u8> {
        let mut tcp = [0; Tcp::LEN].to_vec();
        tcp[12] = ((Tcp::LEN + options.len()) / 4 * 16) as u8;
        tcp[13] = tcp_flags::SYN;
        tcp.extend(options);
        let len = tcp.len() as u16;
        let (a, b) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let v6_header = Ipv6::new(a, b, Protocol::TCP, len);
        let v4_header = Ipv4::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::TCP, len);
        let (ip, addresses, kind) = match v6 {
            true => (v6_header.as_bytes(), v6_header.addresses(), EtherType::IPV6),
            false => (v4_header.as_bytes(), v4_header.addresses(), EtherType::IPV4),
        };
        let sum = Sum::new().with_pseudo_header(addresses, Protocol::TCP, len.into()).with(&tcp);
        tcp[16..18].copy_from_slice(&sum.checksum().to_be_bytes());
        let mut frame = [Mac::local(1).octets(), Mac::local(2).octets()].concat();
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 5]));
        frame.extend(kind.0.to_be_bytes());
        [&frame[..], ip, &tcp].concat()
    }

    /// The sum over a frame's TCP segment: zero if its checksum is right.
    fn residue(frame: &[u8]) -> u16 {
        let headers = Headers::find(frame).unwrap();
        let (ip, tcp) = (&frame[headers.network..], &frame[headers.transport..]);
        let addresses = match headers.version {
            Some(Version::V4) => Ipv4::parse(ip).unwrap().0.addresses(),
            _ => Ipv6::parse(ip).unwrap().0.addresses(),
        };
        Sum::new()
            .with_pseudo_header(addresses, Protocol::TCP, tcp.len() as u32)
            .with(tcp)
            .checksum()
    }

    #[test]
    fn the_size_is_lowered_to_what_fits_and_the_checksum_stays_right() {
        for (v6, tags, most) in [
            (false, 0, 1410u16),
            (false, 1, 1406),
            (false, 2, 1402),
            (true, 0, 1390),
            (true, 1, 1386),
        ] {
            // The second list has the size at an odd offset, the third has it twice.
            for (options, places) in [
                (&[2, 4, 5, 180, 1, 3, 3, 7][..], &[2][..]),
                (&[1, 2, 4, 5, 180, 3, 3, 7], &[3]),
                (&[2, 4, 5, 180, 2, 4, 35, 0, 0, 2, 4, 255], &[2, 6]),
            ] {
                let frame = syn(v6, tags, options);
                assert_eq!(residue(&frame), 0);
                let mut clamped = frame.clone();
                assert!(clamp_mss(&mut clamped, 1450), "{v6} {tags} {options:?}");
                assert_eq!(residue(&clamped), 0, "{v6} {tags} {options:?}");
                let mut expected = options.to_vec();
                places.iter().for_each(|at| {
                    expected[*at..at + 2].copy_from_slice(&most.to_be_bytes());
                });
                assert_eq!(clamped[frame.len() - options.len()..], expected);
                assert!(!clamp_mss(&mut clamped, 1450), "once is enough");
                assert!(!clamp_mss(&mut frame.clone(), 9200), "it fits");
            }
        }
    }

    #[test]
    fn a_size_is_never_lowered_to_next_to_nothing() {
        let mut frame = syn(false, 0, &[2, 4, 5, 180]);
        assert!(clamp_mss(&mut frame, 0));
        assert_eq!(frame[frame.len() - 2..], [0, 88]);
    }

    #[test]
    fn what_is_cut_short_or_malformed_or_no_syn_stays_as_it_is() {
        let good = [2, 4, 255, 255];
        let frame = syn(false, 1, &good);
        for len in 0..frame.len() {
            let mut cut = frame[..len].to_vec();
            assert!(!clamp_mss(&mut cut, 1450) && cut == frame[..len], "{len}");
        }
        for options in [
            &[2, 4, 255, 255, 3, 0, 0, 0][..],
            &[2, 4, 255, 255, 3, 1, 0, 0],
            &[2, 4, 255, 255, 3, 9, 0, 0],
            &[2, 4, 255, 255, 1, 1, 1, 2],
            &[2, 3, 255, 255],
            &[2, 5, 255, 255],
            &[0, 2, 4, 255, 255, 0, 0, 0],
        ] {
            let mut frame = syn(true, 0, options);
            let before = frame.clone();
            assert!(!clamp_mss(&mut frame, 1450) && frame == before, "{options:?}");
        }
        // Changes the flags, the protocol, the fragment offset, and the packet's length, which then
        // ends before its options.
        for (at, byte) in [(14 + 33, 0x10), (14 + 9, 17), (14 + 6, 0x20), (14 + 3, 43)] {
            let mut frame = syn(false, 0, &good);
            frame[at] = byte;
            let before = frame.clone();
            assert!(!clamp_mss(&mut frame, 1450) && frame == before, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_options_are_the_checksum_is_as_right_as_before(
            options in proptest::collection::vec(any::<u8>(), 0..=40), mtu: u16, v6: bool, wrong: bool,
        ) {
            let mut frame = syn(v6, 0, &options[..options.len() / 4 * 4]);
            let at = if v6 { 14 + 40 + 16 } else { 14 + 20 + 16 };
            frame[at] ^= u8::from(wrong);
            let before = residue(&frame);
            clamp_mss(&mut frame, mtu);
            prop_assert_eq!(residue(&frame), before);
        }

        #[test]
        fn any_bytes_are_taken(mut frame in proptest::collection::vec(any::<u8>(), 0..200), mtu: u16) {
            clamp_mss(&mut frame, mtu);
        }
    }
}
