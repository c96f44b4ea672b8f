//! Reassembly of IPv4 packets (RFC 791, 3.2; RFC 815) within a budget.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::Ipv4Addr;

use frame::Ipv4;
use frame::checksum::checksum;
use tcp::Nanos;

/// Limit of the memory of all fragments.
const MOST: usize = 256 << 10;
/// Memory that a fragment takes beyond its bytes.
const OVERHEAD: usize = 64;
/// How long the first fragment that came waits for the others (RFC 1122, 3.3.2).
const PATIENCE: u64 = 30 * Nanos::SECOND;
/// The longest payload of a packet.
const LONGEST: usize = 65_535 - Ipv4::LEN;
/// The bits of the field with flags and offset.
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// Source, destination, protocol and identification.
type Key = (Ipv4Addr, Ipv4Addr, u8, u16);

/// A packet of which a part is there.
#[derive(Debug, Default)]
struct Partial {
    serial: u64,
    since: Nanos,
    /// The header of the first fragment.
    header: Option<Box<[u8]>>,
    pieces: BTreeMap<usize, Box<[u8]>>,
    /// Bytes of the pieces.
    len: usize,
    /// The length of the whole payload, once the last fragment is there.
    end: Option<usize>,
}

impl Partial {
    /// Memory that it takes.
    fn cost(&self) -> usize {
        self.len + OVERHEAD * (1 + self.pieces.len())
    }
}

/// The packets that are not whole.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    partials: HashMap<Key, Partial>,
    /// Oldest first. An entry whose serial number differs is stale.
    order: VecDeque<(Key, u64)>,
    bytes: usize,
    serial: u64,
}

/// What a fragment leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Others are missing.
    Kept,
    /// The packet is whole.
    Whole(Vec<u8>),
    /// The fragment is malformed, or overlaps others, so what there is of its packet is gone, too.
    Dropped,
}

impl Fragments {
    /// Returns the memory that fragments take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a fragment, whose header's checksum is right. Returns also how many packets have given
    /// way to it.
    pub fn insert(&mut self, packet: &[u8], now: Nanos) -> (Outcome, usize) {
        let mut gone = self.expire(now);
        let Some((ip, payload)) = Ipv4::parse(packet) else { return (Outcome::Dropped, gone) };
        let field = u16::from_be_bytes([packet[6], packet[7]]);
        let (offset, more) = (usize::from(field & OFFSET) * 8, field & MORE != 0);
        let end = offset + payload.len();
        let is_odd = more && payload.len() % 8 != 0;
        if payload.is_empty() || is_odd || end > LONGEST {
            return (Outcome::Dropped, gone);
        }
        let key = (ip.source(), ip.destination(), ip.protocol().0, ip.id());
        let need = payload.len() + 2 * OVERHEAD;
        while self.bytes + need > MOST {
            match self.evict() {
                true => gone += 1,
                false => return (Outcome::Dropped, gone),
            }
        }
        let header = (offset == 0).then(|| packet[..ip.header_len()].into());
        (self.add(key, (offset, payload, more), header, now), gone)
    }

    /// Makes an entry for a packet, if there is none.
    fn begin(&mut self, key: Key, now: Nanos) {
        if self.partials.contains_key(&key) {
            return;
        }
        self.serial += 1;
        let serial = self.serial;
        let partial = Partial { serial, since: now, ..Partial::default() };
        self.order.push_back((key, serial));
        self.bytes += partial.cost();
        self.partials.insert(key, partial);
    }

