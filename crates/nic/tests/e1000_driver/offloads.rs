//! Checksums, segments and tags: the receiver gets what the driver requested.

use driver::e1000::{Config, Interrupts, Request};
use frame::{Offload, checksum};
use nic::e1000::Chip;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, Ipv4Packet, Ipv4Repr, Ipv6Packet, TcpPacket, TcpRepr, UdpPacket,
};

use crate::bench::{Bench, CHIPS, Seen, mac};

const SRC: [u8; 4] = [10, 1, 2, 3];
const DST: [u8; 4] = [10, 1, 2, 4];
const MSS: usize = 1460;

fn polled(chip: Chip) -> Config {
    Config { interrupts: Interrupts::None, ..Config::stock(chip) }
}

/// The sum of the pseudo header, folded and not inverted.
fn pseudo(protocol: u8, len: u16) -> u16 {
    let words = SRC.chunks(2).chain(DST.chunks(2)).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum: u32 = words.sum::<u32>() + u32::from(protocol) + u32::from(len);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A frame as a stack hands it to a driver: headers without checksums, except for the pseudo
/// header's sum. With `segments`, as Linux does for e1000 NICs: no IP length, and no length in the
/// pseudo header.
fn ipv4(tcp: bool, payload: &[u8], segments: bool) -> Vec<u8> {
    let (protocol, header, field) = if tcp { (6, 20, 16) } else { (17, 8, 6) };
    let len = (header + payload.len()) as u16;
    let mut frame = mac().octets().to_vec();
    frame.extend([2, 0, 0, 0, 0, 9, 0x08, 0x00]);
    let total = if segments { 0 } else { 20 + len };
    let [t0, t1] = total.to_be_bytes();
    frame.extend([0x45, 0, t0, t1, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(SRC.iter().chain(&DST));
    let mut transport = vec![0; header];
    transport[..4].copy_from_slice(&[0x04, 0xd2, 0x16, 0x2e]);
    if tcp {
        transport[4..8].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
        transport[8..12].copy_from_slice(&77u32.to_be_bytes());
        // PSH, ACK and FIN.
        transport[12..16].copy_from_slice(&[0x50, 0x19, 0x20, 0]);
    } else {
        transport[4..6].copy_from_slice(&len.to_be_bytes());
    }
    let seed = pseudo(protocol, if segments { 0 } else { len });
    transport[field..field + 2].copy_from_slice(&seed.to_be_bytes());
    frame.extend(transport);
    frame.extend(payload);
    frame
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 253) as u8).collect()
}

/// The frames on the wire: the switch's own code completes checksums and cuts segments.
fn on_the_wire(seen: &Seen) -> Vec<Vec<u8>> {
    let (bytes, mut offload) = (&seen.bytes, seen.offload);
    offload.validate(&bytes[..bytes.len().min(128)], bytes.len()).expect("a good request");
    match offload.segments(&bytes[..bytes.len().min(128)], bytes.len()) {
        Some(segments) => (0..segments.count())
            .map(|i| {
                let mut frame = bytes[..segments.header_len()].to_vec();
                frame.extend(&bytes[segments.payload(i)]);
                segments.write_headers(i, &mut frame);
                assert!(checksum::complete(
                    &mut frame,
                    offload.checksum_start,
                    offload.checksum_offset
                ));
                frame
            })
            .collect(),
        None => {
            let mut frame = bytes.clone();
            if offload.needs_checksum() {
                let (start, offset) = (offload.checksum_start, offload.checksum_offset);
                assert!(checksum::complete(&mut frame, start, offset));
            }
            vec![frame]
        }
    }
}

/// The payload of a TCP frame, which an independent stack accepts, and its fields.
fn tcp_of(frame: &[u8]) -> (Ipv4Repr, u32, bool, Vec<u8>) {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
    let sums = ChecksumCapabilities::default();
    let ip_repr = Ipv4Repr::parse(&ip, &sums).expect("a good IP header");
    let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
    let repr = TcpRepr::parse(&tcp, &ip.src_addr().into(), &ip.dst_addr().into(), &sums);
    repr.expect("a good TCP checksum");
    (ip_repr, tcp.seq_number().0 as u32, tcp.fin(), tcp.payload().to_vec())
}

#[test]
fn checksums_are_completed() {
    for chip in CHIPS {
        let mut bench = Bench::new(polled(chip));
        for len in [1, 18, 63, 100, 999, 1400] {
            for tcp in [true, false] {
                let frame = ipv4(tcp, &payload(len), false);
                assert!(bench.driver.send(&frame, &Request::checksum(tcp)));
                bench.driver.flush();
                let seen = bench.gather();
                assert_eq!(seen.len(), 1, "{chip:?}");
                assert!(seen[0].offload.needs_checksum(), "it is left to the receiver");
                let wire = on_the_wire(&seen[0]);
                if tcp {
                    assert_eq!(tcp_of(&wire[0]).3, payload(len), "{chip:?}");
                } else {
                    let ethernet = EthernetFrame::new_checked(&wire[0][..]).unwrap();
                    let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
                    assert!(ip.verify_checksum(), "{chip:?}");
                    let udp = UdpPacket::new_checked(ip.payload()).unwrap();
                    let addresses = (ip.src_addr().into(), ip.dst_addr().into());
                    assert!(udp.verify_checksum(&addresses.0, &addresses.1), "{chip:?}");
                    assert_eq!(udp.payload(), payload(len));
                }
                bench.driver.reclaim();
            }
        }
    }
}

#[test]
fn segments_are_what_a_stack_would_have_sent() {
    for chip in CHIPS {
        let mut bench = Bench::new(polled(chip));
        for len in [1, MSS - 1, MSS, MSS + 1, 3 * MSS, 10 * MSS + 7, 60_000] {
            let frame = ipv4(true, &payload(len), true);
            assert!(bench.driver.send(&frame, &Request::segments(MSS as u16)), "{chip:?} {len}");
            bench.driver.flush();
            let seen = bench.gather();
            assert_eq!(seen.len(), 1, "{chip:?} {len}");
            assert_eq!(seen[0].offload.is_segmented(), len > MSS, "{chip:?} {len}: left to others");
            let (mut whole, mut sequence) = (Vec::new(), 0xffff_ff00u32);
            let wire = on_the_wire(&seen[0]);
            assert_eq!(wire.len(), len.div_ceil(MSS));
            for (i, frame) in wire.iter().enumerate() {
                let (_, found, fin, bytes) = tcp_of(frame);
                assert_eq!(found, sequence, "{chip:?} {len} segment {i}");
                assert_eq!(fin, i + 1 == wire.len());
                assert_eq!(u16::from_be_bytes([frame[18], frame[19]]), 0x1234 + i as u16, "IP id");
                sequence = sequence.wrapping_add(bytes.len() as u32);
                whole.extend(bytes);
            }
            assert_eq!(whole, payload(len), "{chip:?} {len}");
            assert_eq!(bench.driver.reclaim(), 1);
        }
    }
}

/// A TCP frame over IPv6, like those of [`ipv4`].
fn ipv6(payload: &[u8], segments: bool) -> Vec<u8> {
    let len = (20 + payload.len()) as u16;
    let addresses =
        [&[0xfd, 0, 0, 1][..], &[0; 11], &[1], &[0xfd, 0, 0, 1], &[0; 11], &[2]].concat();
    let mut frame = mac().octets().to_vec();
    frame.extend([2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(if segments { 0 } else { len }.to_be_bytes());
    frame.extend([6, 64]);
    frame.extend(&addresses);
    let mut sum: u32 =
        addresses.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>() + 6;
    sum += if segments { 0 } else { u32::from(len) };
    let seed = (sum & 0xffff) + (sum >> 16);
    let mut tcp = [0; 20];
    tcp[..4].copy_from_slice(&[0x04, 0xd2, 0x16, 0x2e]);
    tcp[12..16].copy_from_slice(&[0x50, 0x18, 0x20, 0]);
    tcp[16..18].copy_from_slice(&(((seed & 0xffff) + (seed >> 16)) as u16).to_be_bytes());
    frame.extend(tcp);
    frame.extend(payload);
    frame
}

#[test]
fn ipv6_is_checksummed_and_cut_as_ipv4_is() {
    let sum = Request {
        ip: 14,
        transport: 54,
        tcp: true,
        transport_checksum: true,
        ..Request::default()
    };
    let cut = Request { mss: 1440, headers: 74, ..sum };
    for chip in CHIPS {
        let mut bench = Bench::new(polled(chip));
        for (request, len) in [(sum, 700), (cut, 1440), (cut, 1441), (cut, 50_000)] {
            let frame = ipv6(&payload(len), request.mss != 0);
            assert!(bench.driver.send(&frame, &request));
            bench.driver.flush();
            let seen = bench.gather();
            assert_eq!(seen.len(), 1, "{chip:?} {len}");
            let mut whole: Vec<u8> = Vec::new();
            for frame in on_the_wire(&seen[0]) {
                let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
                let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
                let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
                let addresses = (ip.src_addr().into(), ip.dst_addr().into());
                assert!(tcp.verify_checksum(&addresses.0, &addresses.1), "{chip:?} {len}");
                assert_eq!(tcp.seq_number().0 as usize, whole.len(), "{chip:?} {len}");
                whole.extend(tcp.payload());
            }
            assert_eq!(whole, payload(len), "{chip:?}");
            assert_eq!(bench.driver.reclaim(), 1);
        }
    }
}

/// Two contexts, one for checksums and one for segments, with frames without a request in between.
/// Neither context replaces the other.
#[test]
fn contexts_are_kept_apart() {
    for chip in CHIPS {
        let mut bench = Bench::new(polled(chip));
        for round in 0..8 {
            let (sum, long) = (ipv4(false, &payload(200), false), ipv4(true, &payload(4000), true));
            let plain = crate::bench::pattern(70, round);
            let room = bench.driver.room();
            assert!(bench.driver.send(&sum, &Request::checksum(false)));
            assert!(bench.driver.send(&plain, &Request::default()));
            assert!(bench.driver.send(&long, &Request::segments(MSS as u16)));
            bench.driver.flush();
            let used = room - bench.driver.room();
            assert_eq!(used, if round == 0 { 6 } else { 4 }, "contexts are sent once");
            let seen = bench.gather();
            assert_eq!(seen.len(), 3, "{chip:?}");
            assert_eq!(seen[1], Seen { bytes: plain, offload: Offload::NONE });
            assert_eq!(seen[0].offload.checksum_start, 34);
            assert!(!seen[0].offload.is_segmented() && seen[2].offload.is_segmented());
            assert_eq!(on_the_wire(&seen[2]).len(), 3);
            assert_eq!(bench.driver.reclaim(), 3);
        }
    }
}

#[test]
fn tags_are_put_in_and_taken_off() {
    for chip in CHIPS {
        let mut bench = Bench::new(Config { vlan: true, ..polled(chip) });
        for len in [60, 200, 1500] {
            let (frame, tci) = (crate::bench::pattern(len, len), 0x6123);
            let request = Request { vlan: Some(tci), ..Request::default() };
            assert!(bench.driver.send(&frame, &request));
            bench.driver.flush();
            let seen = bench.gather();
            let mut tagged = frame.clone();
            tagged.splice(12..12, [0x81, 0x00, 0x61, 0x23]);
            assert_eq!(seen, [Seen { bytes: tagged.clone(), offload: Offload::NONE }], "{chip:?}");
            bench.driver.reclaim();
            bench.deliver_plain(&[tagged]);
            let mut got = Vec::new();
            bench.driver.receive(8, |received| got.push((received.to_vec(), received.vlan)));
            assert_eq!(got, [(frame, Some(tci))], "{chip:?}");
        }
    }
}

/// A tag goes into a checksummed and into a segmented frame, too: all offsets move with it.
#[test]
fn tags_move_what_is_asked_for() {
    for chip in CHIPS {
        let mut bench = Bench::new(Config { vlan: true, ..polled(chip) });
        let cases = [
            (ipv4(true, &payload(300), false), Request::checksum(true), 1),
            (ipv4(true, &payload(5000), true), Request::segments(1000), 5),
        ];
        for (frame, request, segments) in cases {
            assert!(bench.driver.send(&frame, &Request { vlan: Some(42), ..request }));
            bench.driver.flush();
            let seen = bench.gather();
            assert_eq!(seen.len(), 1, "{chip:?}");
            let wire = on_the_wire(&seen[0]);
            assert_eq!(wire.len(), segments);
            for frame in wire {
                assert_eq!(frame[12..16], [0x81, 0x00, 0, 42], "{chip:?}");
                let mut untagged = frame.clone();
                untagged.drain(12..16);
                tcp_of(&untagged);
            }
            bench.driver.reclaim();
        }
    }
}

/// The device reports a checksum as good only if the sender vouched for it.
#[test]
fn only_checksums_that_were_vouched_for_are_reported_good() {
    for chip in CHIPS {
        let mut bench = Bench::new(polled(chip));
        let seen = Seen {
            bytes: ipv4(true, &payload(100), false),
            offload: Offload {
                flags: Offload::NEEDS_CHECKSUM,
                checksum_start: 34,
                checksum_offset: 16,
                ..Offload::NONE
            },
        };
        let mut good = on_the_wire(&seen).remove(0);
        assert!(checksum::complete(&mut good[..34], 14, 10));
        let mut bad = good.clone();
        bad[60] ^= 1;
        let valid = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
        bench.deliver(&[(good, valid), (bad, Offload::NONE)]);
        let mut checked = Vec::new();
        bench.driver.receive(8, |frame| checked.push((frame.checked, frame.errors)));
        assert_eq!(checked.len(), 2);
        assert!(checked[0].0.transport && checked[0].1 == 0, "{chip:?}");
        let (found, errors) = checked[1];
        assert!(!found.transport || errors != 0, "{chip:?}: a bad one is not called good");
    }
}
