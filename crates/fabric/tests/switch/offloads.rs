//! Offload requests cross the switch unchanged where the receiver accepts them. Otherwise they are
//! carried out in software: once for each receiver, in order, and despite changed tags. The crate
//! `frame` tests that segments and checksums are right; these tests check that each frame gets what
//! it needs.

use ::frame::{Layers, Mac, Transport, checksum};
use port::{DropReason, Nanos, Offload, OffloadSet};
use toklat_fabric::{Rules, VlanMode};

use super::harness::{Frame, Switch, frame, host, tagged};
use super::{T0, learned, lossless_to_1, vlan};

const CHECKSUM: OffloadSet = OffloadSet { checksum: true, ..OffloadSet::NONE };

/// A TCP packet of `payload` bytes that requests segments of `size` bytes; 0 requests only its
/// checksum.
fn tcp(to: Mac, from: Mac, payload: usize, size: u16) -> (Frame, Offload) {
    let mut bytes = vec![0; 54 + payload];
    bytes[..6].copy_from_slice(&to.octets());
    bytes[6..12].copy_from_slice(&from.octets());
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    bytes[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    (bytes[22], bytes[23]) = (64, 6);
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes[46..48].copy_from_slice(&[0x50, 0x10]);
    bytes[54..].iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7) as u8);
    let pseudo =
        [&bytes[26..34], &6u32.to_be_bytes(), &(20 + payload as u32).to_be_bytes()].concat();
    let seed = !checksum::checksum(&pseudo);
    bytes[50..52].copy_from_slice(&seed.to_be_bytes());
    let gso_type = if size == 0 { Offload::GSO_NONE } else { Offload::GSO_TCP4 };
    let request = Offload {
        flags: Offload::NEEDS_CHECKSUM,
        gso_type,
        header_len: 0,
        gso_size: size,
        checksum_start: 34,
        checksum_offset: 16,
    };
    (bytes, request)
}

/// The payload of TCP segments in order; panics if one has a wrong checksum or is not next.
fn payload(segments: &[Frame]) -> Vec<u8> {
    let mut all = Vec::new();
    for segment in segments {
        let layers = Layers::of(segment).unwrap();
        let Transport::Tcp(tcp) = layers.transport else { panic!("not TCP") };
        assert_eq!(tcp.sequence() as usize, all.len());
        let ip = segment.len() - layers.payload.len() - 40;
        let len = (segment.len() - ip - 20) as u32;
        let pseudo = [&segment[ip + 12..ip + 20], &6u32.to_be_bytes(), &len.to_be_bytes()].concat();
        let sum = checksum::Sum::new().with(&pseudo).with(&segment[ip + 20..]);
        assert_eq!(sum.checksum(), 0, "checksum of a segment");
        all.extend_from_slice(layers.payload);
    }
    all
}

fn sent(payload: usize) -> Vec<u8> {
    (0..payload).map(|i| (i / 7) as u8).collect()
}

#[test]
fn a_receiver_that_takes_requests_gets_them_untouched() {
    let mut switch = learned(2);
    switch.set_takes(1, OffloadSet::ALL);
    let (bytes, request) = tcp(host(1), host(0), 60_000, 1448);
    switch.send_with(0, vec![(bytes.clone(), request)], T0);
    assert_eq!(switch.take(1), [bytes]);
    assert_eq!(switch.take_requests(1)[0], Offload { header_len: 54, ..request });
    assert_eq!(switch.software(1), (0, 0, 0), "one pass, nothing cut");
    switch.assert_sums();
}

#[test]
fn a_receiver_that_takes_none_gets_segments_with_checksums() {
    let mut switch = learned(2);
    let large = tcp(host(1), host(0), 60_000, 1448);
    let small = tcp(host(1), host(0), 700, 0);
    switch.send_with(0, vec![large, small], T0);
    let mut got = switch.take(1);
    assert_eq!(payload(&got.split_off(42)), sent(700));
    assert!(got.iter().all(|segment| segment.len() <= 1502));
    assert_eq!(payload(&got), sent(60_000));
    assert_eq!(switch.software(1), (1, 41, 43));
    switch.assert_sums();
}

