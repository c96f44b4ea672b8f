//! The work of a warm switch for each batch: clients and forwarding allocate no memory.
#![allow(unsafe_code, reason = "an allocator that counts")]

#[path = "../../shmem/tests/allocations/mod.rs"]
mod allocations;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

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

/// Sends a batch of UDP from the first port to `to`, forwards it, and takes what the other ports
/// received.
fn batch(switch: &mut Inline, ports: &mut [Port], to: Mac, len: usize, now: u64) -> usize {
    let mut header = [0; 42];
    header[..6].copy_from_slice(&to.octets());
    header[6..12].copy_from_slice(&Mac::local(0).octets());
    let ip = [8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    header[12..34].copy_from_slice(&ip);
    header[34..38].copy_from_slice(&[15, 160, 0, 53]);
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

/// Gives all ports but the first these rules.
fn fence(switch: &mut Inline, lines: &[&str]) {
    let mut policy = rules::Policy::default();
    policy.push(&rules::parse_lines(lines.iter().copied()).unwrap());
    let program = rules::compile(&policy, &rules::Budget::new(&|| false)).unwrap();
    let words = rules::Layout::words(1024);
    let memory = shmem::Mapping::private(words * 8).unwrap();
    let memory = memory.shared_slice::<AtomicU64>(0, words).unwrap();
    let connections = rules::Connections::open(memory, rules::Quota(256), 7);
    let own = || fabric::PortFilter { program: 0, groups: 1, ips: Vec::new() };
    let ports = vec![None, Some(own()), Some(own()), Some(own())];
    let connections = Arc::new(Mutex::new(connections));
    let tables = rules::Tables::default();
    let filters = fabric::Filters::new(1, vec![program], tables, connections, ports);
    switch.set_filters(Some(Arc::new(filters)));
}

#[test]
fn a_warm_switch_allocates_nothing() {
    batches_allocate_nothing(None);
}

/// Objective: with rules, too, whether they make connections or not.
#[test]
fn a_warm_switch_with_rules_allocates_nothing() {
    let others: Vec<String> = (0..40).map(|n| format!("deny tcp from any to me {n}")).collect();
    for last in ["allow udp from any to me 53", "allow all from any to me stateless"] {
        let lines: Vec<&str> = others.iter().map(String::as_str).chain([last]).collect();
        batches_allocate_nothing(Some(&lines));
    }
}

fn batches_allocate_nothing(rules: Option<&[&str]>) {
    let config = SwitchConfig { max_ports: 8, ..Default::default() };
    let mut switch = Inline::new(config).unwrap();
    let mut ports: Vec<Port> = (0..4).map(|i| plug(&mut switch, Mac::local(i))).collect();
    rules.into_iter().for_each(|lines| fence(&mut switch, lines));
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
