//! The segments of a tunnel: which VNI carries which VLAN of the switch.
//!
//! ```text
//!   switch:  | to, from | tag: VLAN 10 | rest |   <-->   | header: VNI 10010 | to, from | rest |
//! ```
//!
//! A tunnel of one segment without a VLAN carries the port's frames as they are. A peer is a host
//! in a segment: with `n` segments, peer number `v` is in segment `(v - 1) % n`.

use frame::{Encapsulation, NoFrame, TUNNEL_HEADER, VLAN_TAG, VlanId, Vni};
use port::DropReason;
use serde::{Deserialize, Serialize};

/// The maximum number of segments of a tunnel.
pub const MAX_SEGMENTS: usize = 256;
/// Bytes of the two addresses before a tag.
const ADDRESSES: usize = 12;
/// The type of a VLAN's tag (IEEE 802.1Q, 9.6).
const TAG: [u8; 2] = [0x81, 0x00];
/// In [`Segments::by_vlan`]: no segment.
const NONE: u16 = u16::MAX;

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Its number.
    pub vni: Vni,
    /// The VLAN that it carries; `None`: the port's frames, as they are.
    #[serde(default)]
    pub vlan: Option<VlanId>,
}

/// The table of a tunnel's segments.
#[derive(Debug)]
pub(super) struct Segments {
    way: Encapsulation,
    all: Vec<Segment>,
    headers: Vec<[u8; TUNNEL_HEADER]>,
    /// VNIs in order, each with its segment.
    by_vni: Vec<(u32, u16)>,
    /// The segment of each VLAN; empty if frames leave as they are.
    by_vlan: Vec<u16>,
}

impl Segments {
    /// `None` if there are none or too many, two have the same VNI or VLAN, or one of several has
    /// no VLAN.
    pub fn new(way: Encapsulation, all: &[Segment]) -> Option<Self> {
        let mut by_vni: Vec<_> = all.iter().map(|segment| segment.vni.get()).zip(0..).collect();
        by_vni.sort_unstable();
        let is_twice = by_vni.windows(2).any(|pair| pair[0].0 == pair[1].0);
        let is_plain = matches!(all, [Segment { vlan: None, .. }]);
        if all.is_empty() || all.len() > MAX_SEGMENTS || is_twice {
            return None;
        }
        let mut by_vlan = vec![NONE; if is_plain { 0 } else { 1 << 12 }];
        for (segment, number) in all.iter().zip(0..).filter(|_| !is_plain) {
            let place = &mut by_vlan[usize::from(segment.vlan?.get())];
            if std::mem::replace(place, number) != NONE {
                return None;
            }
        }
        let headers = all.iter().map(|segment| way.header(segment.vni)).collect();
        Some(Self { way, all: all.to_vec(), headers, by_vni, by_vlan })
    }

    /// The number of segments.
    pub fn count(&self) -> u16 {
        self.all.len() as u16
    }

    /// The VLAN of a segment; `None` if frames are carried as they are.
    pub fn vlan(&self, segment: u16) -> Option<VlanId> {
        self.all.get(usize::from(segment))?.vlan
    }

    /// The segment of a frame that leaves, from its head; `None` if its VLAN has none, or it would
    /// leave with another tag.
    #[inline]
    pub fn of_frame(&self, head: &[u8]) -> Option<u16> {
        if self.by_vlan.is_empty() {
            return Some(0);
        }
        let tag: &[u8; VLAN_TAG + 2] = head.get(ADDRESSES..)?.first_chunk()?;
        let [a, b, c, d, e, f] = *tag;
        if [a, b] != TAG || frame::is_tag(u16::from_be_bytes([e, f])) {
            return None;
        }
        let vlan = u16::from_be_bytes([c, d]) & 0xfff;
        self.by_vlan.get(usize::from(vlan)).copied().filter(|segment| *segment != NONE)
    }

    /// Bytes of the datagram for a frame of `len` bytes.
    #[inline]
    pub fn datagram_len(&self, len: usize) -> usize {
        TUNNEL_HEADER + len - self.tag()
    }

    /// Bytes of the tag that frames have in the switch, and not in the tunnel.
    #[inline]
    pub fn tag(&self) -> usize {
        if self.by_vlan.is_empty() { 0 } else { VLAN_TAG }
    }

    /// Makes a datagram of a frame of this segment, which `copy` copies.
    #[inline]
    pub fn write(&self, segment: u16, datagram: &mut [u8], copy: impl FnOnce(&mut [u8])) {
        let tag = self.tag();
        copy(&mut datagram[TUNNEL_HEADER - tag..]);
        if tag > 0 {
            // The addresses move to where the tag is.
            datagram
                .copy_within(TUNNEL_HEADER - tag..TUNNEL_HEADER - tag + ADDRESSES, TUNNEL_HEADER);
        }
        datagram[..TUNNEL_HEADER].copy_from_slice(&self.headers[usize::from(segment)]);
    }

