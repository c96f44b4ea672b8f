//! The meaning of rules: a list, walked from its start. Compiled programs are tested against it.

use core::net::IpAddr;

use frame::{EtherType, Fragment};

use crate::packet::{Direction, Packet};
use crate::policy::Policy;
use crate::prefixes::Tables;
use crate::rule::{Action, Hosts, Matches, Protocols, Rule, Side};

/// The rule that decides about a packet: its number in the policy. `None` if the default does.
/// Rules whose limit is exceeded count as matching.
#[must_use]
pub fn first_match(
    policy: &Policy,
    tables: &Tables,
    direction: Direction,
    packet: &Packet<'_>,
) -> Option<usize> {
    let mut at = 0;
    while let Some(rule) = policy.rules.get(at) {
        at = match (fits(policy, tables, rule, direction, packet), &rule.action) {
            (false, _) | (true, Action::Next) => at + 1,
            (true, Action::Allow | Action::Deny | Action::Reset) => return Some(at),
            (true, Action::Skip(_)) => policy.target(at),
        };
    }
    None
}

fn fits(
    policy: &Policy,
    tables: &Tables,
    rule: &Rule,
    direction: Direction,
    packet: &Packet<'_>,
) -> bool {
    let (matches, facts) = (&rule.matches, packet.facts);
    let ports = facts.ports;
    let [from, to] = [facts.ip.map(|ip| ip.0), facts.ip.map(|ip| ip.1)];
    let side = |side: &Side, ip, port: Option<u16>, me| {
        has_host(policy, tables, &side.hosts, ip, me, packet.sides.groups)
            && (side.ports.is_empty()
                || port.is_some_and(|port| side.ports.iter().any(|r| (r.0..=r.1).contains(&port))))
    };
    matches.applies(direction)
        && is_of(matches.protocols, packet)
        && side(&matches.from, from, ports.map(|ports| ports.0), packet.sides.from_me)
        && side(&matches.to, to, ports.map(|ports| ports.1), packet.sides.to_me)
        && fits_rest(policy, matches, direction, packet)
}

fn is_of(protocols: Protocols, packet: &Packet<'_>) -> bool {
    let facts = packet.facts;
    match protocols {
        Protocols::All => true,
        Protocols::Ip => facts.ip.is_some(),
        Protocols::Ipv4 => matches!(facts.ip, Some((IpAddr::V4(_), _))),
        Protocols::Ipv6 => matches!(facts.ip, Some((IpAddr::V6(_), _))),
        Protocols::Arp => facts.ethertype == EtherType::ARP,
        Protocols::Above(protocol) => facts.protocol == Some(protocol),
    }
}

fn has_host(
    policy: &Policy,
    tables: &Tables,
    hosts: &Hosts,
    ip: Option<IpAddr>,
    me: bool,
    groups: u64,
) -> bool {
    hosts.is_any()
        || hosts.me && me
        || hosts.groups.iter().any(|name| groups & policy.group_bit(name) != 0)
        || ip.is_some_and(|ip| {
            hosts.prefixes.iter().any(|prefix| prefix.contains(ip))
                || hosts.tables.iter().any(|name| tables.contains(policy.table(name), ip))
        })
}

fn fits_rest(
    policy: &Policy,
    matches: &Matches,
    direction: Direction,
    packet: &Packet<'_>,
) -> bool {
    let facts = packet.facts;
    let vlan = packet.sides.vlan;
    matches.flags.is_none_or(|(mask, set)| {
        facts.protocol == Some(frame::Protocol::TCP)
            && facts.ports.is_some()
            && facts.tcp_flags & mask == set
    }) && (matches.icmp_types.is_empty()
        || packet.icmp_type().is_some_and(|kind| matches.icmp_types.contains(&kind)))
        && matches.source_mac.is_none_or(|mac| facts.source == mac)
        && matches.destination_mac.is_none_or(|mac| facts.destination == mac)
        && (matches.vlans.is_empty() || matches.vlans.iter().any(|r| (r.0..=r.1).contains(&vlan)))
        && matches.ethertype.is_none_or(|kind| facts.ethertype.0 == kind)
        && matches.length.is_none_or(|(least, most)| (least..=most).contains(&packet.len))
        && (!matches.fragment || facts.fragment != Fragment::Whole)
        && matches.probability.is_none_or(|share| packet.draw < share)
        && matches.bpf.as_ref().is_none_or(|text| {
            policy.filters.get(text).is_some_and(|filter| packet.passes(filter, direction))
        })
}
