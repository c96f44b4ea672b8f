//! Requests of descriptors, carried out completely and checked independently.

use frame::checksum::{Sum, checksum, complete};
use frame::{Ipv4, Ipv6, Layers, Network, Offload, Protocol, Transport};
use nic::e1000::Chip;
use zerocopy::IntoBytes;

use super::bed::*;

const DEXT: u64 = 1 << 29;
const DATA: u64 = DEXT | 1 << 20;
const EOP: u64 = 1 << 24;
const TSE: u64 = 1 << 26;
const RS: u64 = 1 << 27;
const VLE: u64 = 1 << 30;
const IXSM: u64 = 1 << 40;
const TXSM: u64 = 2 << 40;

/// A TCP packet as a driver leaves it: with options, an odd payload, and a partial checksum. For
/// segmentation, the seed has no length, and the IP length is 0 (as in Linux's e1000).
fn tcp(v6: bool, payload: usize, seed_length: bool) -> Vec<u8> {
    let (source, to): ([u8; 16], [u8; 16]) = ([0xfe; 16], [0x20; 16]);
    let mut packet = frame(14, 0x55);
    packet.truncate(12);
    let len = (32 + payload) as u16;
    let addresses = if v6 {
        packet.extend([0x86, 0xdd]);
        let header = Ipv6::new(source.into(), to.into(), Protocol::TCP, len);
        packet.extend(header.as_bytes());
        [source, to].concat()
    } else {
        packet.extend([8, 0]);
        let header = Ipv4::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::TCP, len);
        packet.extend(header.as_bytes());
        vec![10, 0, 0, 1, 10, 0, 0, 2]
    };
    let transport = packet.len();
    packet.extend([0x12, 0x34, 0x56, 0x78, 0, 0, 0, 9, 0, 0, 0, 1, 8 << 4, 0x18, 1, 0, 0, 0, 0, 0]);
    packet.extend([1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    packet.extend((0..payload).map(|i| (i * 3) as u8));
    let counted = if seed_length { u32::from(len) } else { 0 };
    let seed = !Sum::new().with_pseudo_header(&addresses, Protocol::TCP, counted).checksum();
    packet[transport + 16..transport + 18].copy_from_slice(&seed.to_be_bytes());
    if !seed_length {
        let at = if v6 { 18 } else { 16 };
        packet[at..at + 2].fill(0);
        if !v6 {
            packet[24..26].fill(0);
        }
    }
    packet
}

fn context(bed: &mut Bed, v6: bool, tse: bool, payload: usize, mss: u64) {
    let (ip, transport) = (14u64, if v6 { 54u64 } else { 34 });
    let first = ip | (ip + 10) << 8 | (transport - 1) << 16;
    let first = first | transport << 32 | (transport + 16) << 40;
    let kind = 1 << 24 | u64::from(!v6) << 25 | if tse { TSE } else { 0 };
    let headers = transport + 32;
    bed.describe(first, DEXT | kind | payload as u64 | headers << 40 | mss << 48);
}

/// Puts a frame into buffers of these sizes, and the rest into one more.
fn data(bed: &mut Bed, frame: &[u8], cuts: &[usize], bits: u64) {
    let (mut rest, mut cuts) = (frame, cuts.iter());
    while !rest.is_empty() {
        let (piece, after) =
            rest.split_at(cuts.next().map_or(rest.len(), |cut| *cut.min(&rest.len())));
        rest = after;
        let at = bed.tx_buffer();
        bed.set_bytes(at, piece);
        let last = if rest.is_empty() { EOP | RS } else { 0 };
        bed.describe(at, DATA | bits | last | piece.len() as u64);
    }
}

/// The frames that a receiver without offloads gets.
fn carried_out((mut frame, mut offload): (Vec<u8>, Offload)) -> Vec<Vec<u8>> {
    offload.validate(&frame[..frame.len().min(128)], frame.len()).unwrap();
    let Some(segments) = offload.segments(&frame[..frame.len().min(128)], frame.len()) else {
        if offload.needs_checksum() {
            complete(&mut frame, offload.checksum_start, offload.checksum_offset);
        }
        return vec![frame];
    };
    let piece = |i| {
        let mut piece = frame[..segments.header_len()].to_vec();
        piece.extend(&frame[segments.payload(i)]);
        segments.write_headers(i, &mut piece);
        let left = offload.of_segment();
        complete(&mut piece, left.checksum_start, left.checksum_offset);
        piece
    };
    (0..segments.count()).map(piece).collect()
}

/// Checks a TCP packet's lengths and checksums. Returns its payload and sequence number.
fn check(frame: &[u8]) -> (Vec<u8>, u32) {
    let layers = Layers::of(frame).unwrap();
    let network = if layers.tag.is_some() { 18 } else { 14 };
    let (addresses, at) = match layers.network {
        Network::Ipv4(ip) => {
            assert_eq!(ip.total_len(), frame.len() - network);
            assert_eq!(checksum(&frame[network..network + 20]), 0);
            (ip.addresses().to_vec(), network + 20)
        }
        Network::Ipv6(ip) => (ip.addresses().to_vec(), network + 40),
        _ => panic!("{layers:?}"),
    };
    let body = &frame[at..];
    let sum =
        Sum::new().with_pseudo_header(&addresses, Protocol::TCP, body.len() as u32).with(body);
    assert_eq!(sum.checksum(), 0);
    assert!(matches!(layers.transport, Transport::Tcp(_)));
    (body[32..].to_vec(), u32::from_be_bytes(body[4..8].try_into().unwrap()))
}

fn bed() -> Bed {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start(64, 64);
    bed
}

#[test]
fn long_packets_become_segments() {
    for (v6, payload) in [(false, 20_001), (true, 20_001), (false, 60_000), (true, 1449)] {
        for cuts in [&[66usize, 4096, 4096][..], &[1, 2, 3, 100], &[]] {
            let mut bed = bed();
            let packet = tcp(v6, payload, false);
            context(&mut bed, v6, true, payload, 1448);
            let cuts: Vec<usize> =
                cuts.iter().copied().chain(std::iter::repeat_n(0x3f00, 20)).collect();
            data(&mut bed, &packet, &cuts, TSE | IXSM | TXSM);
            bed.doorbell();
            let mut frames = bed.gather();
            assert_eq!(frames.len(), 1);
            let segments = carried_out(frames.remove(0));
            assert_eq!(segments.len(), payload.div_ceil(1448));
            let mut got = Vec::new();
            for segment in &segments {
                let (payload, sequence) = check(segment);
                assert_eq!(sequence as usize, 9 + got.len());
                got.extend(payload);
            }
            assert_eq!(got, packet[packet.len() - payload..]);
            assert_eq!(bed.read(0x40f8), 1, "TSCTC");
            assert_eq!(bed.read(0x4080) as usize, segments.len(), "GPTC");
        }
    }
}

#[test]
fn the_long_packet_itself_is_right_for_receivers_that_take_it() {
    let mut bed = bed();
    context(&mut bed, false, true, 5000, 1448);
    data(&mut bed, &tcp(false, 5000, false), &[66], TSE | IXSM | TXSM);
    bed.doorbell();
    let (mut frame, offload) = bed.gather().remove(0);
    let want = Offload {
        flags: Offload::NEEDS_CHECKSUM,
        gso_type: Offload::GSO_TCP4,
        header_len: 66,
        gso_size: 1448,
        checksum_start: 34,
        checksum_offset: 16,
    };
    assert_eq!(offload, want);
    complete(&mut frame, 34, 16);
    assert_eq!(check(&frame).0.len(), 5000);
}

#[test]
fn there_are_two_contexts() {
    let mut bed = bed();
    context(&mut bed, true, false, 0, 0);
    context(&mut bed, false, true, 3000, 1448);
    data(&mut bed, &tcp(false, 3000, false), &[], TSE | IXSM | TXSM);
    data(&mut bed, &tcp(true, 77, true), &[54, 10], TXSM);
    data(&mut bed, &tcp(false, 2000, false), &[], TSE | IXSM | TXSM);
    bed.doorbell();
    let lens: Vec<usize> =
        bed.gather().into_iter().flat_map(carried_out).map(|frame| check(&frame).0.len()).collect();
    assert_eq!(lens, [1448, 1448, 104, 77, 1448, 552]);
}

#[test]
fn ip_headers_are_summed_up() {
    let mut bed = bed();
    context(&mut bed, false, false, 0, 0);
    let mut packet = tcp(false, 99, true);
    packet[24..26].fill(0);
    data(&mut bed, &packet, &[20, 5], TXSM | IXSM);
    bed.doorbell();
    let frames = carried_out(bed.gather().remove(0));
    assert_eq!(check(&frames[0]).0.len(), 99);
}

#[test]
fn tags_are_put_in() {
    let mut bed = bed();
    let tag = 0x2064 << 48;
    let plain = frame(100, 9);
    bed.write(reg::CTRL, bed.read(reg::CTRL) | 1 << 30);
    let at = bed.tx_buffer();
    bed.set_bytes(at, &plain);
    bed.describe(at, EOP_RS | VLE | tag | 100);
    context(&mut bed, false, true, 3000, 1448);
    data(&mut bed, &tcp(false, 3000, false), &[66], TSE | IXSM | TXSM | VLE | tag);
    bed.doorbell();
    let mut frames = bed.gather();
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0, 0x20, 0x64]);
    assert_eq!(frames.remove(0), (tagged, Offload::NONE));
    for segment in carried_out(frames.remove(0)) {
        check(&segment);
        assert_eq!(segment[12..16], [0x81, 0, 0x20, 0x64]);
    }
    bed.write(0x38, 0x88a8);
    let at = bed.tx_buffer();
    bed.set_bytes(at, &plain);
    bed.describe(at, EOP_RS | VLE | tag | 100);
    bed.doorbell();
    assert_eq!(bed.gather()[0].0[12..16], [0x88, 0xa8, 0x20, 0x64], "of the type in VET");
    bed.write(reg::CTRL, bed.read(reg::CTRL) & !(1 << 30));
    let at = bed.tx_buffer();
    bed.set_bytes(at, &plain);
    bed.describe(at, EOP_RS | VLE | tag | 100);
    bed.doorbell();
    assert_eq!(bed.gather()[0].0, plain, "not without CTRL.VME");
}

