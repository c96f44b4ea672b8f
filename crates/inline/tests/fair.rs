//! Bytes of senders that want more than there is: in the proportion of their weights, whatever the
//! sizes of their frames.

use std::collections::HashMap;

use frame::Mac;
use netring::{Port, Region, RegionConfig};
use port::Nanos;
use toklat_inline::{Inline, Policy, PortId, SwitchConfig};

const SLOTS: u32 = 256;
const TARGET: u32 = 99;
/// How far bytes may be from the proportion of the weights.
const TOLERANCE: f64 = 0.1;

fn plug(switch: &mut Inline, number: u32, policy: Policy) -> (PortId, Port) {
    let region = Region::private(RegionConfig::ports(1, 1, SLOTS)).unwrap();
    let name = format!("p{number}");
    let port = Port::inline(&region, &name, 1, 1, SLOTS).unwrap();
    let policy = Policy { macs: vec![Mac::local(number)], mtu: 9000, ..policy };
    (switch.add_rings(&name, policy, &port.rings()).unwrap(), port)
}

fn frame(from: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&Mac::local(TARGET).octets());
    frame[6..12].copy_from_slice(&Mac::local(from).octets());
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// A sender: its weight, and the bytes of its frames.
type Sending = (u16, usize);

/// Lets senders fill their rings before each of `turns` turns; the receiver takes `takes` frames
/// after each. Returns the bytes that the receiver got from each sender.
fn run(senders: &[Sending], lossless: bool, turns: u64, takes: usize) -> Vec<u64> {
    let config = SwitchConfig { max_ports: 8, stall_timeout_ms: 60_000, ..Default::default() };
    let mut switch = Inline::new(config).unwrap();
    let mut sending: Vec<(Port, Vec<u8>)> = (1..)
        .zip(senders)
        .map(|(number, (weight, len))| {
            let policy = Policy { weight: *weight, ..Policy::default() };
            (plug(&mut switch, number, policy).1, frame(number, *len))
        })
        .collect();
    let policy = Policy { lossless, ..Policy::default() };
    let (_, mut receiver) = plug(&mut switch, TARGET, policy);
    let mut bytes = HashMap::<u8, u64>::new();
    for turn in 0..turns {
        for (port, frame) in &mut sending {
            while port.send(frame.len().div_ceil(2048)).push(frame) {}
            port.flush().unwrap();
        }
        switch.turn(Nanos(turn * 1000));
        for frame in receiver.receive(takes) {
            let frame = frame.to_vec();
            *bytes.entry(frame[11]).or_default() += frame.len() as u64;
        }
        receiver.flush().unwrap();
    }
    (1..=senders.len() as u8).map(|number| bytes.get(&number).copied().unwrap_or(0)).collect()
}

fn assert_shared(senders: &[Sending], bytes: &[u64]) {
    let share = |at: usize| bytes[at] as f64 / f64::from(senders[at].0);
    for at in 1..senders.len() {
        let off = share(at) / share(0) - 1.0;
        assert!(off.abs() <= TOLERANCE, "{senders:?} (weight, frame): {bytes:?}");
    }
}

const CASES: [&[Sending]; 5] = [
    &[(1, 60), (1, 1514)],
    &[(1, 1514), (3, 1514)],
    &[(1, 60), (3, 60)],
    &[(3, 60), (1, 1514)],
    &[(1, 9000), (3, 60), (2, 1514)],
];

#[test]
fn a_workers_turns_are_shared_by_bytes_and_weights() {
    for senders in CASES {
        let bytes = run(senders, false, 4000, 4096);
        assert_shared(senders, &bytes);
    }
}

#[test]
fn a_lossless_receiver_is_shared_by_bytes_and_weights() {
    for senders in CASES {
        // Less than any sender could put in.
        let bytes = run(senders, true, 15_000, 16);
        assert_shared(senders, &bytes);
    }
}

#[test]
fn a_sender_alone_has_every_turn() {
    let alone = run(&[(1, 1514)], false, 1000, 4096);
    let beside_an_idle_one = {
        let config = SwitchConfig { max_ports: 8, ..Default::default() };
        let mut switch = Inline::new(config).unwrap();
        let heavy = Policy { weight: 1000, ..Policy::default() };
        let (_, _idle) = plug(&mut switch, 1, heavy);
        let (id, mut port) = plug(&mut switch, 2, Policy::default());
        let (_, mut receiver) = plug(&mut switch, TARGET, Policy::default());
        let frame = frame(2, 1514);
        for turn in 0..1000 {
            while port.send(1).push(&frame) {}
            port.flush().unwrap();
            switch.turn(Nanos(turn * 1000));
            receiver.receive(4096).for_each(drop);
            receiver.flush().unwrap();
        }
        switch.stats(id).in_bytes
    };
    assert_eq!(alone[0], beside_an_idle_one);
    assert_eq!(alone[0], 1000 * 64 * 1514, "a batch a turn");
}
