//! Tests segmentation and checksums against another implementation. smoltcp makes the frames,
//! `frame` cuts them, and smoltcp parses the results and verifies their checksums.

use toklat_frame as frame;

use frame::{MAX_SEGMENTS, Offload, OffloadError, OffloadSet, checksum, tcp_flags};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol,
    Ipv4Address, Ipv4Packet, Ipv4Repr, Ipv6Address, Ipv6Packet, Ipv6Repr, TcpControl, TcpPacket,
    TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp,
}

/// A packet to be made.
#[derive(Clone, Debug)]
struct Packet {
    v6: bool,
    kind: Kind,
    tags: usize,
    sequence: u32,
    id: u16,
    flags: u8,
    options: bool,
    payload: Vec<u8>,
}

impl Packet {
    fn addresses(&self) -> (IpAddress, IpAddress) {
        if self.v6 {
            let ip = |n| Ipv6Address::new(0x2001, 0xdb8, 0xffff, 0, 0, 7, 0, n);
            (ip(1).into(), ip(0xfffe).into())
        } else {
            (Ipv4Address::new(10, 255, 0, 1).into(), Ipv4Address::new(192, 168, 255, 254).into())
        }
    }

    fn network(&self) -> usize {
        14 + 4 * self.tags
    }

    fn transport(&self) -> usize {
        self.network() + if self.v6 { 40 } else { 20 }
    }

    fn ports(&self) -> (u16, u16) {
        (40_000, 443)
    }

    /// The packet's transport header and payload, with smoltcp's checksum.
    fn segment(&self) -> Vec<u8> {
        let (from, to) = self.addresses();
        let (src_port, dst_port) = self.ports();
        let all = ChecksumCapabilities::default();
        match self.kind {
            Kind::Udp => {
                let udp = UdpRepr { src_port, dst_port };
                let mut bytes = vec![0; udp.header_len() + self.payload.len()];
                let mut packet = UdpPacket::new_unchecked(&mut bytes[..]);
                let fill = |to: &mut [u8]| to.copy_from_slice(&self.payload);
                udp.emit(&mut packet, &from, &to, self.payload.len(), fill, &all);
                bytes
            }
            Kind::Tcp => {
                let tcp = TcpRepr {
                    src_port,
                    dst_port,
                    control: TcpControl::None,
                    seq_number: TcpSeqNumber(self.sequence.cast_signed()),
                    ack_number: Some(TcpSeqNumber(77)),
                    window_len: 1000,
                    window_scale: None,
                    max_seg_size: None,
                    sack_permitted: false,
                    sack_ranges: if self.options {
                        [Some((1, 2)), Some((3, 4)), None]
                    } else {
                        [None; 3]
                    },
                    timestamp: None,
                    payload: &self.payload,
                };
                let mut bytes = vec![0; tcp.buffer_len()];
                let mut packet = TcpPacket::new_unchecked(&mut bytes[..]);
                tcp.emit(&mut packet, &from, &to, &all);
                bytes[13] = self.flags;
                TcpPacket::new_unchecked(&mut bytes[..]).fill_checksum(&from, &to);
                bytes
            }
        }
    }

    fn protocol(&self) -> IpProtocol {
        match self.kind {
            Kind::Tcp => IpProtocol::Tcp,
            Kind::Udp => IpProtocol::Udp,
        }
    }

    /// The whole frame, with all checksums.
    fn frame(&self) -> Vec<u8> {
        let segment = self.segment();
        let mut bytes = vec![0; self.transport() + segment.len()];
        let ethernet = EthernetRepr {
            src_addr: EthernetAddress([2, 0, 0, 0, 0, 1]),
            dst_addr: EthernetAddress([2, 0, 0, 0, 0, 2]),
            ethertype: if self.v6 { EthernetProtocol::Ipv6 } else { EthernetProtocol::Ipv4 },
        };
        ethernet.emit(&mut EthernetFrame::new_unchecked(&mut bytes[..14]));
        let kind = [bytes[12], bytes[13]];
        for tag in 0..self.tags {
            bytes[12 + 4 * tag..16 + 4 * tag].copy_from_slice(&[0x81, 0, 0, 5]);
        }
        let network = self.network();
        bytes[network - 2..network].copy_from_slice(&kind);
        let (payload_len, hop_limit) = (segment.len(), 64);
        match self.addresses() {
            (IpAddress::Ipv4(src_addr), IpAddress::Ipv4(dst_addr)) => {
                let next_header = self.protocol();
                let ip = Ipv4Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
                let mut packet = Ipv4Packet::new_unchecked(&mut bytes[network..]);
                ip.emit(&mut packet, &ChecksumCapabilities::default());
                packet.set_ident(self.id);
                packet.fill_checksum();
            }
            (IpAddress::Ipv6(src_addr), IpAddress::Ipv6(dst_addr)) => {
                let next_header = self.protocol();
                let ip = Ipv6Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
                ip.emit(&mut Ipv6Packet::new_unchecked(&mut bytes[network..]));
            }
            _ => unreachable!(),
        }
        bytes[self.transport()..].copy_from_slice(&segment);
        bytes
    }

