//! Rules between ports: which frames pass, what they teach, and what they count as.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use ::frame::Mac;
use ::rules::{Budget, Layout, Policy, Prefixes, Quota, Tables, compile, parse_lines};
use port::{DropReason, Nanos};
use shmem::Mapping;
use toklat_fabric::{Connections, Filters, PortFilter, Rules};

use super::harness::{Frame, Switch, frame, host, tagged};
use super::{T0, vlan};

const SYN: u8 = 2;
const ACK: u8 = 0x10;

fn connections() -> Arc<Connections> {
    let words = Layout::words(1024);
    let memory = Mapping::private(words * 8).unwrap();
    let memory: shmem::SharedSlice<AtomicU64> = memory.shared_slice(0, words).unwrap();
    Arc::new(Mutex::new(rules::Connections::open(memory, Quota(512), 7)))
}

/// Gives each of these ports a group of its own, with the port's number, and these lines.
fn filters(generation: u16, connections: &Arc<Connections>, groups: &[&[&str]]) -> Filters {
    let good = Prefixes::default();
    assert!(good.add("10.0.0.3".parse().unwrap()));
    let programs = groups.iter().map(|lines| {
        let mut policy = Policy::default();
        policy.groups.extend((0..8u8).map(|n| (format!("g{n}"), n)));
        policy.tables.insert("good".into(), 0);
        policy.push(&parse_lines(lines.iter().copied()).unwrap());
        compile(&policy, &Budget::new(&|| false)).unwrap()
    });
    let programs = programs.collect();
    let own = |id: usize| PortFilter { program: id as u16, groups: 1 << id, ips: Vec::new() };
    let ports = (0..groups.len()).map(|id| (!groups[id].is_empty()).then(|| own(id))).collect();
    Filters::new(generation, programs, Tables(vec![Arc::new(good)]), Arc::clone(connections), ports)
}

/// A switch whose ports have these rules; none for a port without rules. It has learned all hosts.
fn switch(groups: &[&[&str]]) -> (Switch, Arc<Connections>) {
    let mut switch = Switch::new(&vec![Rules::default(); groups.len()]);
    for id in 0..groups.len() as u16 {
        switch.send(id, vec![frame(Mac::BROADCAST, host(id), 0)], T0);
    }
    (0..groups.len() as u16).for_each(|id| drop(switch.take(id)));
    let connections = connections();
    switch.filter(filters(1, &connections, groups));
    (switch, connections)
}

