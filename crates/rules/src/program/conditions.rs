//! What a rule asks beside its boxes.

use core::net::IpAddr;

use frame::{Fragment, Protocol};

use super::{Context, END, Program};
use crate::cubes::kind;
use crate::packet::{Direction, Packet};

/// Whether the conditions hold, and whether all that were looked at are in the key of a cache.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub holds: bool,
    pub in_key: bool,
}

impl Program {
    /// Looks at the conditions at `at`, up to the first that does not hold.
    pub(super) fn hold(
        &self,
        at: u32,
        direction: Direction,
        packet: &Packet<'_>,
        context: &Context<'_>,
    ) -> Held {
        let (mut at, mut in_key) = (at as usize, true);
        loop {
            let kind = self.words[at];
            if kind == END {
                return Held { holds: true, in_key };
            }
            let operands = &self.words[at + 1..];
            let (holds, read) = match kind {
                kind::SIDE => {
                    in_key &= operands[4] == 0;
                    side(operands, packet, context)
                }
                kind::BPF => {
                    in_key = false;
                    (packet.passes(&self.filters[operands[0] as usize], direction), 1)
                }
                _ => {
                    in_key &= is_in_key(kind);
                    simple(kind, operands, packet)
                }
            };
            if !holds {
                return Held { holds, in_key };
            }
            at += 1 + read;
        }
    }
}

fn is_in_key(kind: u32) -> bool {
    !matches!(kind, kind::SOURCE_MAC | kind::DESTINATION_MAC | kind::LENGTH | kind::PROBABILITY)
}

/// Whether a condition holds, and how many operands it has.
fn simple(kind: u32, operands: &[u32], packet: &Packet<'_>) -> (bool, usize) {
    let facts = packet.facts;
    let mac = |mac: frame::Mac| mac.word() == u64::from(operands[1]) << 32 | u64::from(operands[0]);
    let within = |list: &[u32], value: u32| {
        list.as_chunks().0.iter().any(|[lo, hi]| (lo..=hi).contains(&&value))
    };
    match kind {
        kind::ME => {
            let me = if operands[0] == 1 { packet.sides.from_me } else { packet.sides.to_me };
            (me, 1)
        }
        kind::PORTS => {
            let words = 2 * operands[1] as usize;
            let port = facts.ports.map(|ports| if operands[0] == 0 { ports.0 } else { ports.1 });
            let list = &operands[2..2 + words];
            (port.is_some_and(|port| within(list, u32::from(port))), 2 + words)
        }
        kind::FLAGS => {
            let has = facts.protocol == Some(Protocol::TCP) && facts.ports.is_some();
            (has && u32::from(facts.tcp_flags) & operands[0] == operands[1], 2)
        }
        kind::ICMP => {
            let holds = packet
                .icmp_type()
                .is_some_and(|kind| operands[usize::from(kind) / 32] >> (kind % 32) & 1 != 0);
            (holds, 8)
        }
        kind::SOURCE_MAC => (mac(facts.source), 2),
        kind::DESTINATION_MAC => (mac(facts.destination), 2),
        kind::VLAN => {
            let words = 2 * operands[0] as usize;
            (within(&operands[1..1 + words], u32::from(packet.sides.vlan)), 1 + words)
        }
        kind::LENGTH => ((operands[0]..=operands[1]).contains(&packet.len), 2),
        kind::FRAGMENT => (facts.fragment != Fragment::Whole, 0),
        _ => (packet.draw < operands[0], 1),
    }
}

/// Whether an end of the packet is among hosts, and how many operands these have.
fn side(operands: &[u32], packet: &Packet<'_>, context: &Context<'_>) -> (bool, usize) {
    let [end, me, low, high, tables, ..] = *operands else { return (false, 0) };
    let source = end == 0;
    let sides = &packet.sides;
    let groups = u64::from(high) << 32 | u64::from(low);
    let tables = tables as usize;
    let v4_at = 5 + tables;
    let v4 = operands[v4_at] as usize;
    let v6_at = v4_at + 1 + 2 * v4;
    let v6 = operands[v6_at] as usize;
    let ip = packet.ip().map(|(from, to)| if source { from } else { to });
    let holds = me != 0 && (if source { sides.from_me } else { sides.to_me })
        || sides.groups & groups != 0
        || ip.is_some_and(|ip| {
            operands[5..5 + tables].iter().any(|table| context.tables.contains(*table, ip))
                || match ip {
                    IpAddr::V4(ip) => operands[v4_at + 1..][..2 * v4]
                        .as_chunks()
                        .0
                        .iter()
                        .any(|[base, mask]| ip.to_bits() & mask == *base),
                    IpAddr::V6(ip) => operands[v6_at + 1..][..5 * v6]
                        .as_chunks()
                        .0
                        .iter()
                        .any(|network| is_in(ip.to_bits(), network)),
                }
        });
    (holds, v6_at + 1 + 5 * v6)
}

fn is_in(ip: u128, [a, b, c, d, len]: &[u32; 5]) -> bool {
    let base = [a, b, c, d].iter().fold(0u128, |base, word| base << 32 | u128::from(**word));
    let mask = u128::MAX.checked_shl(128u32.saturating_sub(*len)).unwrap_or(0);
    ip & mask == base
}
