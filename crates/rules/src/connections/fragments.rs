//! First fragments that were admitted, so that the later ones of their packets are, too. Each port
//! has a part of the table, so that none pushes out what another has sent.

use frame::{EtherType, Facts};

use crate::packet::Packet;

/// Entries of a port, and ports with entries of their own.
const SLOTS: usize = 64;
const PARTS: usize = 64;
/// Seconds after which the other fragments no longer come (RFC 791, 3.2).
const SECONDS: u32 = 30;

/// What the fragments of a packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    from: u128,
    to: u128,
    id: u32,
    vlan: u16,
    protocol: u8,
    sender: u32,
}

#[derive(Debug)]
pub(super) struct Fragments {
    key: u64,
    /// The packet, the port it goes to, and when it is forgotten. Made with the first fragment.
    slots: Vec<Option<(Name, u32, u32)>>,
}

impl Fragments {
    pub fn new(key: u64) -> Self {
        Self { key, slots: Vec::new() }
    }

    fn place(&self, name: &Name) -> usize {
        let part = super::mix(self.key, u64::from(name.sender)) as usize % PARTS;
        let words =
            [(name.from >> 64) as u64, name.from as u64, (name.to >> 64) as u64, name.to as u64];
        let hash =
            words.iter().fold(self.key ^ u64::from(name.id), |hash, word| super::mix(hash, *word));
        part * SLOTS + hash as usize % SLOTS
    }

    pub fn note(&mut self, packet: &Packet<'_>, from: u32, to: u32, now: u32) {
        let Some(name) = name(packet, from) else { return };
        if self.slots.is_empty() {
            self.slots = vec![None; SLOTS * PARTS];
        }
        let place = self.place(&name);
        self.slots[place] = Some((name, to, now.saturating_add(SECONDS)));
    }

    pub fn has(&self, packet: &Packet<'_>, from: u32, to: Option<u32>, now: u32) -> bool {
        let Some(name) = name(packet, from).filter(|_| !self.slots.is_empty()) else {
            return false;
        };
        self.slots[self.place(&name)].is_some_and(|(own, receiver, until)| {
            own == name && until > now && to.is_none_or(|to| to == receiver || receiver == u32::MAX)
        })
    }
}

fn name(packet: &Packet<'_>, sender: u32) -> Option<Name> {
    let facts: &Facts = packet.facts;
    let (from, to) = facts.ip?;
    let number = |ip: core::net::IpAddr| match ip {
        core::net::IpAddr::V4(ip) => u128::from(ip.to_bits()),
        core::net::IpAddr::V6(ip) => ip.to_bits(),
    };
    // Of IPv6 packets, fragments may differ in it (RFC 8200, 4.5).
    let of_v4 = facts.ethertype == EtherType::IPV4;
    let protocol = facts.protocol.filter(|_| of_v4).map_or(0, |protocol| protocol.0);
    let (from, to) = (number(from), number(to));
    Some(Name { from, to, id: facts.fragment_id, vlan: packet.sides.vlan, protocol, sender })
}
