//! A client that writes whatever it likes into its region while two others use the switch: nothing
//! panics or loops, the two others lose no frame and get no byte that they were not sent, and every
//! frame is accounted for.
//!
//! The input is a list of 13-byte steps: what to do, where (u32), and a value (u64).
#![no_main]

use std::sync::Arc;

use dataplane::SwitchConfig;
use dataplane::config::Policy;
use frame::{Mac, OffloadSet};
use inline::Inline;
use libfuzzer_sys::fuzz_target;
use netring::layout::RING_HEADER;
use netring::{Open, Port, Region, RegionConfig};
use port::Nanos;
use toklat_fuzz::steps;

const HOSTILE: Mac = Mac::local(66);
const LEFT: Mac = Mac::local(1);
const RIGHT: Mac = Mac::local(2);
/// Steps of an input that are carried out.
const STEPS: usize = 256;

/// Plugs in a port that is at `mac` and may send only from there.
fn plug(switch: &mut Inline, mac: Mac, slots: u32) -> (Port, Arc<Region>, u16) {
    let region = Region::private(RegionConfig::ports(1, 1, slots)).expect("memory");
    let open = Open::new("port").slots(slots).in_region(&region).offloads(OffloadSet::ALL);
    let port = open.inline().expect("a region of its size");
    let policy = Policy { macs: vec![mac], locked: true, ..Policy::default() };
    let id = switch.add_rings("port", policy, &port.rings()).expect("a free number");
    (port, region, id)
}

/// Writes `value` where the step says.
fn scribble(port: &Port, what: u8, at: u32, value: u64) {
    let rings = port.rings();
    let geometry = rings.geometry;
    let ring = at & 1;
    let offset = match what % 4 {
        // A cursor or flag of a control block: few values, so that plausible ones occur.
        0 => geometry.control_offset(ring) + u64::from(at >> 1 & 3) * 64,
        // A slot of either ring, or the offload request next to it.
        1 => geometry.ring_offset(ring) + RING_HEADER as u64 + u64::from(at >> 1 & 31) * 8,
        // The head of a frame in one of the first buffers.
        2 => geometry.buf_offset() + u64::from(at & 31) * u64::from(geometry.buf_size),
        _ => (u64::from(at) % geometry.file_size().max(8)) & !7,
    };
    if let Some(window) = rings.mapping.bytes(offset as usize, 8) {
        window.write(0, value);
    }
}

/// Sends a frame filled with `mark` from left to right, and expects it to arrive unchanged.
fn exchange(switch: &mut Inline, left: &mut Port, right: &mut Port, mark: u64, now: &mut u64) {
    let mut frame = [mark as u8; 100];
    frame[..6].copy_from_slice(&RIGHT.octets());
    frame[6..12].copy_from_slice(&LEFT.octets());
    assert!(left.send(1).push(&frame), "its slots come back whatever others do");
    left.flush().expect("a port in order");
    *now += 1000;
    switch.turn(Nanos(*now));
    let (mut arrived, mut others) = (0, 0);
    for got in right.receive(usize::MAX) {
        let got = got.to_vec();
        if got.get(6..12) == Some(&LEFT.octets()[..]) {
            assert_eq!(got, frame, "as it was sent");
            arrived += 1;
        } else {
            others += 1;
        }
    }
    assert_eq!(arrived, 1, "exactly once, beside {others} of the hostile port");
    right.flush().expect("a port in order");
    left.receive(usize::MAX).for_each(drop);
    left.flush().expect("a port in order");
}

fuzz_target!(|input: &[u8]| {
    let config = SwitchConfig { max_ports: 3, batch: 16, fdb_entries: 64, ..Default::default() };
    let mut switch = Inline::new(config).expect("memory");
    let (hostile, _hostile_region, hostile_id) = plug(&mut switch, HOSTILE, 16);
    let (mut left, _left_region, left_id) = plug(&mut switch, LEFT, 128);
    let (mut right, _right_region, right_id) = plug(&mut switch, RIGHT, 128);
    let mut now = 0;
    for (mark, (what, at, value)) in steps(input).take(STEPS).enumerate() {
        scribble(&hostile, what, at, value);
        if what & 0x80 == 0 {
            exchange(&mut switch, &mut left, &mut right, mark as u64, &mut now);
        }
    }
    for _ in 0..64 {
        exchange(&mut switch, &mut left, &mut right, 0xff, &mut now);
    }
    // The hostile port's own ring may still hold what it says it sent: without it, all is accounted
    // for.
    switch.remove(hostile_id);
    switch.turn(Nanos(now + 1000));
    let ports = [hostile_id, left_id, right_id];
    let gone = switch.state().switch().snapshot().gone.unaccounted();
    let sum: i128 = ports.iter().map(|id| switch.stats(*id).unaccounted()).sum();
    assert_eq!(sum + gone, 0, "every frame is delivered or counted as dropped");
});
