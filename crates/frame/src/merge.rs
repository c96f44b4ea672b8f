//! Receive coalescing: consecutive TCP segments become one long frame with an offload request
//! (GRO).
//!
//! It is the reverse of [`Segments`](crate::Segments), which restores the original segments. Only
//! IPv4 identifications of unfragmented packets may differ, which are meaningless (RFC 6864, 4.1).
//! Checksums are verified first: a segment with a wrong checksum is not merged and stays wrong.

use core::ops::Range;

use crate::checksum::{Sum, update};
use crate::transport::tcp_flags;
use crate::{
    ETHERNET_HEADER, EtherType, Ethernet, Ipv4, Ipv6, MAX_HEADERS, Offload, Protocol, Tcp,
};

/// The layout of a TCP segment without VLAN tags, IP options and extension headers.
#[derive(Clone, Copy, Debug)]
struct Layout {
    v6: bool,
    transport: usize,
    /// Bytes of all headers: where the payload begins.
    headers: usize,
}

impl Layout {
    /// The layout of a segment with payload, consistent lengths and a correct checksum.
    fn of(frame: &[u8]) -> Option<Self> {
        let (ethernet, packet) = Ethernet::parse(frame)?;
        let (v6, network, len) = match ethernet.ethertype() {
            EtherType::IPV4 => {
                let (header, _) = Ipv4::parse(packet)?;
                let plain = header.header_len() == Ipv4::LEN && !header.is_fragment();
                if !plain || header.protocol() != Protocol::TCP {
                    return None;
                }
                (false, Ipv4::LEN, header.total_len())
            }
            EtherType::IPV6 => {
                let (header, _) = Ipv6::parse(packet)?;
                if header.next_header() != Protocol::TCP {
                    return None;
                }
                (true, Ipv6::LEN, Ipv6::LEN + header.payload_len())
            }
            _ => return None,
        };
        if len != packet.len() || (!v6 && !Ipv4::checksum_ok(packet)) {
            return None;
        }
        let segment = packet.get(network..)?;
        let (header, payload) = Tcp::parse(segment)?;
        let transport = ETHERNET_HEADER + network;
        let headers = transport + header.header_len();
        let this = Self { v6, transport, headers };
        let good = !payload.is_empty() && headers <= MAX_HEADERS && {
            let len = u32::try_from(segment.len()).ok()?;
            this.pseudo(frame, len).with(segment).checksum() == 0
        };
        good.then_some(this)
    }

    /// The sum of the pseudo header of a segment of `len` bytes.
    fn pseudo(&self, frame: &[u8], len: u32) -> Sum {
        let addresses = if self.v6 { 32 } else { 8 };
        let addresses = &frame[self.transport - addresses..self.transport];
        Sum::new().with_pseudo_header(addresses, Protocol::TCP, len)
    }

    fn sequence(&self, frame: &[u8]) -> u32 {
        let at = self.transport + 4;
        u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
    }

    fn flags(&self, frame: &[u8]) -> u8 {
        frame[self.transport + 13]
    }

    /// True if two segments of this layout have the same headers, apart from fields that differ
    /// within a flow.
    fn is_alike(&self, a: &[u8], b: &[u8]) -> bool {
        let same = |range: Range<usize>| a[range.clone()] == b[range];
        let (ip, tcp) = (ETHERNET_HEADER, self.transport);
        let network = match self.v6 {
            // Version, class, flow; next header, hop limit; addresses.
            true => same(ip..ip + 4) && same(ip + 6..tcp),
            // Version, service; flags, time to live, protocol; addresses.
            false => same(ip..ip + 2) && same(ip + 6..ip + 10) && same(ip + 12..tcp),
        };
        // Ports; acknowledgment and header length; window; urgent pointer and options.
        let transport = same(tcp..tcp + 4)
            && same(tcp + 8..tcp + 13)
            && same(tcp + 14..tcp + 16)
            && same(tcp + 18..self.headers);
        same(0..ip) && network && transport
    }

    /// The IPv4 identification, if it is significant: the packet may be fragmented.
    fn id(&self, frame: &[u8]) -> Option<u16> {
        const DONT_FRAGMENT: u8 = 0x40;
        let counts = !self.v6 && frame[ETHERNET_HEADER + 6] & DONT_FRAGMENT == 0;
        counts.then(|| u16::from_be_bytes([frame[ETHERNET_HEADER + 4], frame[ETHERNET_HEADER + 5]]))
    }
}

/// Consecutive segments of a flow. All but the last have the same length.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    layout: Layout,
    /// Payload bytes of each segment but the last.
    size: usize,
    /// Payload bytes.
    payload: usize,
    segments: u16,
    sequence: u32,
    /// The flags of all segments.
    flags: u8,
    open: bool,
}