#[test]
fn tags_are_taken_off_and_filtered() {
    let mut bed = bed();
    let mut tagged = frame(100, 9);
    tagged.splice(12..12, [0x81, 0, 0x20, 0x64]);
    let _ = bed.deliver(&[tagged.clone()]);
    assert_eq!(bed.receive().unwrap(), (tagged.clone(), 7, 0));
    bed.write(reg::CTRL, bed.read(reg::CTRL) | 1 << 30);
    let _ = bed.deliver(&[tagged.clone(), frame(90, 1)]);
    assert_eq!(bed.receive().unwrap(), (frame(100, 9), 7 | 8, 0x2064));
    assert_eq!(bed.receive().unwrap(), (frame(90, 1), 7, 0));
    bed.write(reg::RCTL, RCTL_ON | 1 << 18);
    let _ = bed.deliver(&[tagged.clone()]);
    assert!(bed.receive().is_none());
    bed.write(reg::VFTA + 4 * 3, 1 << 4);
    let _ = bed.deliver(&[tagged]);
    assert_eq!(bed.receive().unwrap().2, 0x2064);
}

#[test]
fn old_checksums_are_of_what_follows_their_start() {
    let mut bed = bed();
    let packet = tcp(false, 333, true);
    let at = bed.tx_buffer();
    bed.set_bytes(at, &packet);
    bed.describe(at, EOP_RS | 1 << 26 | 50 << 16 | 34 << 40 | packet.len() as u64);
    bed.doorbell();
    let (frame, offload) = bed.gather().remove(0);
    assert_eq!(offload, Offload::NONE);
    assert_eq!(check(&frame).0.len(), 333);
}