/// An IPv4 packet between the hosts of two ports; TCP with flags.
fn tcp(from: u16, to: u16, ports: (u16, u16), flags: u8) -> Frame {
    let mut bytes = [host(to).octets(), host(from).octets()].concat();
    bytes.extend([8, 0, 0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0]);
    bytes.extend([10, 0, 0, from as u8, 10, 0, 0, to as u8]);
    bytes.extend([ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat());
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    bytes.resize(60, 0);
    bytes
}

/// True if the frame reaches the port.
fn reaches(switch: &mut Switch, from: u16, to: u16, frame: Frame, now: Nanos) -> bool {
    switch.send(from, vec![frame], now);
    !switch.take(to).is_empty()
}

const WEB: &[&str] = &["allow tcp from any to me 80", "allow tcp from group:g2 to me 22"];
const NONE: &[&str] = &["count arp"];

#[test]
fn what_no_rule_allows_is_denied_in_and_answers_pass() {
    let (mut switch, _) = switch(&[WEB, &[], NONE]);
    assert!(reaches(&mut switch, 1, 0, tcp(1, 0, (4000, 80), SYN), T0));
    assert!(!reaches(&mut switch, 1, 0, tcp(1, 0, (4000, 22), SYN), T0), "not of the group");
    assert_eq!(switch.dropped(1, DropReason::Denied), 1);
    assert!(reaches(&mut switch, 2, 0, tcp(2, 0, (4000, 22), SYN), T0), "of the group");
    assert!(reaches(&mut switch, 0, 2, tcp(0, 2, (22, 4000), SYN | ACK), T0), "an answer");
    assert!(!reaches(&mut switch, 0, 2, tcp(0, 2, (22, 4001), SYN | ACK), T0), "of nothing");
    assert!(!reaches(&mut switch, 1, 2, tcp(1, 2, (22, 4000), SYN | ACK), T0), "of another port");
    assert!(!reaches(&mut switch, 1, 2, frame(host(2), host(1), 0), T0), "another protocol");
    assert!(reaches(&mut switch, 2, 1, frame(host(1), host(2), 0), T0), "out is allowed");
    switch.assert_sums();
}

#[test]
fn a_denied_frame_teaches_nothing() {
    let (mut switch, _) = switch(&[&["deny all from any to any out"], &[]]);
    let mut frames = tcp(0, 1, (1, 2), SYN);
    frames[6..12].copy_from_slice(&host(9).octets());
    switch.send(0, vec![frames], T0);
    assert_eq!(switch.fdb.lookup(0, host(9).word()), None);
    assert_eq!(switch.dropped(0, DropReason::Denied), 1);
    switch.assert_sums();
}

#[test]
fn a_flood_reaches_only_ports_whose_rules_allow_it() {
    let arp = || {
        let mut arp = frame(Mac::BROADCAST, host(0), 0);
        arp[12..14].copy_from_slice(&[8, 6]);
        arp
    };
    let (mut switch, _) =
        switch(&[&[], &[], NONE, NONE, &["allow all from any to any"], &["deny arp"]]);
    let got = |switch: &Switch| [1, 2, 3, 4, 5].map(|id| switch.take(id).len());
    switch.send(0, vec![frame(Mac::BROADCAST, host(0), 0)], T0);
    assert_eq!(got(&switch), [1, 0, 0, 1, 0]);
    switch.send(0, vec![arp()], T0);
    assert_eq!(got(&switch), [1, 1, 1, 1, 0], "ARP passes a default");
    switch.send(0, vec![arp(), frame(Mac::BROADCAST, host(0), 0), tcp(0, 4, (1, 2), SYN)], T0);
    assert_eq!(got(&switch), [2, 1, 1, 3, 0]);
    assert_eq!(switch.dropped(0, DropReason::Denied), 0, "it had receivers");
    switch.assert_sums();
}

#[test]
fn a_flood_that_all_deny_is_denied() {
    let (mut switch, _) = switch(&[&[], NONE, NONE]);
    switch.send(0, vec![frame(Mac::BROADCAST, host(0), 0); 3], T0);
    assert_eq!(switch.dropped(0, DropReason::Denied), 3);
    switch.assert_sums();
}

#[test]
fn a_connection_goes_on_after_its_port_is_forgotten_and_nowhere_else() {
    let (mut switch, _) = switch(&[NONE, NONE, &["allow tcp from any to me 80"]]);
    assert!(reaches(&mut switch, 0, 2, tcp(0, 2, (4000, 80), SYN), T0));
    assert!(reaches(&mut switch, 2, 0, tcp(2, 0, (80, 4000), SYN | ACK), T0));
    switch.fdb.flush(None, None);
    switch.send(2, vec![tcp(2, 0, (80, 4000), ACK)], T0);
    assert_eq!([0, 1].map(|id| switch.take(id).len()), [1, 0]);
    switch.assert_sums();
}

#[test]
fn changed_rules_judge_each_connection_again() {
    let allow: [&[&str]; 2] = [NONE, &["allow tcp from any to me 80"]];
    let (mut switch, connections) = switch(&allow);
    assert!(reaches(&mut switch, 0, 1, tcp(0, 1, (4000, 80), SYN), T0));
    assert!(reaches(&mut switch, 1, 0, tcp(1, 0, (80, 4000), SYN | ACK), T0));
    switch.filter(filters(2, &connections, &allow));
    assert!(reaches(&mut switch, 1, 0, tcp(1, 0, (80, 4000), ACK), T0), "still allowed");
    switch.filter(filters(3, &connections, &[NONE, &["allow tcp from any to me 443"]]));
    assert!(!reaches(&mut switch, 1, 0, tcp(1, 0, (80, 4000), ACK), T0), "also by the answerer");
    assert!(!reaches(&mut switch, 0, 1, tcp(0, 1, (4000, 80), ACK), T0));
    assert!(connections.lock().unwrap().is_empty());
    switch.assert_sums();
}

#[test]
fn later_fragments_follow_and_hidden_headers_are_dropped() {
    let (mut switch, _) = switch(&[&[], &["allow udp from any to me 53"]]);
    let udp = |fragment: u16, port: u16| {
        let mut bytes = tcp(0, 1, (4000, port), 0);
        bytes[20..22].copy_from_slice(&fragment.to_be_bytes());
        bytes[23] = 17;
        bytes
    };
    assert!(!reaches(&mut switch, 0, 1, udp(9, 53), T0), "before the first");
    assert!(!reaches(&mut switch, 0, 1, udp(0x2000, 54), T0));
    assert!(!reaches(&mut switch, 0, 1, udp(9, 0), T0), "of a denied one");
    assert!(reaches(&mut switch, 0, 1, udp(0x2000, 53), T0));
    assert!(reaches(&mut switch, 0, 1, udp(9, 0), T0));
    let mut tiny = tcp(0, 1, (4000, 53), SYN);
    tiny[20..22].copy_from_slice(&1u16.to_be_bytes());
    assert!(!reaches(&mut switch, 0, 1, tiny, T0));
    assert_eq!(switch.dropped(0, DropReason::HiddenHeaders), 1);
    switch.assert_sums();
}

#[test]
fn tables_and_vlans_are_matched() {
    let lines: &[&str] = &["allow tcp from table:good to me", "allow tcp from any to me vlan 5"];
    let (mut switch, _) = switch(&[&[], lines, &[], &[]]);
    assert!(!reaches(&mut switch, 2, 1, tcp(2, 1, (1, 2), SYN), T0));
    assert!(reaches(&mut switch, 3, 1, tcp(3, 1, (1, 2), SYN), T0));
    switch.specs[1].rules.vlan = toklat_fabric::VlanMode::Access(vlan(5));
    switch.specs[2].rules.vlan =
        toklat_fabric::VlanMode::Trunk { allowed: vec![vlan(5)], native: None };
    switch.rebuild();
    assert!(reaches(&mut switch, 2, 1, tagged(tcp(2, 1, (1, 3), SYN), 5), T0));
    switch.assert_sums();
}

#[test]
fn a_batch_of_many_frames_is_judged_frame_by_frame() {
    let (mut switch, _) = switch(&[NONE, &["allow tcp from any to me 80-89"], &[]]);
    let frames = (0..60).map(|n| tcp(0, 1 + n % 2, (4000, 75 + n / 2), SYN)).collect();
    switch.send(0, frames, T0);
    let ports = |frames: Vec<Frame>| -> Vec<u16> {
        frames.iter().map(|f| u16::from_be_bytes([f[36], f[37]])).collect()
    };
    assert_eq!(ports(switch.take(1)), (80..=89).collect::<Vec<_>>());
    assert_eq!(ports(switch.take(2)), (75..105).collect::<Vec<_>>());
    assert_eq!(switch.dropped(0, DropReason::Denied), 20);
    switch.assert_sums();
}

/// An IPv6 packet between the hosts of two ports.
fn v6(from: u16, to: Mac, protocol: u8, payload: &[u8]) -> Frame {
    let mut bytes = [to.octets(), host(from).octets()].concat();
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, payload.len() as u8, protocol, 255]);
    bytes.extend([[0xfe, 0x80], [0, 0]].concat());
    bytes.extend([0; 11]);
    bytes.push(from as u8);
    bytes.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    bytes.extend(payload);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