#[test]
fn a_receiver_that_takes_checksums_gets_segments_without_them() {
    let mut switch = learned(2);
    switch.set_takes(1, CHECKSUM);
    switch.send_with(0, vec![tcp(host(1), host(0), 3000, 1000)], T0);
    let (mut got, requests) = (switch.take(1), switch.take_requests(1));
    assert_eq!((got.len(), requests.len()), (3, 3));
    for (segment, request) in got.iter_mut().zip(requests) {
        assert!(request.needs_checksum() && !request.is_segmented());
        assert!(checksum::complete(segment, request.checksum_start, request.checksum_offset));
    }
    assert_eq!(payload(&got), sent(3000));
    assert_eq!(switch.software(1), (1, 2, 0));
}

#[test]
fn order_is_kept_between_frames_that_are_cut_and_others() {
    for takes in [OffloadSet::NONE, CHECKSUM, OffloadSet::ALL] {
        let mut switch = learned(2);
        switch.set_takes(1, takes);
        let plain = |n| (frame(host(1), host(0), n), Offload::NONE);
        let sizes = [20_000, 100, 90_000 / 2, 1000];
        let packets = sizes.map(|len| tcp(host(1), host(0), len, 500));
        let mut frames = vec![plain(1), plain(2)];
        frames.extend(packets.into_iter().zip(3..).flat_map(|(packet, n)| [packet, plain(n)]));
        switch.send_with(0, frames, T0);
        let got = switch.take(1);
        let numbers: Vec<u8> = got.iter().filter(|f| f.len() == 60).map(|f| f[59]).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
        let runs = got.split(|f| f.len() == 60).skip(2).take(4);
        let bytes: Vec<usize> = runs.map(|run| run.iter().map(|f| f.len() - 54).sum()).collect();
        assert_eq!(bytes, sizes, "{takes:?}");
        switch.assert_sums();
    }
}

#[test]
fn each_receiver_of_a_flood_gets_the_offloads_it_takes() {
    let mut switch = learned(4);
    switch.set_takes(1, OffloadSet::ALL);
    switch.set_takes(2, CHECKSUM);
    switch.send_with(0, vec![tcp(Mac::BROADCAST, host(0), 2500, 1000)], T0);
    assert_eq!([1, 2, 3].map(|id| switch.take(id).len()), [1, 3, 3]);
    assert_eq!([1, 2, 3].map(|id| switch.software(id)), [(0, 0, 0), (1, 2, 0), (1, 2, 3)]);
    switch.assert_sums();
}

#[test]
fn requests_move_with_tags_that_are_added_and_removed() {
    let trunk = VlanMode::Trunk { allowed: vec![], native: None };
    let modes = [VlanMode::Access(vlan(5)), trunk.clone(), trunk, VlanMode::Access(vlan(5))];
    let mut switch = Switch::new(&modes.map(|vlan| Rules { vlan, ..Rules::default() }));
    switch.set_takes(1, OffloadSet::ALL);
    let (bytes, request) = tcp(Mac::BROADCAST, host(0), 3000, 1000);
    switch.send_with(0, vec![(bytes.clone(), request)], T0);
    let with_tag = tagged(bytes.clone(), 5);
    assert_eq!(switch.take(1), std::slice::from_ref(&with_tag));
    let moved = switch.take_requests(1)[0];
    assert_eq!((moved.checksum_start, moved.header_len), (38, 58));
    assert_eq!(payload(&switch.take(2)), sent(3000), "cut with the tag");
    assert_eq!(payload(&switch.take(3)), sent(3000), "cut without");

    switch.set_takes(0, OffloadSet::ALL);
    switch.send_with(1, vec![(with_tag, moved)], T0);
    assert_eq!(switch.take(0), [bytes]);
    assert_eq!(switch.take_requests(0)[0], Offload { header_len: 54, ..request });
    assert_eq!(payload(&switch.take(2)), sent(3000));
    switch.assert_sums();
}

