//! Rules as boxes: what a rule matches of addresses, ports and protocol is a product of ranges. All
//! else is a condition, which is looked at after the box.

use core::net::IpAddr;

use frame::EtherType;

use crate::budget::CompileError;
use crate::packet::Direction;
use crate::policy::Policy;
use crate::rule::{Hosts, Matches, Prefix, Protocols, Rule, Side};

/// The most numbers of a key.
pub(crate) const MOST: usize = 11;
/// The port of a packet without ports, which no range contains.
pub(crate) const NO_PORT: u32 = 0x1_0000;
/// The most boxes of a rule. Longer lists become conditions.
const BOXES: usize = 64;

/// The kinds of packets, which have programs of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4. The key is source, destination, source port, destination port, protocol.
    V4,
    /// IPv6. The key is the same, with four words an address.
    V6,
    /// All else. The key is the EtherType.
    Other,
}

/// A product of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cube {
    pub lo: [u32; MOST],
    pub hi: [u32; MOST],
    /// The number of its rule.
    pub rule: u32,
    /// True if no later rule sees what is in the box.
    pub sure: bool,
}

impl Family {
    pub const ALL: [Self; 3] = [Self::V4, Self::V6, Self::Other];

    /// How many numbers a key has.
    pub fn dims(self) -> usize {
        match self {
            Self::V4 => 5,
            Self::V6 => MOST,
            Self::Other => 1,
        }
    }

    fn has(self, prefix: Prefix) -> bool {
        prefix.ip().is_ipv4() == (self == Self::V4)
    }

    /// Words of an address.
    fn words(self) -> usize {
        if self == Self::V4 { 1 } else { 4 }
    }

    /// The whole space.
    pub fn space(self) -> Cube {
        let mut space = Cube { lo: [0; MOST], hi: [u32::MAX; MOST], rule: 0, sure: false };
        let dims = self.dims();
        if self == Self::Other {
            space.hi[0] = 0xffff;
        } else {
            space.hi[dims - 3..dims].copy_from_slice(&[NO_PORT, NO_PORT, 0xff]);
        }
        space
    }
}

/// What a rule matches in one direction and family: its boxes, and conditions in words.
pub(crate) struct Shape {
    pub cubes: Vec<Cube>,
    pub conditions: Vec<u32>,
}

/// Kinds of conditions. Each is followed by its operands.
pub(crate) mod kind {
    /// 1 if the source is the port, 2 if the destination is.
    pub const ME: u32 = 1;
    /// An end, then what is in [`super::side_words`].
    pub const SIDE: u32 = 2;
    /// An end, a count, that many ranges.
    pub const PORTS: u32 = 3;
    pub const FLAGS: u32 = 4;
    /// A bitmap of 8 words.
    pub const ICMP: u32 = 5;
    pub const SOURCE_MAC: u32 = 6;
    pub const DESTINATION_MAC: u32 = 7;
    pub const VLAN: u32 = 8;
    pub const LENGTH: u32 = 9;
    pub const FRAGMENT: u32 = 10;
    pub const PROBABILITY: u32 = 11;
    /// A count of instructions, two words each.
    pub const BPF: u32 = 12;
}