impl Run {
    /// Begins a run with one segment; `None` for frames that no other can follow.
    #[must_use]
    pub fn begin(frame: &[u8]) -> Option<Self> {
        let layout = Layout::of(frame)?;
        let flags = layout.flags(frame);
        if flags & !tcp_flags::PSH != tcp_flags::ACK {
            return None;
        }
        let payload = frame.len() - layout.headers;
        let sequence = layout.sequence(frame);
        let open = flags & tcp_flags::PSH == 0;
        Some(Self { layout, size: payload, payload, segments: 1, sequence, flags, open })
    }

    /// Adds the next segment. `first` is the run's first frame. Returns where the segment's payload
    /// is. If the segment does not follow, returns `None` and leaves the run unchanged.
    pub fn push(&mut self, first: &[u8], frame: &[u8]) -> Option<Range<usize>> {
        let Layout { transport, headers, .. } = self.layout;
        let payload =
            frame.len().checked_sub(headers).filter(|len| (1..=self.size).contains(len))?;
        // The cheap checks come first.
        let expected = self.sequence.wrapping_add(u32::try_from(self.payload).ok()?);
        let fits = headers - ETHERNET_HEADER + self.payload + payload <= usize::from(u16::MAX);
        if !self.open || !fits || self.layout.sequence(frame) != expected {
            return None;
        }
        let flags = self.layout.flags(frame);
        let follows = flags & !tcp_flags::PSH == tcp_flags::ACK
            && self.layout.is_alike(first, frame)
            && self.layout.id(first).map(|id| id.wrapping_add(self.segments))
                == self.layout.id(frame);
        let layout = Layout::of(frame).filter(|_| follows)?;
        if (layout.transport, layout.headers) != (transport, headers) {
            return None;
        }
        self.open = payload == self.size && flags & tcp_flags::PSH == 0;
        self.flags |= flags;
        self.payload += payload;
        self.segments += 1;
        Some(headers..frame.len())
    }

    /// How many segments the run has.
    #[must_use]
    pub const fn segments(&self) -> u16 {
        self.segments
    }