    fn checksum_offset(&self) -> u16 {
        if self.kind == Kind::Tcp { 16 } else { 6 }
    }

    /// The frame and its request, as a sender with offloads makes them.
    fn unfinished(&self, gso_size: u16) -> (Vec<u8>, Offload) {
        let mut bytes = self.frame();
        let (start, offset) = (self.transport(), self.checksum_offset());
        let at = start + usize::from(offset);
        let seed = self.pseudo_header_sum((bytes.len() - start) as u32);
        bytes[at..at + 2].copy_from_slice(&seed.to_be_bytes());
        let gso_type = match (gso_size, self.kind, self.v6) {
            (0, ..) => Offload::GSO_NONE,
            (_, Kind::Udp, _) => Offload::GSO_UDP,
            (_, _, false) => Offload::GSO_TCP4,
            (_, _, true) => Offload::GSO_TCP6,
        };
        let offload = Offload {
            flags: Offload::NEEDS_CHECKSUM,
            gso_type,
            gso_size,
            header_len: 0,
            checksum_start: start as u16,
            checksum_offset: offset,
        };
        (bytes, offload)
    }

    /// The literal algorithm of RFC 1071, over the pseudo header of RFC 8200 or RFC 768.
    fn pseudo_header_sum(&self, len: u32) -> u16 {
        let octets = |ip: IpAddress| match ip {
            IpAddress::Ipv4(ip) => ip.octets().to_vec(),
            IpAddress::Ipv6(ip) => ip.octets().to_vec(),
        };
        let (from, to) = self.addresses();
        let mut bytes = [octets(from), octets(to)].concat();
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&u32::from(u8::from(self.protocol())).to_be_bytes());
        let mut sum = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    /// Reads the IP packet in `frame` with smoltcp. Returns its identification and transport bytes.
    /// Panics if a length or checksum is wrong.
    fn read<'a>(&self, frame: &'a [u8]) -> (u16, &'a [u8]) {
        let (from, to) = self.addresses();
        let packet = &frame[self.network()..];
        let (id, rest) = if self.v6 {
            let ip = Ipv6Packet::new_checked(packet).unwrap();
            assert_eq!(ip.total_len(), packet.len());
            (0, ip.payload())
        } else {
            let ip = Ipv4Packet::new_checked(packet).unwrap();
            assert!(ip.verify_checksum(), "IPv4 header checksum");
            assert_eq!(usize::from(ip.total_len()), packet.len());
            (ip.ident(), ip.payload())
        };
        match self.kind {
            Kind::Tcp => assert!(TcpPacket::new_checked(rest).unwrap().verify_checksum(&from, &to)),
            Kind::Udp => {
                let udp = UdpPacket::new_checked(rest).unwrap();
                assert_eq!(usize::from(udp.len()), rest.len());
                assert!(udp.checksum() != 0 && udp.verify_checksum(&from, &to));
            }
        }
        (id, rest)
    }
}

/// Cuts the frame into segments, as an egress does.
fn cut(frame: &[u8], offload: &Offload) -> Vec<Vec<u8>> {
    let head = &frame[..frame.len().min(128)];
    let segments = offload.segments(head, frame.len()).expect("to be segmented");
    let pieces = (0..segments.count()).map(|i| {
        let mut piece = frame[..segments.header_len()].to_vec();
        piece.extend_from_slice(&frame[segments.payload(i)]);
        assert!(piece.len() <= segments.longest());
        segments.write_headers(i, &mut piece);
        let left = offload.of_segment();
        assert!(checksum::complete(&mut piece, left.checksum_start, left.checksum_offset));
        piece
    });
    pieces.collect()
}

