//! Judges a batch of packets: all walk down a tree in lock step, so that their loads overlap.

use core::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    Context, NO_RULE, NONE, Outcome, Program, Section, Stop, code, direction_of, section_of,
};
use crate::cache::{Cache, Key};
use crate::cubes::{Family, MOST, NO_PORT};
use crate::packet::{Direction, Packet};
use crate::tree::LANES;

/// Packets in lock step.
const BATCH: usize = 64;
/// Trees of a section.
const TREES: usize = 4;

/// The packets of a family, their places in the batch and their keys.
struct Lanes<const D: usize> {
    count: usize,
    places: [u8; BATCH],
    keys: [[u32; D]; BATCH],
}

/// Where a packet's rules are.
type Leaves = [u32; TREES];

impl Program {
    /// Judges packets that go in `direction`. Rules that match are counted. `cache` remembers
    /// verdicts for the policy with the number `stamp`, which no other program may have had since
    /// the cache was made.
    ///
    /// # Panics
    /// If `outcomes` is shorter than `packets`.
    pub fn judge(
        &self,
        direction: Direction,
        packets: &[Packet<'_>],
        outcomes: &mut [Outcome],
        context: &Context<'_>,
        cache: Option<(&mut Cache, u32)>,
    ) {
        let (mut cache, stamp) = cache.map_or((None, 0), |(cache, stamp)| (Some(cache), stamp));
        let batches = packets.chunks(BATCH).zip(outcomes[..packets.len()].chunks_mut(BATCH));
        for (packets, outcomes) in batches {
            outcomes.fill(Outcome::DEFAULT);
            let mut batch = Batch { program: self, packets, outcomes, context, direction, stamp };
            let v4 = |packet: &Packet<'_>| v4_key(packet);
            batch.judge(Family::V4, v4, cache.as_deref_mut());
            batch.judge(Family::V6, v6_key, cache.as_deref_mut());
            batch.judge(Family::Other, other_key, None);
        }
    }
}

struct Batch<'b, 'h> {
    program: &'b Program,
    packets: &'b [Packet<'h>],
    outcomes: &'b mut [Outcome],
    context: &'b Context<'b>,
    direction: Direction,
    stamp: u32,
}

impl Batch<'_, '_> {
    /// Judges the packets that have a key.
    fn judge<const D: usize>(
        &mut self,
        family: Family,
        key: impl Fn(&Packet<'_>) -> Option<[u32; D]>,
        mut cache: Option<&mut Cache>,
    ) {
        let number = section_of(self.direction, family);
        let section = self.program.sections[number];
        if section.trees == 0 {
            return;
        }
        // A list is as quick as a cache.
        cache = cache.filter(|_| section.tree[0].1 > 0 || section.trees > 1);
        let mut lanes = Lanes { count: 0, places: [0; BATCH], keys: [[0; D]; BATCH] };
        for (place, packet) in self.packets.iter().enumerate() {
            let Some(key) = key(packet) else { continue };
            if let Some(cache) = cache.as_deref_mut()
                && let Some(rule) = cache.find(&Key::of(&key, packet, self.stamp(number)))
            {
                self.outcomes[place] =
                    self.program.conclude(Outcome::DEFAULT, rule, packet, self.context);
                continue;
            }
            (lanes.places[lanes.count], lanes.keys[lanes.count]) = (place as u8, key);
            lanes.count += 1;
        }
        if lanes.count == 0 {
            return;
        }
        let leaves = self.program.descend(&section, &lanes);
        for (lane, leaves) in leaves.iter().enumerate().take(lanes.count) {
            let place = usize::from(lanes.places[lane]);
            let (key, packet) = (&lanes.keys[lane], &self.packets[place]);
            let (outcome, lasting) =
                self.program.walk(&section, number, leaves, key, packet, self.context);
            self.outcomes[place] = outcome;
            if let Some(cache) = cache.as_deref_mut().filter(|_| lasting) {
                cache.keep(&Key::of(key, packet, self.stamp(number)), outcome.rule);
            }
        }
    }

    fn stamp(&self, section: usize) -> u32 {
        self.stamp << 3 | section as u32
    }
}

impl Program {
    /// The leaves of all lanes.
    #[inline]
    fn descend<const D: usize>(&self, section: &Section, lanes: &Lanes<D>) -> [Leaves; BATCH] {
        let mut leaves = [[0; TREES]; BATCH];
        for tree in 0..section.trees {
            let (first, depth) = section.tree[tree];
            let nodes: &[[u32; 4]] = self.words[first as usize..].as_chunks().0;
            let mut at = [0u32; BATCH];
            for _ in 0..depth {
                for (at, key) in at[..lanes.count].iter_mut().zip(&lanes.keys) {
                    let [dim, threshold, below, beyond] = nodes[*at as usize];
                    // A leaf leads to itself: nothing is greater than its threshold.
                    *at = if key[dim as usize % D] > threshold { beyond } else { below };
                }
            }
            for (leaves, at) in leaves[..lanes.count].iter_mut().zip(at) {
                leaves[tree] = nodes[at as usize][3];
            }
        }
        leaves
    }