    /// Bytes of the merged frame.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.layout.headers + self.payload
    }

    /// True if the run has no bytes, which does not occur.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Turns the first frame's headers into those of the merged frame, and returns its offload
    /// request. A single segment stays unchanged, and requests nothing.
    #[must_use]
    pub fn finish(&self, first: &mut [u8]) -> Offload {
        let Layout { v6, transport, headers } = self.layout;
        if self.segments < 2 {
            return Offload::NONE;
        }
        let len = (self.len() - transport) as u16;
        if v6 {
            let at = ETHERNET_HEADER + 4;
            first[at..at + 2].copy_from_slice(&len.to_be_bytes());
        } else {
            let word = |at: usize| u16::from_be_bytes([first[at], first[at + 1]]);
            let (old, sum) = (word(ETHERNET_HEADER + 2), word(ETHERNET_HEADER + 10));
            let total = len + Ipv4::LEN as u16;
            let sum = update(sum, old, total);
            first[ETHERNET_HEADER + 2..][..2].copy_from_slice(&total.to_be_bytes());
            first[ETHERNET_HEADER + 10..][..2].copy_from_slice(&sum.to_be_bytes());
        }
        first[transport + 13] = self.flags;
        let pseudo = !self.layout.pseudo(first, u32::from(len)).checksum();
        first[transport + 16..][..2].copy_from_slice(&pseudo.to_be_bytes());
        Offload {
            flags: Offload::NEEDS_CHECKSUM,
            gso_type: if v6 { Offload::GSO_TCP6 } else { Offload::GSO_TCP4 },
            header_len: headers as u16,
            gso_size: self.size as u16,
            checksum_start: transport as u16,
            checksum_offset: 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;

    const MSS: usize = 100;

    /// A long frame with a request, as a guest sends it.
    fn long(v6: bool, payload: usize, flags: u8) -> (Vec<u8>, Offload) {
        let mut frame = vec![2; 12];
        let tcp = 32;
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(((tcp + payload) as u16).to_be_bytes());
            frame.extend([6, 64]);
            frame.extend([0xfd; 32]);
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend(((20 + tcp + payload) as u16).to_be_bytes());
            frame.extend([0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = checksum::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let transport = frame.len();
        frame.extend([0x12, 0x34, 0, 80, 0xff, 0xff, 0xff, 0x80, 0, 0, 0, 9, 0x80, flags, 1, 0]);
        frame.extend([0; 4]);
        frame.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        let layout = Layout { v6, transport, headers: transport + tcp };
        let sum = !layout.pseudo(&frame, (tcp + payload) as u32).checksum();
        frame[transport + 16..][..2].copy_from_slice(&sum.to_be_bytes());
        frame.extend((0..payload).map(|i| i as u8));
        let request = Offload {
            flags: Offload::NEEDS_CHECKSUM,
            gso_type: if v6 { Offload::GSO_TCP6 } else { Offload::GSO_TCP4 },
            header_len: (transport + tcp) as u16,
            gso_size: MSS as u16,
            checksum_start: transport as u16,
            checksum_offset: 16,
        };
        (frame, request)
    }

    /// The segments of a long frame.
    fn cut(frame: &[u8], request: &Offload) -> Vec<Vec<u8>> {
        let segments = request.segments(frame, frame.len()).unwrap();
        let piece = |i| {
            let mut piece = frame[..segments.header_len()].to_vec();
            piece.extend_from_slice(&frame[segments.payload(i)]);
            segments.write_headers(i, &mut piece);
            let left = request.of_segment();
            checksum::complete(&mut piece, left.checksum_start, left.checksum_offset);
            piece
        };
        (0..segments.count()).map(piece).collect()
    }

    /// Merges frames from the front. Returns the merged frame, its request, and how many frames it
    /// replaces.
    fn merge(frames: &[Vec<u8>]) -> Option<(Vec<u8>, Offload, usize)> {
        let mut run = Run::begin(&frames[0])?;
        let mut whole = frames[0].clone();
        for frame in &frames[1..] {
            let Some(payload) = run.push(&frames[0], frame) else { break };
            whole.extend_from_slice(&frame[payload]);
        }
        assert_eq!(run.len(), whole.len());
        let count = usize::from(run.segments());
        let request = run.finish(&mut whole);
        Some((whole, request, count))
    }

    #[test]
    fn what_was_cut_is_merged_again() {
        for v6 in [false, true] {
            for (payload, flags) in [(1000, 0x10), (999, 0x18), (101, 0x10), (30_000, 0x18)] {
                let (frame, request) = long(v6, payload, flags);
                let pieces = cut(&frame, &request);
                let (whole, asked, count) = merge(&pieces).unwrap();
                assert_eq!(count, pieces.len(), "{v6} {payload}");
                assert!(whole == frame && asked == request, "{v6} {payload}");
                let mut checked = asked;
                assert_eq!(checked.validate(&whole, whole.len()).map(|_| checked), Ok(request));
            }
        }
    }

    #[test]
    fn what_does_not_follow_ends_a_run() {
        let (frame, request) = long(false, 1000, 0x10);
        let pieces = cut(&frame, &request);
        let fix = |mut frame: Vec<u8>| {
            frame[24..26].fill(0);
            let sum = checksum::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            frame[50..52].fill(0);
            let segment = (frame.len() - 34) as u32;
            let sum = Sum::new().with_pseudo_header(&frame[26..34], Protocol::TCP, segment);
            let sum = sum.with(&frame[34..]).checksum();
            frame[50..52].copy_from_slice(&sum.to_be_bytes());
            frame
        };
        assert_eq!(merge(&[pieces[0].clone(), fix(pieces[1].clone())]).unwrap().2, 2);
        // Changes any header byte that is no sequence number, length or checksum; then a checksum.
        for at in (0..12).chain([15, 20, 22, 26, 30, 34, 37, 41, 43, 46, 47, 49, 53, 57, 65]) {
            let mut other = pieces[1].clone();
            other[at] ^= 1;
            assert_eq!(merge(&[pieces[0].clone(), fix(other)]).unwrap().2, 1, "byte {at}");
        }
        let mut wrong = pieces[1].clone();
        wrong[80] ^= 1;
        assert_eq!(merge(&[pieces[0].clone(), wrong]).unwrap().2, 1);
        assert_eq!(merge(&[pieces[1].clone(), pieces[0].clone()]).unwrap().2, 1);
        assert_eq!(merge(&[pieces[0].clone(), pieces[2].clone()]).unwrap().2, 1);
    }

    #[test]
    fn frames_that_none_can_follow_are_no_run() {
        // In a split frame, only the last segment has FIN, and only the first has CWR.
        for (flags, expected) in [
            (0x11, true),
            (0x90, true),
            (0x12, false),
            (0x14, false),
            (0x30, false),
            (0x50, false),
            (0, false),
        ] {
            let (frame, request) = long(false, 300, flags);
            assert_eq!(Run::begin(&cut(&frame, &request)[1]).is_some(), expected, "{flags:#x}");
        }
        let (frame, _) = long(true, 50, 0x10);
        for len in 0..frame.len() {
            assert!(Run::begin(&frame[..len]).is_none(), "{len}");
        }
    }

    #[test]
    fn a_run_is_no_longer_than_an_ip_packet() {
        let (frame, request) = long(false, 60_000, 0x10);
        let mut pieces = cut(&frame, &request);
        let next = |frame: &mut Vec<u8>| {
            // Moves the sequence number 60,000 bytes on.
            let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
            let old = frame[38..42].to_vec();
            let new = sequence.wrapping_add(60_000).to_be_bytes();
            frame[38..42].copy_from_slice(&new);
            let sum = u16::from_be_bytes([frame[50], frame[51]]);
            let sum = checksum::update_bytes(sum, &old, &new);
            frame[50..52].copy_from_slice(&sum.to_be_bytes());
        };
        let mut more = pieces.clone();
        more.iter_mut().for_each(next);
        pieces.extend(more);
        let (whole, _, count) = merge(&pieces).unwrap();
        assert!(whole.len() <= 14 + 65_535 && count > 600, "{count}");
    }
}
