//! A policy: the rules of the groups that a port names, in their order.

use std::collections::BTreeMap;

use frame::{EtherType, Protocol, bpf};

use crate::packet::{Direction, Packet};
use crate::rule::{Action, Rule};

/// The rules of the groups of a port, and what their names mean.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// Where each group ends in `rules`, in order. Labels are looked for within a group.
    pub ends: Vec<usize>,
    /// The numbers of groups, at most 63, by name.
    pub groups: BTreeMap<String, u8>,
    /// The numbers of tables by name.
    pub tables: BTreeMap<String, u32>,
    /// The compiled expressions of libpcap, by their text.
    pub filters: BTreeMap<String, bpf::Program>,
}

impl Policy {
    /// The most groups of a switch.
    pub const MAX_GROUPS: usize = 64;

    /// The bit of a group in [`Sides::groups`](crate::Sides::groups); 0 for an unknown group.
    #[must_use]
    pub fn group_bit(&self, name: &str) -> u64 {
        self.groups.get(name).map_or(0, |number| 1 << (number & 63))
    }

    /// The number of a compiled expression.
    pub(crate) fn filter(&self, text: &str) -> Option<u32> {
        self.filters.keys().position(|known| known == text).map(|at| at as u32)
    }

    /// The number of a table; an unknown table has no addresses.
    #[must_use]
    pub fn table(&self, name: &str) -> u32 {
        self.tables.get(name).copied().unwrap_or(u32::MAX)
    }

    /// Adds a group's rules.
    pub fn push(&mut self, rules: &[Rule]) {
        self.rules.extend_from_slice(rules);
        self.ends.push(self.rules.len());
    }

    /// Where rule `at` leads: the rule with its label, which is a later one of the same group, or
    /// the next.
    #[must_use]
    pub fn target(&self, at: usize) -> usize {
        let Some(Action::Skip(label)) = self.rules.get(at).map(|rule| &rule.action) else {
            return at + 1;
        };
        let end = self.ends.iter().copied().find(|end| *end > at).unwrap_or(self.rules.len());
        let found =
            self.rules[at + 1..end].iter().position(|rule| rule.label.as_ref() == Some(label));
        found.map_or(end, |found| at + 1 + found)
    }
}

/// True for messages that pass although the default is to deny: without them no host finds its
/// neighbours, routers and address. ARP (RFC 826), neighbour discovery (RFC 4861) and the messages
/// between a DHCP client and its server (RFC 2131, RFC 8415).
#[must_use]
pub fn is_housekeeping(packet: &Packet<'_>, direction: Direction) -> bool {
    const DHCP: [(u16, u16); 2] = [(68, 67), (546, 547)];
    let facts = packet.facts;
    match (facts.ethertype, facts.protocol) {
        (EtherType::ARP, _) => true,
        (EtherType::IPV6, Some(Protocol::ICMPV6)) => {
            packet.icmp_type().is_some_and(|kind| (133..=136).contains(&kind))
        }
        (_, Some(Protocol::UDP)) => facts.ports.is_some_and(|ports| match direction {
            Direction::Out => DHCP.contains(&ports),
            Direction::In => DHCP.contains(&(ports.1, ports.0)),
        }),
        _ => false,
    }
}
