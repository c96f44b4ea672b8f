//! Verdicts on packets that came before: one for each exact key, no wildcards, in a table of fixed
//! size. Where a key goes cannot be foreseen.

use crate::packet::Packet;

/// Words of an entry: the key, the rule, and whether it is in use.
const ENTRY: usize = 16;
const KEY: usize = 14;
/// The number of entries.
const ENTRIES: usize = 16_384;

/// What a verdict depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u32; KEY]);

/// The verdicts of a worker.
#[derive(Clone, Debug)]
pub struct Cache {
    key: u64,
    entries: Vec<[u32; ENTRY]>,
}

impl Key {
    /// The key of a packet for the rules that `stamp` names. `key` is its addresses, ports and
    /// protocol.
    #[inline]
    pub fn of<const D: usize>(key: &[u32; D], packet: &Packet<'_>, stamp: u32) -> Self {
        let (sides, facts) = (&packet.sides, packet.facts);
        let mut words = [0; KEY];
        let (addresses, rest) = key.split_at(D.saturating_sub(3));
        words[..addresses.len()].copy_from_slice(addresses);
        let icmp = packet.icmp_type().map_or(0, |kind| u32::from(kind) | 0x100);
        words[8] = (rest[0] & 0xffff) << 16 | rest[1] & 0xffff;
        words[9] = rest[2] | u32::from(facts.tcp_flags) << 8 | icmp << 16 | (rest[0] >> 16) << 25;
        words[10] = u32::from(sides.vlan)
            | u32::from(sides.from_me) << 16
            | u32::from(sides.to_me) << 17
            | (facts.fragment as u32) << 18;
        words[11] = sides.groups as u32;
        words[12] = (sides.groups >> 32) as u32;
        words[13] = stamp;
        Self(words)
    }
}

impl Cache {
    /// An empty cache. `key` is a random number.
    #[must_use]
    pub fn new(key: u64) -> Self {
        Self { key, entries: vec![[0; ENTRY]; ENTRIES] }
    }

    #[inline]
    fn place(&self, key: &Key) -> usize {
        let hash = key.0.as_chunks().0.iter().fold(self.key, |hash, [a, b]| {
            crate::connections::mix(hash, u64::from(*a) << 32 | u64::from(*b))
        });
        (hash >> 32) as usize % ENTRIES
    }

    /// The rule that decided about such a packet.
    #[inline]
    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        let place = self.place(key);
        let found = [place, place ^ 1].into_iter().map(|place| &self.entries[place]);
        let mut found = found.filter(|entry| entry[15] != 0 && entry[..KEY] == key.0);
        found.next().map(|entry| entry[14])
    }

    /// Remembers it in the place of another one.
    #[inline]
    pub(crate) fn keep(&mut self, key: &Key, rule: u32) {
        let place = self.place(key);
        self.entries[place ^ 1] = self.entries[place];
        let entry = &mut self.entries[place];
        entry[..KEY].copy_from_slice(&key.0);
        (entry[14], entry[15]) = (rule, 1);
    }
}
