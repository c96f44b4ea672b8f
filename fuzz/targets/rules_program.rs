//! The words of a program: damaged ones are refused, or judge any frame without looking outside.
#![no_main]

use frame::Facts;
use libfuzzer_sys::fuzz_target;
use rules::{Context, Direction, Outcome, Packet, Program, Sides, Tables};

const RULES: &[&str] = &[
    "allow tcp from 10.0.0.0/8,me to any 22,80-90 flags syn",
    "log udp vlan 5",
    "skipto x ip6 length 60-90",
    "deny arp",
    "count ip bpf \"udp\"",
    "x: allow icmp icmptypes 8 limit 5pps",
    "deny all",
];

/// A program to damage.
fn words() -> Vec<u32> {
    let mut policy = rules::Policy::default();
    let udp = "6,40 0 0 12,21 0 3 2048,48 0 0 23,21 0 1 17,6 0 0 65535,6 0 0 0";
    policy.filters.insert("udp".into(), udp.parse().expect("a filter"));
    policy.push(&rules::parse_lines(RULES.iter().copied()).expect("rules"));
    let compiled = rules::compile(&policy, &rules::Budget::new(&|| false));
    compiled.expect("a program").words().to_vec()
}

fuzz_target!(|bytes: &[u8]| {
    let (damage, frame) = bytes.split_at(bytes.len().min(24));
    let mut words = words();
    for change in damage.chunks_exact(6) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % words.len();
        words[at] ^= u32::from_le_bytes([change[2], change[3], change[4], change[5]]);
    }
    let Ok(program) = Program::load(words.into()) else { return };
    let head = &frame[..frame.len().min(128)];
    let Some(facts) = Facts::of(head) else { return };
    let sides = Sides { vlan: 5, ..Sides::default() };
    let packet = Packet { facts: &facts, head, len: frame.len() as u32, sides, draw: 7 };
    let context = Context { tables: &Tables::default(), now: 0, hits: &[], limits: &[] };
    for direction in [Direction::In, Direction::Out] {
        let mut outcome = [Outcome::DEFAULT];
        program.judge(direction, &[packet], &mut outcome, &context, None);
    }
});