#[test]
fn a_lossless_receiver_gets_every_segment_once() {
    let mut switch = lossless_to_1();
    switch.set_room(1, 0);
    let packets = vec![tcp(host(1), host(0), 60_000, 400), tcp(host(1), host(0), 10, 0)];
    switch.send_with(0, packets, T0);
    let mut got = Vec::new();
    let mut now = T0;
    while switch.held[0].is_some() {
        switch.set_room(1, 7);
        now = now + 1000;
        switch.retry(0, now);
        got.extend(switch.take(1));
    }
    assert_eq!(payload(&got.split_off(150)), sent(10));
    assert_eq!(payload(&got), sent(60_000));
    assert_eq!(switch.software(1), (1, 149, 151));
    switch.assert_sums();
}

#[test]
fn a_packet_that_is_given_up_half_way_is_counted_once() {
    let mut switch = lossless_to_1();
    switch.set_room(1, 3);
    switch.send_with(0, vec![tcp(host(1), host(0), 5000, 1000)], T0);
    switch.retry(0, T0 + super::STALL_NS);
    assert!(switch.held[0].is_none());
    assert_eq!(switch.take(1).len(), 3);
    assert_eq!(switch.dropped(0, DropReason::StallTimeout), 1);
    switch.assert_sums();
}

#[test]
fn false_requests_are_dropped_by_name_and_do_no_harm() {
    let mut switch = learned(3);
    switch.set_takes(1, OffloadSet::ALL);
    switch.specs[0].rules.mirror_ingress = Some("p2".into());
    switch.rebuild();
    let good = tcp(host(1), host(0), 3000, 1000);
    let lie = |change: fn(&mut Offload)| {
        let (bytes, mut request) = tcp(host(1), host(0), 1000, 500);
        change(&mut request);
        (bytes, request)
    };
    let frames = vec![
        lie(|r| r.gso_size = 0),
        good.clone(),
        lie(|r| r.gso_type = 3),
        lie(|r| r.checksum_start = 14),
        (frame(host(1), host(0), 1), Offload { flags: 0xff, ..Offload::NONE }),
        good,
    ];
    switch.send_with(0, frames, T0);
    assert_eq!(switch.take(1).len(), 2);
    assert_eq!(switch.dropped(0, DropReason::Offload), 4);
    assert_eq!(switch.take(2).len(), 4 + 2 * 3, "a mirror sees what was refused, as it is");
    switch.assert_sums();
}

/// A port of MTU 9000 that sends to port 1 with 1000, and to port 2 with 1500.
fn unlike() -> Switch {
    let mut switch = learned(3);
    for (port, mtu) in [(0, 9000), (1, 1000), (2, 1500)] {
        switch.specs[port].rules = Rules { mtu, ..Rules::default() };
    }
    switch.rebuild();
    switch
}

#[test]
fn segments_for_a_port_of_a_smaller_mtu_are_cut_to_fit() {
    for takes in [OffloadSet::NONE, OffloadSet::ALL] {
        let mut switch = unlike();
        switch.set_takes(1, takes);
        let (bytes, request) = tcp(host(1), host(0), 9800, 1400);
        switch.send_with(0, vec![(bytes.clone(), request)], Nanos(T0.0 + 1));
        let requests = switch.inboxes[1][0].requests.lock().unwrap().clone();
        let mut segments = switch.take(1);
        for (segment, request) in segments.iter_mut().zip(requests) {
            if request.needs_checksum() {
                checksum::complete(segment, request.checksum_start, request.checksum_offset);
            }
        }
        assert_eq!(payload(&segments), &bytes[54..], "all of it, in order, with right sums");
        let lengths: Vec<usize> = segments.iter().map(Vec::len).collect();
        let most = 1000 + 14 + 8;
        assert!(lengths[..10].iter().all(|len| *len == most), "{lengths:?}");
        assert!(switch.take(0).is_empty(), "the sender is not told of what was cut");
        switch.assert_sums();
    }
}

