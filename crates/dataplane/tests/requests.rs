//! Offload requests in the slots of ring ports. Between ports that asked for them they arrive as
//! they were sent; other ports receive finished frames. A slot with a request that is not allowed
//! fails its own port only.

use frame::{Layers, Mac, Offload, OffloadSet, Transport, checksum};
use inline::Inline;
use netring::layout::{Fault, MAX_SEGMENTED, RingMemory, SlotWord, slot_flags};
use netring::{Open, Port, PortError, Region, RegionConfig};
use port::{DropReason, Nanos};
use proptest::prelude::*;
use toklat_dataplane::SwitchConfig;
use toklat_dataplane::config::Policy;

const SLOTS: u32 = 128;
const CHECKSUM: OffloadSet = OffloadSet { checksum: true, ..OffloadSet::NONE };

fn mac(host: u16) -> Mac {
    Mac::local(u32::from(host) + 1)
}

/// A switch with a port for each of these sets, on which host `i` lives.
fn lab(sets: &[OffloadSet]) -> (Inline, Vec<Port>) {
    lab_of(sets, SLOTS)
}

fn lab_of(sets: &[OffloadSet], slots: u32) -> (Inline, Vec<Port>) {
    let config = SwitchConfig { max_ports: 4, ..SwitchConfig::default() };
    let mut switch = Inline::new(config).unwrap();
    let plug = |(host, set): (usize, &OffloadSet)| {
        let region = Region::private(RegionConfig::ports(1, 1, slots)).unwrap();
        let open = Open::new("port").slots(slots).in_region(&region).offloads(*set);
        let port = open.inline().unwrap();
        let policy = Policy { macs: vec![mac(host as u16)], ..Policy::default() };
        switch.add_rings("port", policy, &port.rings()).unwrap();
        port
    };
    let ports = sets.iter().enumerate().map(plug).collect();
    (switch, ports)
}

/// A TCP packet from host 0 to host 1, to be segmented to `size` bytes; 0 for its checksum only.
fn tcp(payload: usize, size: u16) -> (Vec<u8>, Offload) {
    let mut bytes = vec![0; 54 + payload];
    bytes[..6].copy_from_slice(&mac(1).octets());
    bytes[6..12].copy_from_slice(&mac(0).octets());
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    (bytes[22], bytes[23]) = (64, 6);
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes[46..48].copy_from_slice(&[0x50, 0x10]);
    bytes[54..].iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7) as u8);
    let pseudo = [&bytes[26..34], &6u32.to_be_bytes(), &(20 + payload as u32).to_be_bytes()];
    let seed = !checksum::checksum(&pseudo.concat());
    bytes[50..52].copy_from_slice(&seed.to_be_bytes());
    let gso_type = if size == 0 { Offload::GSO_NONE } else { Offload::GSO_TCP4 };
    let flags = Offload::NEEDS_CHECKSUM;
    let (gso_size, checksum_start, checksum_offset) = (size, 34, 16);
    let request =
        Offload { flags, gso_type, header_len: 0, gso_size, checksum_start, checksum_offset };
    (bytes, request)
}

fn send(port: &mut Port, (bytes, request): &(Vec<u8>, Offload)) -> bool {
    // In pieces, as a network stack has them: headers, then payload from two places.
    let (head, rest) = bytes.split_at(54.min(bytes.len()));
    let (first, second) = rest.split_at(rest.len() / 3);
    let sent = port.send(64).gather([head, first, second], bytes.len(), *request);
    port.flush().unwrap();
    sent
}

fn receive(port: &mut Port) -> Vec<(Vec<u8>, Offload)> {
    let frames = port.receive(usize::MAX).map(|frame| (frame.to_vec(), frame.offload())).collect();
    port.flush().unwrap();
    frames
}