    /// A datagram's segment, and the offset of its frame.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub fn open(&self, datagram: &[u8]) -> Result<(u16, usize), DropReason> {
        let (vni, at) = self.way.open(datagram).map_err(|no| match no {
            NoFrame::Malformed => DropReason::Encapsulation,
            NoFrame::Runt => DropReason::Runt,
        })?;
        let found = match self.by_vni[..] {
            [(only, segment)] => (only == vni).then_some(segment),
            ref all => {
                all.binary_search_by_key(&vni, |(vni, _)| *vni).ok().map(|place| all[place].1)
            }
        };
        found.map(|segment| (segment, at)).ok_or(DropReason::UnknownVni)
    }

    /// Gives the frame at `at` of a datagram the tag of its segment's VLAN. Returns where the frame
    /// begins from here on; `None` if it has a tag (RFC 7348, 6.1).
    #[inline]
    pub fn tag_frame(&self, segment: u16, datagram: &mut [u8], at: usize) -> Option<usize> {
        let Some(vlan) = self.vlan(segment) else { return Some(at) };
        let kind = [datagram[at + ADDRESSES], datagram[at + ADDRESSES + 1]];
        if frame::is_tag(u16::from_be_bytes(kind)) {
            return None;
        }
        let from = at - VLAN_TAG;
        datagram.copy_within(at..at + ADDRESSES, from);
        let [a, b] = vlan.get().to_be_bytes();
        datagram[from + ADDRESSES..at + ADDRESSES].copy_from_slice(&[TAG[0], TAG[1], a, b]);
        Some(from)
    }

    /// A frame that was taken out of a datagram's head, with the tag of its segment's VLAN.
    pub fn tagged(&self, segment: u16, head: &[u8]) -> Vec<u8> {
        let mut frame = head.to_vec();
        if let (Some(vlan), true) = (self.vlan(segment), head.len() >= ADDRESSES) {
            let [a, b] = vlan.get().to_be_bytes();
            frame.splice(ADDRESSES..ADDRESSES, [TAG[0], TAG[1], a, b]);
        }
        frame
    }

    /// The segment of a peer.
    #[inline]
    pub fn of_peer(&self, via: u16) -> u16 {
        match self.count() {
            1 => 0,
            count => via.wrapping_sub(1) % count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(vni: u32, vlan: u16) -> Segment {
        Segment { vni: Vni::new(vni).unwrap(), vlan: VlanId::new(vlan) }
    }

    fn table(all: &[Segment]) -> Option<Segments> {
        Segments::new(Encapsulation::Vxlan, all)
    }

    /// A frame of VLAN 20, or with these bytes in place of its tag.
    fn tagged(tag: [u8; 4], kind: [u8; 2]) -> Vec<u8> {
        [&[1; 6][..], &[2; 6], &tag, &kind, &[9; 46]].concat()
    }

    #[test]
    fn each_vlan_has_its_own_vni_and_its_frames_no_tag_in_the_tunnel() {
        let all = table(&[segment(10010, 10), segment(10020, 20)]).unwrap();
        let frame = tagged([0x81, 0, 0xe0, 20], [8, 0]);
        assert_eq!(all.of_frame(&frame), Some(1));
        let mut datagram = vec![0; all.datagram_len(frame.len())];
        all.write(1, &mut datagram, |bytes| bytes.copy_from_slice(&frame));
        assert_eq!(datagram[8..], [&frame[..12], &frame[16..]].concat());
        assert_eq!(all.open(&datagram), Ok((1, 8)));
        let at = all.tag_frame(1, &mut datagram, 8).unwrap();
        assert_eq!(datagram[at..], tagged([0x81, 0, 0, 20], [8, 0]), "the priority is gone");
        let inner = [&frame[..12], &frame[16..]].concat();
        assert_eq!(all.tagged(1, &inner), datagram[at..]);
        assert_eq!((1..=4).map(|via| all.of_peer(via)).collect::<Vec<_>>(), [0, 1, 0, 1]);
    }

    #[test]
    fn frames_without_a_segment_and_with_two_tags_do_not_pass() {
        let all = table(&[segment(10010, 10), segment(10020, 20)]).unwrap();
        for (tag, kind) in [
            ([0x81, 0, 0, 30], [8, 0]),
            ([0x81, 0, 0, 0], [8, 0]),
            ([0x81, 0, 0, 20], [0x81, 0]),
            ([0x81, 0, 0, 20], [0x88, 0xa8]),
            ([0x88, 0xa8, 0, 20], [8, 0]),
            ([8, 0, 0, 20], [8, 0]),
        ] {
            assert_eq!(all.of_frame(&tagged(tag, kind)), None, "{tag:?}");
        }
        assert_eq!(all.of_frame(&tagged([0x81, 0, 0, 20], [8, 0])[..17]), None);
        let mut datagram = [&all.headers[0][..], &tagged([0x81, 0, 0, 5], [8, 0])].concat();
        assert_eq!(all.tag_frame(0, &mut datagram, 8), None);
        datagram[6] = 99;
        assert_eq!(all.open(&datagram), Err(DropReason::UnknownVni));
    }

    #[test]
    fn a_segment_without_a_vlan_has_the_tunnel_for_itself() {
        let plain = Segment { vlan: None, ..segment(7, 1) };
        let all = table(&[plain]).unwrap();
        let frame = tagged([0x81, 0, 0, 5], [0x81, 0]);
        assert_eq!((all.of_frame(&frame), all.datagram_len(100)), (Some(0), 108));
        let mut datagram = vec![0; all.datagram_len(frame.len())];
        all.write(0, &mut datagram, |bytes| bytes.copy_from_slice(&frame));
        assert_eq!(datagram[8..], frame);
        assert_eq!(all.tag_frame(0, &mut datagram, 8), Some(8));
        for wrong in [
            &[][..],
            &[plain, segment(8, 8)],
            &[segment(7, 1), segment(7, 2)],
            &[segment(7, 1), segment(8, 1)],
        ] {
            assert!(table(wrong).is_none(), "{wrong:?}");
        }
    }
}