#[test]
fn a_sender_is_told_of_packets_that_a_port_of_a_smaller_mtu_cannot_take() {
    let mut switch = unlike();
    let long = |to: u16, dont_fragment: u8| {
        let (mut bytes, _) = tcp(host(to), host(0), 1400, 0);
        bytes[20] = dont_fragment;
        (bytes, Offload::NONE)
    };
    let mut now = T0.0;
    let mut told = |switch: &mut Switch, frames: Vec<(Frame, Offload)>| {
        now += Nanos::MILLI;
        switch.send_with(0, frames, Nanos(now));
        switch.take(0)
    };
    let answers = told(&mut switch, vec![long(1, 0x40), long(1, 0x40), long(2, 0x40)]);
    let [answer] = &answers[..] else { panic!("one answer a millisecond: {answers:?}") };
    assert_eq!(answer[..12], [host(0).octets(), host(1).octets()].concat(), "from its destination");
    assert_eq!((answer[23], &answer[34..36], &answer[40..42]), (1, &[3, 4][..], &[3, 0xe8][..]));
    assert!(switch.take(1).is_empty());
    assert_eq!(switch.take(2).len(), 1, "what fits");
    assert!(told(&mut switch, vec![long(1, 0)]).is_empty(), "it may be fragmented");
    let (mut flood, _) = long(1, 0x40);
    flood[..6].copy_from_slice(&host(77).octets());
    assert!(told(&mut switch, vec![(flood, Offload::NONE)]).is_empty(), "not its destination");
    let (bytes, _) = long(1, 0x40);
    let tagged = [&bytes[..12], &[0x81, 0, 0, 5], &bytes[12..]].concat();
    let answers = told(&mut switch, vec![(tagged, Offload::NONE)]);
    assert_eq!((&answers[0][12..16], &answers[0][44..46]), (&[0x81, 0, 0, 5][..], &[3, 0xe8][..]));
    switch.assert_sums();
}

#[test]
fn stacked_tags_pass_at_the_full_mtu() {
    let mut switch = learned(2);
    let (bytes, mut request) = tcp(host(1), host(0), 4000, 1460);
    let tags = [0x88, 0xa8, 0, 100, 0x81, 0, 0, 200];
    let stacked = [&bytes[..12], &tags, &bytes[12..]].concat();
    request.checksum_start += 8;
    switch.send_with(0, vec![(stacked, request)], T0);
    let lengths: Vec<usize> = switch.take(1).iter().map(Vec::len).collect();
    assert_eq!(lengths, [1522, 1522, 62 + 1080]);
    switch.assert_sums();
}

#[test]
fn a_checksum_of_a_first_fragment_is_completed() {
    let mut switch = learned(2);
    let (mut bytes, request) = tcp(host(1), host(0), 100, 0);
    bytes[20] = 0x20;
    switch.send_with(0, vec![(bytes.clone(), request)], T0);
    assert_eq!(switch.take(1).len(), 1);
    bytes[21] = 1;
    switch.send_with(0, vec![(bytes, request)], T0);
    assert!(switch.take(1).is_empty(), "a later fragment has none");
    assert_eq!(switch.dropped(0, DropReason::Offload), 1);
    switch.assert_sums();
}

#[test]
fn the_mtu_is_for_what_is_on_a_wire() {
    let mut switch = learned(3);
    switch.set_takes(1, OffloadSet::ALL);
    let now = Nanos(T0.0 + 1);
    switch.send_with(0, vec![tcp(host(1), host(0), 9000, 1400)], now);
    assert_eq!(switch.take(1).len(), 1, "a long frame of segments that fit");
    switch.send_with(0, vec![tcp(host(1), host(0), 9000, 1500)], now);
    assert_eq!(switch.dropped(0, DropReason::TooLong), 1, "segments beyond the sender's MTU");
    let small = Rules { mtu: 20, ..Rules::default() };
    switch.specs[2].rules = small;
    switch.rebuild();
    switch.send_with(0, vec![tcp(host(2), host(0), 9000, 1400)], now);
    let counters = &switch.inboxes[2][0].counters;
    assert_eq!(counters.drops[DropReason::TooLong as usize].get(), 7, "headers leave no room");
    switch.assert_sums();
}