/// The payload of TCP segments in order; panics if one has a wrong checksum or is not next.
fn payload(segments: &[(Vec<u8>, Offload)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (segment, request) in segments {
        assert_eq!(*request, Offload::NONE);
        let Transport::Tcp(tcp) = Layers::of(segment).unwrap().transport else { panic!("not TCP") };
        assert_eq!(tcp.sequence() as usize, all.len());
        let len = (segment.len() - 34) as u32;
        let pseudo = [&segment[26..34], &6u32.to_be_bytes(), &len.to_be_bytes()].concat();
        let sum = checksum::Sum::new().with(&pseudo).with(&segment[34..]);
        assert_eq!(sum.checksum(), 0, "checksum of a segment");
        all.extend_from_slice(&segment[54..]);
    }
    all
}

#[test]
fn requests_arrive_as_they_were_sent_where_both_ports_asked_for_them() {
    let (mut switch, mut ports) = lab(&[OffloadSet::ALL, OffloadSet::ALL]);
    // More frames than the ring has room for, so that chains wrap around its end.
    for round in 0..20 {
        let sent = [tcp(60_000 + round * 100, 1448), tcp(100, 0), tcp(3000, 1448)];
        sent.iter().for_each(|frame| assert!(send(&mut ports[0], frame)));
        switch.turn(Nanos(0));
        let got = receive(&mut ports[1]);
        assert!(got == sent, "{:?}", got.iter().map(|(b, o)| (b.len(), o)).collect::<Vec<_>>());
    }
    assert_eq!(switch.stats(1).unaccounted() + switch.stats(0).unaccounted(), 0);
}

#[test]
fn a_port_that_asked_for_nothing_gets_finished_frames() {
    let (mut switch, mut ports) = lab(&[OffloadSet::ALL, OffloadSet::NONE]);
    let (long, request) = tcp(60_000, 1448);
    assert!(send(&mut ports[0], &(long.clone(), request)));
    switch.turn(Nanos(0));
    let got = receive(&mut ports[1]);
    assert_eq!(got.len(), 60_000usize.div_ceil(1448));
    assert_eq!(payload(&got), long[54..]);
    assert!(send(&mut ports[0], &tcp(100, 0)));
    switch.turn(Nanos(0));
    assert_eq!(payload(&receive(&mut ports[1])).len(), 100);
}

#[test]
fn a_port_that_takes_checksums_only_gets_segments_without_sums() {
    let (mut switch, mut ports) = lab(&[OffloadSet::ALL, CHECKSUM]);
    assert!(send(&mut ports[0], &tcp(6_000, 1448)));
    switch.turn(Nanos(0));
    let got = receive(&mut ports[1]);
    assert_eq!(got.len(), 5);
    assert!(got.iter().all(|(_, request)| request.needs_checksum() && !request.is_segmented()));
}

#[test]
fn a_port_cannot_send_what_it_did_not_ask_for() {
    let (mut switch, mut ports) = lab(&[CHECKSUM, OffloadSet::NONE]);
    assert!(!send(&mut ports[0], &tcp(6_000, 1448)));
    assert!(send(&mut ports[0], &tcp(600, 0)));
    assert!(!send(&mut ports[1], &tcp(600, 0)));
    let mut out = ports[1].send(1);
    let mut slot = out.slot().unwrap();
    assert!(!slot.set_offload(tcp(600, 0).1), "the library says so");
    drop(slot);
    switch.turn(Nanos(0));
    assert_eq!(payload(&receive(&mut ports[1])).len(), 600);
}

#[test]
fn rings_too_small_for_long_frames_carry_checksums_only() {
    let (mut switch, mut ports) = lab_of(&[OffloadSet::ALL, OffloadSet::ALL], 16);
    assert_eq!(ports[0].offloads(), CHECKSUM);
    assert!(!send(&mut ports[0], &tcp(6_000, 1448)));
    assert!(send(&mut ports[0], &tcp(600, 0)));
    switch.turn(Nanos(0));
    assert_eq!(receive(&mut ports[1]).len(), 1);
    const { assert!(MAX_SEGMENTED < 64 * 2048) };
}

#[test]
fn a_forwarded_frame_keeps_its_request() {
    let (mut switch, mut ports) = lab(&[OffloadSet::ALL, OffloadSet::ALL, OffloadSet::ALL]);
    let (mut long, request) = tcp(30_000, 1448);
    assert!(send(&mut ports[0], &(long.clone(), request)));
    switch.turn(Nanos(0));
    let (mut out, incoming) = ports[1].queue(0).both(64, 64).unwrap();
    for frame in incoming {
        let to = mac(2).octets();
        frame.window().prefix(6).copy_in(&to);
        out.forward(frame).unwrap();
    }
    ports[1].flush().unwrap();
    switch.turn(Nanos(0));
    long[..6].copy_from_slice(&mac(2).octets());
    assert!(receive(&mut ports[2]) == [(long, request)]);
}

/// Sends an arbitrary slot, as a hostile client could.
fn forge(port: &mut Port, flags: u16, len: u16, ptr: u64) {
    let rings = port.rings();
    let ring = RingMemory::of(&rings.mapping, &rings.geometry, rings.tx.first, SLOTS).unwrap();
    let head = ring.control.owner.0.own();
    let slot = &ring.slots[head as usize];
    slot.ptr.store(ptr, std::sync::atomic::Ordering::Relaxed);
    slot.store(SlotWord { len, flags, ..slot.load() });
    ring.control.owner.0.publish((head + 1) % SLOTS);
}

/// Each turn checks one idle port, so this takes as many turns as there are ports.
fn reset(switch: &mut Inline, port: &mut Port, ports: usize) {
    port.reset().unwrap();
    (0..=ports).for_each(|_| _ = switch.turn(Nanos(0)));
}

#[test]
fn a_request_of_a_port_that_did_not_ask_fails_that_port_alone() {
    let sets = [OffloadSet::NONE, OffloadSet::ALL, CHECKSUM];
    let (mut switch, mut ports) = lab(&sets);
    let word = tcp(100, 0).1.to_word();
    forge(&mut ports[0], slot_flags::OFFLOAD, 100, word);
    switch.turn(Nanos(0));
    assert!(matches!(ports[0].check(), Err(PortError::Fault(Fault::Offload))));
    // A port that may request checksums may not request segmentation.
    forge(&mut ports[2], slot_flags::OFFLOAD, 100, tcp(100, 50).1.to_word());
    switch.turn(Nanos(0));
    assert!(matches!(ports[2].check(), Err(PortError::Fault(Fault::Offload))));
    // An indirect slot is malformed, with or without a request.
    forge(&mut ports[1], slot_flags::OFFLOAD | slot_flags::INDIRECT, 100, word);
    switch.turn(Nanos(0));
    assert!(matches!(ports[1].check(), Err(PortError::Fault(Fault::Indirect))));
    reset(&mut switch, &mut ports[0], sets.len());
    assert!(ports[0].check().is_ok());
}

#[test]
fn a_request_in_the_middle_of_a_frame_fails_its_port() {
    let (mut switch, mut ports) = lab(&[OffloadSet::ALL, OffloadSet::ALL]);
    let word = tcp(100, 0).1.to_word();
    forge(&mut ports[0], slot_flags::OFFLOAD | slot_flags::MOREFRAG, 100, word);
    forge(&mut ports[0], slot_flags::OFFLOAD, 100, word);
    switch.turn(Nanos(0));
    assert!(matches!(ports[0].check(), Err(PortError::Fault(Fault::Offload))));
    assert_eq!(receive(&mut ports[1]), []);
}

#[test]
fn a_request_that_contradicts_its_frame_drops_the_frame() {
    let (mut switch, mut ports) = lab(&[OffloadSet::ALL, OffloadSet::ALL]);
    let (bytes, good) = tcp(3000, 1448);
    let bad = [
        Offload { checksum_start: 14, ..good },
        Offload { checksum_offset: 0, ..good },
        Offload { gso_type: Offload::GSO_TCP6, ..good },
        Offload { gso_type: Offload::GSO_UDP, ..good },
    ];
    for request in bad {
        assert!(send(&mut ports[0], &(bytes.clone(), request)));
    }
    switch.turn(Nanos(0));
    assert_eq!(receive(&mut ports[1]), []);
    assert_eq!(switch.stats(0).in_drops[&DropReason::Offload], bad.len() as u64);
    assert!(ports[0].check().is_ok());
}

proptest! {
    #[test]
    fn whatever_a_client_asks_for_every_frame_is_accounted_for(
        words in prop::collection::vec((any::<u64>(), 0u16..2048, any::<bool>(), 0..3), 1..60),
    ) {
        let (mut switch, mut ports) = lab(&[OffloadSet::ALL, OffloadSet::ALL, OffloadSet::NONE]);
        let (frame, good) = tcp(1900, 1448);
        for (word, len, more, kind) in words {
            // Some requests are nearly valid.
            let word = match kind {
                0 => word,
                1 => good.to_word() ^ 1 << (word % 64),
                _ => good.to_word(),
            };
            let mut out = ports[0].send(1);
            if let Some(slot) = out.slot() {
                slot.window().copy_in(&frame);
            }
            let flags = slot_flags::OFFLOAD | if more { slot_flags::MOREFRAG } else { 0 };
            forge(&mut ports[0], flags, len, word);
            switch.turn(Nanos(0));
            for port in &mut ports[1..] {
                receive(port);
            }
            if ports[0].check().is_err() {
                reset(&mut switch, &mut ports[0], 3);
            }
        }
        let unaccounted: i128 = (0..3).map(|id| switch.stats(id).unaccounted()).sum();
        prop_assert_eq!(unaccounted, 0);
    }
}