fn packet() -> impl Strategy<Value = Packet> {
    let payload = (1usize..20_000, any::<u64>()).prop_map(|(len, seed)| {
        (0..len as u64).map(|i| (i.wrapping_mul(seed | 1) >> 13) as u8).collect::<Vec<u8>>()
    });
    let kind = prop_oneof![Just(Kind::Tcp), Just(Kind::Udp)];
    let numbers = (any::<u32>(), any::<u16>(), any::<u8>());
    (any::<bool>(), kind, 0usize..3, numbers, any::<bool>(), payload).prop_map(
        |(v6, kind, tags, (sequence, id, flags), options, payload)| Packet {
            v6,
            kind,
            tags,
            sequence,
            id,
            flags,
            options,
            payload,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn segments_are_what_a_stack_would_have_sent(packet in packet(), size in 20u16..2000) {
        let (frame, mut offload) = packet.unfinished(size);
        let longest = offload.validate(&frame[..frame.len().min(128)], frame.len()).unwrap();
        if packet.payload.len() <= usize::from(size) {
            prop_assert!(!offload.is_segmented(), "one segment needs a checksum only");
            return Ok(());
        }
        let pieces = cut(&frame, &offload);
        prop_assert_eq!(pieces.iter().map(Vec::len).max(), Some(longest));
        prop_assert_eq!(pieces.len(), packet.payload.len().div_ceil(size.into()));
        let mut payload = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            let (id, rest) = packet.read(piece);
            prop_assert_eq!(&piece[..packet.network()], &frame[..packet.network()]);
            if !packet.v6 {
                prop_assert_eq!(id, packet.id.wrapping_add(i as u16));
            }
            match packet.kind {
                Kind::Udp => payload.extend_from_slice(UdpPacket::new_checked(rest).unwrap().payload()),
                Kind::Tcp => {
                    let tcp = TcpPacket::new_checked(rest).unwrap();
                    let sequence = packet.sequence.wrapping_add(payload.len() as u32);
                    prop_assert_eq!(tcp.seq_number().0.cast_unsigned(), sequence);
                    let mut flags = packet.flags;
                    if i > 0 { flags &= !tcp_flags::CWR; }
                    if i + 1 < pieces.len() { flags &= !(tcp_flags::FIN | tcp_flags::PSH); }
                    prop_assert_eq!(rest[13], flags);
                    payload.extend_from_slice(tcp.payload());
                }
            }
        }
        prop_assert_eq!(payload, packet.payload);
    }

    #[test]
    fn completed_checksums_are_the_right_ones(packet in packet()) {
        let (mut frame, mut offload) = packet.unfinished(0);
        prop_assert_eq!(offload.validate(&frame[..frame.len().min(128)], frame.len()), Ok(frame.len()));
        prop_assert!(checksum::complete(&mut frame, offload.checksum_start, offload.checksum_offset));
        packet.read(&frame);
        let right = packet.frame();
        prop_assert_eq!(frame, right);
    }

    #[test]
    fn any_request_over_any_bytes_is_refused_or_can_be_met(
        packet in packet(),
        noise in proptest::collection::vec((0usize..100, any::<u8>()), 0..4),
        header in any::<[u8; frame::OFFLOAD_HEADER]>(),
        keep in any::<bool>(),
        cut_at in 0usize..400,
    ) {
        let (mut frame, mut offload) = packet.unfinished(500);
        for (at, byte) in noise {
            let at = at % frame.len();
            frame[at] = byte;
        }
        frame.truncate(cut_at.max(14));
        if !keep {
            offload = Offload::from_header(&header);
            prop_assert_eq!(offload.header(), header);
        }
        let head = frame[..frame.len().min(128)].to_vec();
        let Ok(longest) = offload.validate(&head, frame.len()) else { return Ok(()) };
        prop_assert!(longest <= frame.len());
        let mut again = offload;
        prop_assert_eq!(again.validate(&head, frame.len()), Ok(longest));
        prop_assert_eq!(again, offload, "the simplest form stays");
        if offload.is_segmented() {
            let pieces = cut(&frame, &offload);
            prop_assert!(pieces.len() <= MAX_SEGMENTS);
            prop_assert!(pieces.iter().all(|piece| piece.len() <= longest));
        } else if offload.needs_checksum() {
            let before = frame.clone();
            prop_assert!(checksum::complete(&mut frame, offload.checksum_start, offload.checksum_offset));
            prop_assert_eq!(&before[..14], &frame[..14], "addresses and type were judged");
        }
    }
}

fn tcp4(len: usize) -> Packet {
    Packet {
        v6: false,
        kind: Kind::Tcp,
        tags: 0,
        sequence: 1,
        id: 1,
        flags: tcp_flags::ACK,
        options: false,
        payload: vec![7; len],
    }
}

/// Changes `tcp4(3000)` by `change`, and validates the request.
fn judged(change: impl FnOnce(&mut Vec<u8>, &mut Offload)) -> Result<usize, OffloadError> {
    let (mut frame, mut offload) = tcp4(3000).unfinished(1000);
    change(&mut frame, &mut offload);
    let len = frame.len();
    offload.validate(&frame[..128], len)
}

#[test]
fn requests_that_lie_are_refused_by_name() {
    assert_eq!(judged(|_, _| ()), Ok(1054));
    assert_eq!(judged(|_, o| o.gso_size = 0), Err(OffloadError::Size));
    assert_eq!(judged(|_, o| o.gso_size = 2), Err(OffloadError::Length));
    for kind in [2, 3, 6, 0x80, 0x83, 0x85] {
        assert_eq!(judged(|_, o| o.gso_type = kind), Err(OffloadError::Kind), "{kind:#x}");
    }
    assert_eq!(judged(|_, o| o.gso_type = Offload::GSO_TCP6), Err(OffloadError::Headers));
    assert_eq!(judged(|_, o| o.gso_type = Offload::GSO_UDP), Err(OffloadError::Headers));
    assert_eq!(judged(|_, o| o.flags = 0), Err(OffloadError::Checksum));
    assert_eq!(judged(|_, o| o.checksum_start += 1), Err(OffloadError::Checksum));
    assert_eq!(judged(|_, o| o.checksum_offset = 6), Err(OffloadError::Checksum));
    assert_eq!(judged(|f, _| f[20] = 0x20), Err(OffloadError::Headers), "a fragment");
    assert_eq!(judged(|f, _| f[46] = 0x40), Err(OffloadError::Headers), "offset below 5");
    assert_eq!(judged(|f, _| f.truncate(128)), Ok(128), "one segment");
}

#[test]
fn no_checksum_lands_in_a_header_that_was_judged() {
    let plain = |start: u16, offset: u16, tags: usize| {
        let (frame, offload) = Packet { tags, ..tcp4(100) }.unfinished(0);
        let mut offload = Offload { checksum_start: start, checksum_offset: offset, ..offload };
        offload.validate(&frame[..128], frame.len()).is_ok()
    };
    assert!(plain(34, 16, 0) && plain(38, 16, 1) && plain(42, 16, 2));
    // The checksum would lie in the addresses, the tag, the IP header or the ports.
    for (start, offset, tags) in
        [(0, 0, 0), (14, 0, 1), (14, 2, 0), (18, 4, 1), (30, 16, 0), (34, 0, 0)]
    {
        assert!(!plain(start, offset, tags), "{start} + {offset}");
    }
    assert!(!plain(34, 16, 1), "as if the tag were not there");
    assert!(plain(60, 30, 0), "a packet in a tunnel");
    assert!(!plain(150, 16, 0) && !plain(u16::MAX, u16::MAX, 0), "beyond the end");
}

#[test]
fn a_receiver_takes_what_it_said() {
    let of = |gso_type| Offload { flags: Offload::NEEDS_CHECKSUM, gso_type, ..Offload::NONE };
    let kinds = [
        0,
        Offload::GSO_TCP4,
        Offload::GSO_TCP6,
        Offload::GSO_TCP4 | Offload::GSO_ECN,
        Offload::GSO_UDP,
    ];
    let taken = |set: OffloadSet| kinds.map(|kind| set.takes(&of(kind)));
    assert_eq!(taken(OffloadSet::NONE), [false; 5]);
    assert_eq!(taken(OffloadSet::ALL), [true; 5]);
    let checksum = OffloadSet { checksum: true, ..OffloadSet::NONE };
    assert_eq!(taken(checksum), [true, false, false, false, false]);
    assert_eq!(taken(OffloadSet { tso4: true, ..checksum }), [true, true, false, false, false]);
    assert_eq!(taken(OffloadSet { checksum: false, ..OffloadSet::ALL }), [false; 5]);
    assert!(OffloadSet::NONE.takes(&Offload { flags: Offload::DATA_VALID, ..Offload::NONE }));
}

#[test]
fn requests_move_with_a_tag() {
    let (frame, mut offload) = tcp4(3000).unfinished(1000);
    offload.validate(&frame[..128], frame.len()).unwrap();
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let mut moved = offload.shifted(4);
    let expected = moved;
    assert_eq!(moved.validate(&tagged[..128], tagged.len()), Ok(1058));
    assert_eq!(moved, expected);
    assert_eq!(moved.shifted(-4), offload);
    assert_eq!(Offload::NONE.shifted(-4), Offload::NONE);
}
