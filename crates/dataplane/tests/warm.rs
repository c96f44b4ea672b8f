//! The work of a warm switch for each batch: clients and forwarding allocate no memory.
#![allow(unsafe_code, reason = "an allocator that counts")]

#[path = "../../shmem/tests/allocations/mod.rs"]
mod allocations;

use allocations::allocations;
use frame::Mac;
use inline::Inline;
use netring::{Port, Region, RegionConfig};
use port::Nanos;
use toklat_dataplane::SwitchConfig;

const BATCH: usize = 64;

fn plug(switch: &mut Inline, mac: Mac) -> Port {
    let region = Region::private(RegionConfig::ports(1, 1, 512)).unwrap();
    let port = Port::inline(&region, "port", 1, 1, 512).unwrap();
    let policy = toklat_dataplane::config::Policy {
        macs: vec![mac],
        flood_limit: None,
        ..Default::default()
    };
    switch.add_rings("port", policy, &port.rings()).unwrap();
    port
}

/// Sends a batch from the first port to `to`, forwards it, and takes what the other ports received.
fn batch(switch: &mut Inline, ports: &mut [Port], to: Mac, len: usize, now: u64) -> usize {
    let mut header = [0; 14];
    header[..6].copy_from_slice(&to.octets());
    header[6..12].copy_from_slice(&Mac::local(0).octets());
    ports[0].send(BATCH).fill(BATCH, |window| {
        window.copy_in(&header);
        len
    });
    ports[0].flush().unwrap();
    for turn in 0..8 {
        switch.turn(Nanos(now + turn));
    }
    let mut taken = 0;
    for port in ports {
        taken += port.receive(usize::MAX).count();
        port.flush().unwrap();
    }
    taken
}

#[test]
fn a_warm_switch_allocates_nothing() {
    let config = SwitchConfig { max_ports: 8, ..Default::default() };
    let mut switch = Inline::new(config).unwrap();
    let mut ports: Vec<Port> = (0..4).map(|i| plug(&mut switch, Mac::local(i))).collect();
    // Unicast, unknown, broadcast; short and long frames.
    let kinds = [(Mac::local(1), 1), (Mac::local(9), 3), (Mac::BROADCAST, 3)];
    for round in 0..20 {
        let before = allocations();
        for (i, (to, copies)) in kinds.into_iter().enumerate() {
            for len in [64, 1500] {
                let now = round * 1_000_000 + i as u64 * 1000;
                let taken = batch(&mut switch, &mut ports, to, len, now);
                assert_eq!(taken, BATCH * copies, "{to}, {len} bytes");
            }
        }
        if round > 0 {
            assert_eq!(allocations() - before, 0, "round {round}");
        }
    }
}