#[test]
fn short_frames_are_padded_and_long_ones_spread() {
    for (bytes, rctl) in [(2048, 0u32), (1024, 1 << 16), (256, 3 << 16), (4096, 3 << 16 | 1 << 25)]
    {
        let mut bed = Bed::new(Chip::Em82540);
        bed.start_receive(64, RCTL_ON | rctl | 1 << 5);
        for len in [14, 59, 60, 61, bytes - 1, bytes, bytes + 1, 3 * bytes, 9000.min(16 * bytes)] {
            let sent = frame(len, len as u8);
            assert_eq!(bed.deliver(std::slice::from_ref(&sent)).0, 1);
            let (got, ..) = bed.receive().unwrap();
            assert_eq!(got.len(), len.max(60));
            assert_eq!(got[..len], sent);
            assert!(got[len..].iter().all(|byte| *byte == 0));
            assert!(bed.receive().is_none());
        }
    }
}

#[test]
fn check_sequences_are_counted_unless_they_are_stripped() {
    let mut bed = Bed::new(Chip::Em82540);
    bed.start_receive(8, RCTL_ON & !(1 << 26));
    let _ = bed.deliver(&[frame(100, 1), frame(1518, 1), frame(1519, 1)]);
    assert_eq!(bed.receive().unwrap().0[..100], frame(100, 1));
    assert_eq!(bed.receive().unwrap().0.len(), 1522);
    assert!(bed.receive().is_none(), "1,522 bytes are the most");
    assert_eq!(bed.read(0x40ac), 1);
}

#[test]
fn loopback_does_not_reach_the_switch() {
    let mut bed = bed();
    for on in [true, false] {
        if on {
            bed.write(reg::RCTL, RCTL_ON | 1 << 6);
        } else {
            bed.write(reg::RCTL, RCTL_ON);
            bed.write(reg::MDIC, 1 << 26 | 1 << 21 | 0x4140);
        }
        (0..3).for_each(|i| bed.put(&frame(100, i)));
        bed.doorbell();
        assert!(bed.gather().iter().all(|(frame, _)| frame.is_empty()));
        for i in 0..3 {
            assert_eq!(bed.receive().unwrap().0, frame(100, i));
        }
        assert_ne!(bed.read(reg::ICR) & RXT0, 0);
    }
}
