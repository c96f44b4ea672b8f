//! A receive ring that one sender floods, and another one that sends little.

use std::sync::atomic::Ordering;

use frame::Mac;
use netring::layout::RingMemory;
use netring::{Port, Region, RegionConfig};
use port::Nanos;
use toklat_inline::{Inline, Policy, SwitchConfig};

const SLOTS: u32 = 64;
/// Frames that the receiver takes in a turn.
const TAKEN: usize = 8;

/// A port; before each frame that it receives comes a virtio-net header of `header` bytes.
fn plug(switch: &mut Inline, name: &str, number: u32, header: u8) -> Port {
    let region = Region::private(RegionConfig::ports(1, 1, SLOTS)).unwrap();
    let port = Port::inline(&region, name, 1, 1, SLOTS).unwrap();
    let rings = port.rings();
    let memory = RingMemory::of(&rings.mapping, &rings.geometry, rings.rx.first, SLOTS).unwrap();
    memory.control.owner_flags.0.format.store(header.into(), Ordering::Relaxed);
    let policy = Policy { macs: vec![Mac::local(number)], mtu: 9000, ..Policy::default() };
    switch.add_rings(name, policy, &rings).unwrap();
    port
}

fn frame(from: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&Mac::local(9).octets());
    frame[6..12].copy_from_slice(&Mac::local(from).octets());
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Floods the receiver with frames of `len` bytes, each after a header; returns how many of the
/// other sender's frames were sent and received, and how many of the flood.
fn flood(len: usize, header: u8) -> (usize, usize, usize) {
    let mut switch = Inline::new(SwitchConfig { max_ports: 3, ..Default::default() }).unwrap();
    // The flooder's turn comes first.
    let mut flooder = plug(&mut switch, "flooder", 1, 0);
    let mut modest = plug(&mut switch, "modest", 2, 0);
    let mut victim = plug(&mut switch, "victim", 9, header);
    let (flood, small) = (frame(1, len), frame(2, 60));
    let (mut sent, mut received, mut of_flood) = (0, 0, 0);
    for turn in 0..4000 {
        while flooder.send(4).push(&flood) {}
        flooder.flush().unwrap();
        // Until the ring is known to be flooded, and was emptied once, others lose frames, too.
        if (100..3900).contains(&turn) && turn % 4 == 0 {
            assert!(modest.send(1).push(&small));
            modest.flush().unwrap();
            sent += 1;
        }
        switch.turn(Nanos(turn));
        for frame in victim.receive(TAKEN) {
            match frame.to_vec()[11 + usize::from(header)] {
                2 => received += 1,
                _ => of_flood += 1,
            }
        }
        victim.flush().unwrap();
    }
    (sent, received, of_flood)
}

#[test]
fn a_flood_costs_a_sender_below_its_share_no_frame() {
    // Short frames, frames that take four slots each, and frames that take two by their header.
    for (len, header, least) in [(60, 0, 20_000), (8000, 0, 1000), (2040, 12, 1000)] {
        let (sent, received, of_flood) = flood(len, header);
        assert_eq!(received, sent, "frames beside a flood of {len} bytes");
        assert!(of_flood > least, "the flood gets what is left: {of_flood} of {len} bytes");
    }
}