/// Objective: without them no host finds its neighbours, routers and address.
#[test]
fn neighbour_discovery_and_dhcp_pass_a_default_deny() {
    let (mut switch, _) = switch(&[&[], NONE]);
    let icmp = |kind: u8| {
        v6(0, Mac::new([0x33, 0x33, 0, 0, 0, 1]), 58, &[[kind, 0], [0; 2]].concat().repeat(6))
    };
    for (kind, passes) in
        [(133, true), (134, true), (135, true), (136, true), (137, false), (128, false)]
    {
        assert_eq!(reaches(&mut switch, 0, 1, icmp(kind), T0), passes, "ICMPv6 {kind}");
    }
    let advertisement = v6(0, host(1), 58, &[136, 0, 0, 0, 0, 0, 0, 0]);
    assert!(reaches(&mut switch, 0, 1, advertisement, T0), "to one host");
    let udp =
        |from: u16, to: u16| [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 8, 0, 0]].concat();
    let dhcp = |from: u16, to: u16| {
        let mut bytes = tcp(0, 1, (from, to), 0);
        bytes[23] = 17;
        bytes
    };
    assert!(reaches(&mut switch, 0, 1, dhcp(67, 68), T0), "a server's answer");
    assert!(
        !reaches(&mut switch, 0, 1, dhcp(68, 67), T0),
        "a question: not every port has a server"
    );
    assert!(reaches(&mut switch, 0, 1, v6(0, host(1), 17, &udp(547, 546)), T0));
    assert!(!reaches(&mut switch, 0, 1, v6(0, host(1), 17, &udp(546, 547)), T0));
    switch.assert_sums();
}

