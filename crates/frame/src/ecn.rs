//! Explicit congestion notification of frames in a tunnel (RFC 6040).

use crate::checksum;
use crate::{ETHERNET_HEADER, EtherType, Ethernet, VLAN_TAG};

/// The ECN codepoint: two bits (RFC 3168, 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not support ECN.
    #[default]
    NotEct = 0,
    /// ECT(1).
    Ect1 = 1,
    /// ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The codepoint in a type of service or traffic class: its low two bits.
    #[must_use]
    pub const fn of_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The outer header's codepoint for this inner one (RFC 6040, 4.1, normal mode): the same.
    #[must_use]
    pub const fn outer(self) -> u8 {
        self as u8
    }
}

/// Where a frame's IP header begins, and true if it is IPv4; `None` for other frames.
fn ip_header(frame: &[u8]) -> Option<(usize, bool)> {
    let (ethernet, _) = Ethernet::parse(frame)?;
    let (mut at, mut ethertype) = (ETHERNET_HEADER, ethernet.ethertype());
    for _ in 0..2 {
        if matches!(ethertype, EtherType::VLAN | EtherType::SERVICE_VLAN) {
            at += VLAN_TAG;
            let next: [u8; 2] = frame.get(at - 2..at)?.try_into().ok()?;
            ethertype = EtherType(u16::from_be_bytes(next));
        }
    }
    let version = *frame.get(at)? >> 4;
    match (ethertype, version) {
        (EtherType::IPV4, 4) if frame.len() >= at + 20 => Some((at, true)),
        (EtherType::IPV6, 6) if frame.len() >= at + 40 => Some((at, false)),
        _ => None,
    }
}

/// The codepoint in a frame's IP header; [`Ecn::NotEct`] for frames without one.
#[must_use]
pub fn ecn_of(frame: &[u8]) -> Ecn {
    match ip_header(frame) {
        None => Ecn::NotEct,
        Some((at, true)) => Ecn::of_tos(frame[at + 1]),
        Some((at, false)) => Ecn::of_tos(frame[at + 1] >> 4),
    }
}

/// Combines the outer codepoint with the frame's own as it leaves the tunnel (RFC 6040, 4.2).
/// Returns false for a frame that must be dropped: it experienced congestion, but its transport
/// would not learn of it.
#[must_use]
pub fn leave_tunnel(frame: &mut [u8], outer: Ecn) -> bool {
    if matches!(outer, Ecn::NotEct | Ecn::Ect0) {
        return true;
    }
    let Some((at, is_v4)) = ip_header(frame) else { return true };
    let inner = ecn_of(frame);
    let combined = match (inner, outer) {
        (Ecn::NotEct, Ecn::Ce) => return false,
        (Ecn::Ect0 | Ecn::Ect1, Ecn::Ce) => Ecn::Ce,
        (Ecn::Ect0, Ecn::Ect1) => Ecn::Ect1,
        _ => inner,
    };
    if combined != inner {
        set(frame, at, is_v4, combined);
    }
    true
}

/// Notes congestion in a frame whose transport supports ECN (RFC 3168, 5): its codepoint becomes
/// [`Ecn::Ce`]. `head` is the frame's start, or all of it. Returns false for other frames, which
/// stay as they are.
#[must_use]
pub fn mark_congestion(head: &mut [u8]) -> bool {
    let Some((at, is_v4)) = ip_header(head) else { return false };
    match ecn_of(head) {
        Ecn::NotEct => return false,
        Ecn::Ce => {}
        Ecn::Ect0 | Ecn::Ect1 => set(head, at, is_v4, Ecn::Ce),
    }
    true
}

fn set(frame: &mut [u8], at: usize, is_v4: bool, ecn: Ecn) {
    let old = [frame[at], frame[at + 1]];
    let shift = if is_v4 { 0 } else { 4 };
    frame[at + 1] = old[1] & !(3 << shift) | (ecn as u8) << shift;
    if is_v4 {
        let new = u16::from_be_bytes([frame[at], frame[at + 1]]);
        let sum = u16::from_be_bytes([frame[at + 10], frame[at + 11]]);
        let sum = checksum::update(sum, u16::from_be_bytes(old), new);
        frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ipv4, Mac, UdpFrame};

    const ALL: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

    fn ipv4(ecn: Ecn, tags: usize) -> Vec<u8> {
        let mut frame = vec![0; 80];
        UdpFrame::between(Mac::local(1), Mac::local(2)).write(&mut frame).unwrap();
        set(&mut frame, ETHERNET_HEADER, true, ecn);
        for _ in 0..tags {
            frame.splice(12..12, [0x81, 0, 0, 5]);
        }
        frame
    }

    fn ipv6(ecn: Ecn) -> Vec<u8> {
        let mut frame = vec![0; 80];
        frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x6a, (ecn as u8) << 4 | 0x85]);
        frame
    }

    #[test]
    fn only_frames_of_transports_with_ecn_are_marked() {
        for ecn in ALL {
            for (mut frame, is_v4) in
                [(ipv4(ecn, 0), true), (ipv4(ecn, 1), true), (ipv6(ecn), false)]
            {
                let before = frame.clone();
                assert_eq!(mark_congestion(&mut frame), ecn != Ecn::NotEct);
                match ecn {
                    Ecn::NotEct => assert_eq!(frame, before),
                    _ => assert_eq!(ecn_of(&frame), Ecn::Ce),
                }
                let at = frame.len() - 80 + ETHERNET_HEADER;
                assert!(!is_v4 || checksum::checksum(&frame[at..at + 20]) == 0);
            }
        }
        assert!(!mark_congestion(&mut [0; 60]) && !mark_congestion(&mut []));
    }

    #[test]
    fn codepoints_combine_as_in_figure_4_of_the_rfc() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        let table = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect1), Some(Ect0), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce); 4]),
        ];
        for (inner, row) in table {
            for (outer, expected) in ALL.into_iter().zip(row) {
                for (mut frame, tags) in [
                    (ipv4(inner, 0), 0),
                    (ipv4(inner, 1), 1),
                    (ipv4(inner, 2), 2),
                    (ipv6(inner), 9),
                ] {
                    assert_eq!(ecn_of(&frame), inner);
                    let kept = leave_tunnel(&mut frame, outer);
                    assert_eq!(kept, expected.is_some(), "{inner:?} in {outer:?}");
                    assert_eq!(ecn_of(&frame), expected.unwrap_or(inner), "{inner:?} in {outer:?}");
                    if tags < 9 {
                        let ip = &frame[ETHERNET_HEADER + tags * VLAN_TAG..];
                        assert!(Ipv4::checksum_ok(ip), "{inner:?} in {outer:?}");
                    } else {
                        assert_eq!(
                            (frame[14], frame[15] & 0xcf),
                            (0x6a, 0x85),
                            "other bits changed"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn frames_without_ip_pass_unchanged_whatever_their_length() {
        let whole = ipv4(Ecn::Ect0, 1);
        for len in 0..whole.len() {
            let mut frame = whole[..len].to_vec();
            assert!(leave_tunnel(&mut frame, Ecn::Ce) || len > 30);
        }
        let mut arp = vec![0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        let before = arp.clone();
        assert!(leave_tunnel(&mut arp, Ecn::Ce));
        assert_eq!(arp, before);
    }
}