    /// Tries the rules of a packet's leaves in order. True if the outcome depends on nothing but
    /// what a cache has in its key.
    fn walk<const D: usize>(
        &self,
        section: &Section,
        number: usize,
        leaves: &Leaves,
        key: &[u32; D],
        packet: &Packet<'_>,
        context: &Context<'_>,
    ) -> (Outcome, bool) {
        let (mut outcome, mut start, mut lasting) = (Outcome::DEFAULT, 0, true);
        loop {
            let found = leaves[..section.trees].iter().map(|leaf| self.first(*leaf, key, start));
            let Some(rule) = found.min().filter(|rule| *rule != NONE) else {
                return (outcome, lasting);
            };
            let record = self.record(rule);
            if record[6 + number] != NONE {
                let direction = direction_of(number);
                let held = self.hold(record[6 + number], direction, packet, context);
                lasting &= held.in_key;
                if !held.holds {
                    start = rule + 1;
                    continue;
                }
            }
            if matches!(record[0] & code::ACTION, code::NEXT | code::SKIP) {
                lasting = false;
                outcome = self.conclude(outcome, rule, packet, context);
                if outcome.stop == Stop::Deny {
                    return (outcome, false);
                }
                start = record[1];
                continue;
            }
            return (self.conclude(outcome, rule, packet, context), lasting);
        }
    }

    /// The first rule from `start` on whose box in the leaf contains the key.
    #[inline]
    fn first<const D: usize>(&self, leaf: u32, key: &[u32; D], start: u32) -> u32 {
        let block = LANES * (2 * D + 1);
        let steps = self.words[leaf as usize] as usize;
        let blocks = &self.words[leaf as usize + 1..][..steps * block];
        for block in blocks.chunks_exact(block) {
            let (lanes, _) = block.as_chunks::<LANES>();
            let mut outside = [0u32; LANES];
            for (ranges, value) in lanes.as_chunks::<2>().0.iter().zip(key) {
                for lane in 0..LANES {
                    outside[lane] |=
                        u32::from(value.wrapping_sub(ranges[0][lane]) > ranges[1][lane]);
                }
            }
            let rules = &lanes[2 * D];
            let mut fits = 0u32;
            for lane in 0..LANES {
                fits |= u32::from(outside[lane] == 0 && rules[lane] >= start) << lane;
            }
            if fits != 0 {
                return rules[fits.trailing_zeros() as usize % LANES];
            }
        }
        NONE
    }

    /// Counts a rule that matches, and adds what it does to the outcome.
    #[inline]
    fn conclude(
        &self,
        before: Outcome,
        rule: u32,
        packet: &Packet<'_>,
        context: &Context<'_>,
    ) -> Outcome {
        if rule == NO_RULE {
            return before;
        }
        let record = self.record(rule);
        if let Some(hits) = context.hits.get(rule as usize) {
            hits.fetch_add(1, Ordering::Relaxed);
        }
        let mut stop = match record[0] & code::ACTION {
            code::ALLOW => Stop::Allow,
            code::DENY => Stop::Deny,
            code::RESET => Stop::Reset,
            _ => Stop::Default,
        };
        if record[3] != 0 && !is_within(rule, record, packet.len, context) {
            stop = Stop::Deny;
        }
        Outcome {
            stop,
            stateless: record[0] & code::STATELESS != 0,
            rule: if stop == Stop::Default { NO_RULE } else { rule },
            log: if record[0] & code::LOG != 0 { rule } else { before.log },
            mirror: if record[2] == NONE { before.mirror } else { record[2] },
        }
    }
}

/// Takes a frame's share of a rule's limit (GCRA: a bucket as the time at which it is full again).
/// A tenth of a second's worth may come at once.
fn is_within(rule: u32, record: &[u32], len: u32, context: &Context<'_>) -> bool {
    const SECOND: u64 = 1_000_000_000;
    let Some(full_at): Option<&AtomicU64> = context.limits.get(rule as usize) else { return true };
    let rate = u64::from(record[5]) << 32 | u64::from(record[4]);
    let units = if record[3] == 1 { 1 } else { 8 * u64::from(len) };
    let cost = (u128::from(units) * u128::from(SECOND) / u128::from(rate.max(1))) as u64;
    let burst = (SECOND / 10).max(cost);
    let taken = full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
        let full_at = full_at.max(context.now).saturating_add(cost);
        (full_at - context.now <= burst).then_some(full_at)
    });
    taken.is_ok()
}

fn ports(packet: &Packet<'_>) -> (u32, u32) {
    packet.facts.ports.map_or((NO_PORT, NO_PORT), |(from, to)| (u32::from(from), u32::from(to)))
}

fn v4_key(packet: &Packet<'_>) -> Option<[u32; 5]> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = packet.ip()? else { return None };
    let (source, destination) = ports(packet);
    let protocol = packet.facts.protocol.map_or(0, |protocol| u32::from(protocol.0));
    Some([from.to_bits(), to.to_bits(), source, destination, protocol])
}

fn v6_key(packet: &Packet<'_>) -> Option<[u32; MOST]> {
    let (IpAddr::V6(from), IpAddr::V6(to)) = packet.ip()? else { return None };
    let mut key = [0; MOST];
    for (words, ip) in key.chunks_exact_mut(4).zip([from, to]) {
        words.copy_from_slice(&[96, 64, 32, 0].map(|shift| (ip.to_bits() >> shift) as u32));
    }
    (key[8], key[9]) = ports(packet);
    key[10] = packet.facts.protocol.map_or(0, |protocol| u32::from(protocol.0));
    Some(key)
}

fn other_key(packet: &Packet<'_>) -> Option<[u32; 1]> {
    packet.ip().is_none().then(|| [u32::from(packet.facts.ethertype.0)])
}