/// The shape of rule `at`; `None` if it matches nothing there.
pub(crate) fn shape(
    policy: &Policy,
    at: usize,
    direction: Direction,
    family: Family,
) -> Result<Option<Shape>, CompileError> {
    let rule = &policy.rules[at];
    let matches = &rule.matches;
    if !matches.applies(direction) || !is_of(matches, family) {
        return Ok(None);
    }
    let mut conditions = Vec::new();
    let mut cubes = vec![family.space()];
    if family == Family::Other {
        let kind = matches.ethertype.map(u32::from);
        let arp = (matches.protocols == Protocols::Arp).then_some(u32::from(EtherType::ARP.0));
        if let Some(kind) = arp.or(kind) {
            (cubes[0].lo[0], cubes[0].hi[0]) = (kind, kind);
        }
    } else if let Protocols::Above(protocol) = matches.protocols {
        let last = family.dims() - 1;
        (cubes[0].lo[last], cubes[0].hi[last]) = (u32::from(protocol.0), u32::from(protocol.0));
    }
    for (end, side) in [(0, &matches.from), (1, &matches.to)] {
        if !add_hosts(policy, &mut cubes, &mut conditions, family, end, &side.hosts)? {
            return Ok(None);
        }
    }
    for (end, side) in [(0, &matches.from), (1, &matches.to)] {
        add_ports(&mut cubes, &mut conditions, family, end, side);
    }
    add_rest(policy, rule, &mut conditions)?;
    for cube in &mut cubes {
        cube.rule = at as u32;
        cube.sure = rule.ends() && conditions.is_empty();
    }
    Ok(Some(Shape { cubes, conditions }))
}

/// Whether the rule can match packets of this family.
fn is_of(matches: &Matches, family: Family) -> bool {
    let own = match family {
        Family::V4 => EtherType::IPV4.0,
        Family::V6 => EtherType::IPV6.0,
        Family::Other => {
            let arp = matches.protocols == Protocols::Arp;
            let ip = !matches!(matches.protocols, Protocols::All | Protocols::Arp);
            let another = arp && matches.ethertype.is_some_and(|kind| kind != EtherType::ARP.0);
            return !ip && !matches.needs_ip() && !matches.fragment && !another;
        }
    };
    let protocols = match matches.protocols {
        Protocols::Ipv4 => family == Family::V4,
        Protocols::Ipv6 => family == Family::V6,
        Protocols::Arp => false,
        _ => true,
    };
    protocols && matches.ethertype.is_none_or(|kind| kind == own)
}

/// Narrows the boxes to the hosts, or adds a condition. False if no packet of the family fits.
fn add_hosts(
    policy: &Policy,
    cubes: &mut Vec<Cube>,
    conditions: &mut Vec<u32>,
    family: Family,
    end: usize,
    hosts: &Hosts,
) -> Result<bool, CompileError> {
    if hosts.is_any() {
        return Ok(true);
    }
    let open = hosts.me || !hosts.tables.is_empty() || !hosts.groups.is_empty();
    let fitting: Vec<Prefix> = hosts.prefixes.iter().copied().filter(|p| family.has(*p)).collect();
    if open && hosts.prefixes.is_empty() && hosts.tables.is_empty() && hosts.groups.is_empty() {
        conditions.extend([kind::ME, 1 << end]);
    } else if open || fitting.len() > BOXES || fitting.len() * cubes.len() > BOXES {
        conditions.extend([kind::SIDE, end as u32]);
        side_words(policy, hosts, conditions)?;
    } else {
        *cubes = product(cubes, &fitting, |cube, prefix| {
            let words = family.words();
            for (i, (lo, hi)) in prefix_ranges(*prefix).into_iter().enumerate().take(words) {
                (cube.lo[end * words + i], cube.hi[end * words + i]) = (lo, hi);
            }
        });
    }
    Ok(!cubes.is_empty())
}

fn add_ports(
    cubes: &mut Vec<Cube>,
    conditions: &mut Vec<u32>,
    family: Family,
    end: usize,
    side: &Side,
) {
    if side.ports.is_empty() {
        return;
    }
    if side.ports.len() * cubes.len() > BOXES {
        conditions.extend([kind::PORTS, end as u32, side.ports.len() as u32]);
        conditions.extend(side.ports.iter().flat_map(|(lo, hi)| [u32::from(*lo), u32::from(*hi)]));
        return;
    }
    let at = family.dims() - 3 + end;
    *cubes = product(cubes, &side.ports, |cube, (lo, hi)| {
        (cube.lo[at], cube.hi[at]) = (u32::from(*lo), u32::from(*hi));
    });
}