    fn add(
        &mut self,
        key: Key,
        (offset, payload, more): (usize, &[u8], bool),
        header: Option<Box<[u8]>>,
        now: Nanos,
    ) -> Outcome {
        self.begin(key, now);
        let Some(partial) = self.partials.get_mut(&key) else { return Outcome::Dropped };
        let end = offset + payload.len();
        let before = partial.pieces.range(..=offset).next_back();
        if before.is_some_and(|(at, piece)| *at == offset && **piece == *payload) {
            return Outcome::Kept;
        }
        let last = if more { partial.end } else { Some(partial.end.unwrap_or(end)) };
        let overlaps = before.is_some_and(|(at, piece)| at + piece.len() > offset)
            || partial.pieces.range(offset..end).next().is_some();
        let reach = partial.pieces.last_key_value().map_or(0, |(at, piece)| at + piece.len());
        let is_wrong = last.is_some_and(|last| reach.max(end) > last) || !more && last != Some(end);
        if overlaps || is_wrong {
            self.remove(&key);
            return Outcome::Dropped;
        }
        let cost = partial.cost();
        partial.end = last;
        partial.header = header.or_else(|| partial.header.take());
        partial.len += payload.len();
        partial.pieces.insert(offset, payload.into());
        self.bytes += partial.cost() - cost;
        // Pieces do not overlap, so as many bytes as there should be are all of them.
        match partial.header.is_some() && partial.end == Some(partial.len) {
            true => self.remove(&key).and_then(whole).map_or(Outcome::Dropped, Outcome::Whole),
            false => Outcome::Kept,
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Partial> {
        let partial = self.partials.remove(key)?;
        self.bytes -= partial.cost();
        Some(partial)
    }

    /// Drops the oldest packet; returns whether there was one.
    fn evict(&mut self) -> bool {
        while let Some((key, serial)) = self.order.pop_front() {
            if self.partials.get(&key).is_some_and(|partial| partial.serial == serial) {
                self.remove(&key);
                return true;
            }
        }
        false
    }

    /// Drops packets that have waited for too long; returns how many.
    pub fn expire(&mut self, now: Nanos) -> usize {
        let mut gone = 0;
        while let Some((key, serial)) = self.order.front().copied() {
            let partial = self.partials.get(&key).filter(|partial| partial.serial == serial);
            match partial {
                Some(partial) if now - partial.since < PATIENCE => break,
                Some(_) => {
                    self.remove(&key);
                    gone += 1;
                }
                None => {}
            }
            self.order.pop_front();
        }
        gone
    }
}

/// Puts a packet together. It is no fragment any more.
fn whole(partial: Partial) -> Option<Vec<u8>> {
    let header = partial.header?;
    let total = u16::try_from(header.len() + partial.len).ok()?;
    let mut packet = header.into_vec();
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[6..8].fill(0);
    packet[10..12].fill(0);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    partial.pieces.values().for_each(|piece| packet.extend_from_slice(piece));
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use frame::Protocol;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn fragment(id: u16, offset: usize, more: bool, payload: &[u8]) -> Vec<u8> {
        let (from, to) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
        let ip = Ipv4::new(from, to, Protocol::UDP, payload.len() as u16);
        let mut packet = ip.as_bytes().to_vec();
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        let field = (offset / 8) as u16 | if more { MORE } else { 0 };
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        packet.extend(payload);
        packet
    }

    /// Fragments in any order make the packet; anything contradictory makes none.
    #[test]
    fn fragments_become_a_packet_or_nothing() {
        let data: Vec<u8> = (0..50).collect();
        let part = |from: usize, to: usize| fragment(7, from, to < 50, &data[from..to]);
        let [a, b, c] = [part(0, 16), part(16, 32), part(32, 50)];
        let short = fragment(7, 32, false, &data[32..40]);
        for (name, sent, is_whole) in [
            ("in order", vec![&a, &b, &c], true),
            ("backwards", vec![&c, &b, &a], true),
            ("the middle last", vec![&a, &c, &b], true),
            ("one twice", vec![&a, &a, &b, &b, &c], true),
            ("one missing", vec![&a, &c], false),
            ("the first missing", vec![&b, &c], false),
            ("an overlap", vec![&a, &part(8, 24), &b, &c], false),
            ("an overlap over all", vec![&a, &c, &part(0, 32), &b], false),
            ("another last one", vec![&a, &c, &short, &b], false),
            ("a last one that is too short", vec![&c, &short, &a, &b], false),
            (
                "other bytes in the same place",
                vec![&a, &fragment(7, 0, true, &[9; 16]), &b, &c],
                false,
            ),
            ("an odd length", vec![&fragment(7, 0, true, &data[..15]), &b, &c], false),
            ("no bytes", vec![&fragment(7, 16, true, &[]), &a, &c], false),
            ("past the end", vec![&fragment(7, 65_528, false, &[1; 8]), &a], false),
        ] {
            let mut fragments = Fragments::default();
            let outcomes = sent.into_iter().map(|it| fragments.insert(it, Nanos(0)).0);
            let whole: Vec<_> = outcomes
                .filter_map(|it| if let Outcome::Whole(it) = it { Some(it) } else { None })
                .collect();
            assert_eq!(whole.len(), usize::from(is_whole), "{name}");
            for packet in whole {
                let (ip, payload) = Ipv4::parse(&packet).unwrap();
                assert!(Ipv4::checksum_ok(&packet) && !ip.is_fragment());
                assert_eq!((payload, fragments.bytes()), (&data[..], 0), "{name}");
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_nothing_waits_for_ever() {
        let mut fragments = Fragments::default();
        let mut gone = 0;
        for i in 0..100_000u32 {
            let payload = vec![1; 8 * (1 + i as usize % 180)];
            let packet = fragment(i as u16, 8 * (i as usize % 700), true, &payload);
            gone += fragments.insert(&packet, Nanos(u64::from(i))).1;
            assert!(fragments.bytes() <= MOST);
        }
        assert!(gone > 10_000 && fragments.order.len() < 20_000);
        fragments.expire(Nanos(PATIENCE + 100_000));
        assert_eq!((fragments.bytes(), fragments.partials.len(), fragments.order.len()), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn any_fragments_are_taken(parts in prop::collection::vec((0u16..3, 0usize..40, any::<bool>(), 0usize..70), 0..60)) {
            let mut fragments = Fragments::default();
            for (id, offset, more, len) in parts {
                if let (Outcome::Whole(packet), _) = fragments.insert(&fragment(id, offset * 8, more, &vec![5; len]), Nanos(0)) {
                    prop_assert!(Ipv4::checksum_ok(&packet));
                    prop_assert!(packet[20..].iter().all(|byte| *byte == 5));
                }
            }
            let held: usize = fragments.partials.values().map(Partial::cost).sum();
            prop_assert_eq!(held, fragments.bytes());
        }
    }
}