/// Objective: a rule with `reset` refuses TCP as a closed port does, a thousand times a second at
/// most, and drops all else.
#[test]
fn reset_tells_senders_of_tcp_at_a_limited_rate() {
    let (mut switch, _) = switch(&[&[], &["reset ip from any to me"]]);
    let later = |us: u64| Nanos(T0.0 + us * 1000);
    assert!(!reaches(&mut switch, 0, 1, tcp(0, 1, (4000, 22), SYN), T0));
    let answers = switch.take(0);
    let [reset] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((&reset[..6], &reset[6..12]), (&host(0).octets()[..], &host(1).octets()[..]));
    assert_eq!((&reset[34..38], reset[47]), (&[0, 22, 15, 160][..], 0x14), "RST and ACK");
    assert_eq!(switch.dropped(0, DropReason::Denied), 1);
    assert!(!reaches(&mut switch, 0, 1, tcp(0, 1, (4001, 22), SYN), later(999)));
    assert!(switch.take(0).is_empty(), "within a millisecond");
    let mut udp = tcp(0, 1, (4000, 22), 0);
    udp[23] = 17;
    for (frame, answers) in [(udp, 0), (tcp(0, 1, (1, 22), 4), 0), (tcp(0, 1, (1, 22), ACK), 1)] {
        assert!(!reaches(&mut switch, 0, 1, frame, later(2000)));
        assert_eq!(switch.take(0).len(), answers);
    }
    switch.assert_sums();
}

/// Objective: of the frames that a rule with `log` matches, one a second of each port is kept;
/// others are counted.
#[test]
fn log_keeps_one_frame_a_second_of_each_port() {
    let lines: &[&str] = &["deny log tcp from any to me 22", "log tcp from any to me", "allow tcp"];
    let (mut switch, _) = switch(&[&[], lines, lines]);
    let log = |switch: &Switch| switch.ports.filters().unwrap().take_log();
    for port in [22, 23, 24] {
        switch.send(0, vec![tcp(0, 1, (4000, port), SYN)], T0);
    }
    switch.send(0, vec![tcp(0, 2, (4000, 80), SYN)], T0);
    let (list, others) = log(&switch);
    assert_eq!(others, 2);
    let seen: Vec<_> = list.iter().map(|l| (l.port, l.rule, l.allowed, l.ports)).collect();
    assert_eq!(seen, [(1, (1, 0), false, Some((4000, 22))), (2, (2, 1), true, Some((4000, 80)))]);
    switch.send(0, vec![tcp(0, 1, (4000, 22), SYN)], Nanos(T0.0 + Nanos::SECOND));
    assert_eq!(log(&switch).0.len(), 1);
    assert_eq!(log(&switch), (Vec::new(), 0));
}