fn product<T>(cubes: &[Cube], parts: &[T], narrow: impl Fn(&mut Cube, &T)) -> Vec<Cube> {
    let each = cubes.iter().flat_map(|cube| parts.iter().map(move |part| (*cube, part)));
    each.map(|(mut cube, part)| {
        narrow(&mut cube, part);
        cube
    })
    .collect()
}

/// The ranges of a prefix's words: the first word alone for IPv4.
fn prefix_ranges(prefix: Prefix) -> [(u32, u32); 4] {
    let base = match prefix.ip() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let len = u32::from(prefix.bits());
    let last = base | u128::MAX.checked_shr(len).unwrap_or(0);
    [96, 64, 32, 0].map(|shift| ((base >> shift) as u32, (last >> shift) as u32))
}

/// Whether it is the port, the groups in two words, a count and that many tables, a count and that
/// many IPv4 networks (address, mask), a count and that many IPv6 networks (address, length).
fn side_words(policy: &Policy, hosts: &Hosts, to: &mut Vec<u32>) -> Result<(), CompileError> {
    let mut groups = 0;
    for name in &hosts.groups {
        match policy.group_bit(name) {
            0 => return Err(CompileError::Group(name.clone())),
            bit => groups |= bit,
        }
    }
    to.extend([u32::from(hosts.me), groups as u32, (groups >> 32) as u32]);
    to.push(hosts.tables.len() as u32);
    for name in &hosts.tables {
        let table = policy.tables.get(name).ok_or_else(|| CompileError::Table(name.clone()))?;
        to.push(*table);
    }
    let (v4, v6): (Vec<Prefix>, Vec<Prefix>) =
        hosts.prefixes.iter().partition(|p| p.ip().is_ipv4());
    to.push(v4.len() as u32);
    for prefix in v4 {
        if let IpAddr::V4(ip) = prefix.ip() {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.bits())).unwrap_or(0);
            to.extend([ip.to_bits(), mask]);
        }
    }
    to.push(v6.len() as u32);
    for prefix in v6 {
        if let IpAddr::V6(ip) = prefix.ip() {
            to.extend([96, 64, 32, 0].map(|shift| (ip.to_bits() >> shift) as u32));
            to.push(u32::from(prefix.bits()));
        }
    }
    Ok(())
}

fn add_rest(policy: &Policy, rule: &Rule, to: &mut Vec<u32>) -> Result<(), CompileError> {
    let matches = &rule.matches;
    let mac = |mac: frame::Mac| [mac.word() as u32, (mac.word() >> 32) as u32];
    if let Some((mask, set)) = matches.flags {
        to.extend([kind::FLAGS, u32::from(mask), u32::from(set)]);
    }
    if !matches.icmp_types.is_empty() {
        let mut bits = [0u32; 8];
        matches.icmp_types.iter().for_each(|t| bits[usize::from(*t) / 32] |= 1 << (t % 32));
        to.push(kind::ICMP);
        to.extend(bits);
    }
    if let Some(source) = matches.source_mac {
        to.push(kind::SOURCE_MAC);
        to.extend(mac(source));
    }
    if let Some(destination) = matches.destination_mac {
        to.push(kind::DESTINATION_MAC);
        to.extend(mac(destination));
    }
    if !matches.vlans.is_empty() {
        to.extend([kind::VLAN, matches.vlans.len() as u32]);
        to.extend(matches.vlans.iter().flat_map(|(lo, hi)| [u32::from(*lo), u32::from(*hi)]));
    }
    if let Some((least, most)) = matches.length {
        to.extend([kind::LENGTH, least, most]);
    }
    if matches.fragment {
        to.push(kind::FRAGMENT);
    }
    if let Some(text) = &matches.bpf {
        let filter = policy.filter(text).ok_or_else(|| CompileError::Bpf(text.clone()))?;
        to.extend([kind::BPF, filter]);
    }
    // Last, so that the draw is the share of those that match otherwise.
    if let Some(share) = matches.probability {
        to.extend([kind::PROBABILITY, share]);
    }
    Ok(())
}
