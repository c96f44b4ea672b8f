//! A port with rules, and frames to it.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use dataplane::SwitchConfig;
use dataplane::config::Policy;
use fabric::{Filters, PortFilter};
use frame::Mac;
use inline::Inline;
use netring::{Port, Region, RegionConfig};
use port::Nanos;
use rules::{Budget, Layout, Quota, Tables};
use shmem::Mapping;

use crate::Error;

const BATCH: usize = 64;
const LEN: usize = 64;
/// Ethernet, IPv4 and UDP.
const HEAD: usize = 42;
/// Flows enough that each frame is of another than those before it.
pub const NO_FLOW_TWICE: usize = 65_536;

/// Sends frames of `flows` flows to a port with `rules` rules, of which the last one allows them
/// without state; with none, a rule admits them as connections.
///
/// # Errors
/// A frame was lost.
pub fn run(rules: usize, flows: usize, frames: usize) -> Result<(), Error> {
    let mut switch = Inline::new(SwitchConfig { max_ports: 2, ..Default::default() })?;
    let region = Region::private(RegionConfig::ports(2, 1, 256))?;
    let mut ports = Vec::new();
    for mac in [1, 2].map(Mac::local) {
        let port = Port::inline(&region, "rules", 1, 1, 256)?;
        let policy = Policy { macs: vec![mac], flood_limit: None, ..Policy::default() };
        switch.add_rings("rules", policy, &port.rings())?;
        ports.push(port);
    }
    switch.set_filters(Some(Arc::new(filters(rules)?)));
    let [sender, receiver] = &mut ports[..] else { return Err("two ports".into()) };
    let (mut sent, mut received, mut turns) = (0, 0, 0);
    let mut head = head();
    while sent < frames || turns < 64 {
        turns = if sent < frames { 0 } else { turns + 1 };
        let wanted = (frames - sent).min(BATCH);
        let mut flow = sent;
        sent += sender.send(wanted).fill(wanted, |window| {
            head[34..36].copy_from_slice(&((flow % flows) as u16).to_be_bytes());
            flow += 1;
            window.copy_in(&head);
            LEN
        });
        sender.flush()?;
        switch.turn(Nanos(sent as u64));
        received += receiver.receive(usize::MAX).count();
        receiver.flush()?;
    }
    if received != frames {
        return Err(format!("{received} of {frames} frames arrived").into());
    }
    Ok(())
}

/// The receiver's rules.
fn filters(rules: usize) -> Result<Filters, Error> {
    let others = (1..rules)
        .map(|n| format!("deny udp from 10.{}.{}.0/24 to any {}", 1 + n / 250, n % 250, 1000 + n));
    let last = if rules == 0 {
        "allow udp from any to me 53"
    } else {
        "allow udp from any to me 53 stateless"
    };
    let lines: Vec<String> = others.chain([last.to_owned()]).collect();
    let mut policy = rules::Policy::default();
    policy.push(&rules::parse_lines(lines.iter().map(String::as_str))?);
    let program = rules::compile(&policy, &Budget::new(&|| false))?;
    let words = Layout::words(65_536);
    let memory = Mapping::private(words * 8)?;
    let memory = memory.shared_slice::<AtomicU64>(0, words).ok_or("no memory")?;
    let connections = rules::Connections::open(memory, Quota(16_384), 7);
    let port = PortFilter { program: 0, groups: 1, ips: Vec::new() };
    let connections = Arc::new(Mutex::new(connections));
    let ports = vec![None, Some(port)];
    Ok(Filters::new(1, vec![program], Tables::default(), connections, ports))
}

/// The headers of a packet between the two ports.
fn head() -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..6].copy_from_slice(&Mac::local(2).octets());
    head[6..12].copy_from_slice(&Mac::local(1).octets());
    let ip = [8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    head[12..34].copy_from_slice(&ip);
    head[36..42].copy_from_slice(&[0, 53, 0, 30, 0, 0]);
    head
}
