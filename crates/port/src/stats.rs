//! A switch's numbers as reports show them: counters read once, in the shapes that messages and the
//! control API have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Counter, DropReason, EgressCounters, HISTOGRAM_BUCKETS, IngressCounters};

/// Drops by reason; reasons that did not occur are left out.
pub type Drops = BTreeMap<DropReason, u64>;

fn drops(reasons: &[DropReason], of: &[Counter]) -> Drops {
    reasons.iter().copied().zip(of).map(|(r, c)| (r, c.get())).filter(|(_, n)| *n > 0).collect()
}

/// A port's numbers, read once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(rename = "Counters"))]
pub struct PortStats {
    /// Frames that the port's owner handed in.
    pub in_frames: u64,
    /// Their bytes.
    pub in_bytes: u64,
    /// Further deliveries of frames that had one already: floods and mirrors.
    pub in_copies: u64,
    /// Frames dropped before they reached a receiver.
    pub in_drops: Drops,
    /// Frames handed out to the port's owner.
    pub out_frames: u64,
    /// Their bytes.
    pub out_bytes: u64,
    /// Frames for the owner that were dropped.
    pub out_drops: Drops,
    /// Frames segmented in software, because its owner does not accept them whole.
    pub out_segmented: u64,
    /// Segments of these frames, beyond one each.
    pub out_segments: u64,
    /// Checksums computed for the port's owner.
    pub out_checksums: u64,
    /// Batches handed in, by size: entry i counts those of 2^i to 2^(i+1)-1 frames.
    pub batches: [u64; HISTOGRAM_BUCKETS],
    /// Times the switch woke the owner.
    pub kicks: u64,
    /// Times the owner woke the switch.
    pub wakeups: u64,
    /// Malformed descriptors.
    pub faults: u64,
    /// How often the senders of this lossless port stopped waiting, because it freed no slot for
    /// the stall time.
    pub stalls: u64,
    /// Source addresses refused because they moved too often.
    pub flaps: u64,
    /// Addresses that were not learned, because the table or the share of the port or its user was
    /// full.
    pub unlearned: u64,
    /// Of an emulated network card: reads of registers. A virtual processor waited for each.
    pub reads: u64,
    /// Writes that a virtual processor waited for.
    pub writes: u64,
    /// Register writes without a reply.
    pub posted_writes: u64,
    /// How many pin interrupts ended. A virtual processor waited for each end.
    pub acknowledgements: u64,
    /// Interrupts.
    pub interrupts: u64,
    /// The memory of its owner that is mapped.
    #[serde(default)]
    pub memory: MappedMemory,
    /// System calls for its owner, mostly wake-ups, that were so slow that its user was charged.
    pub slow_calls: u64,
    /// Nanoseconds of the slowest of these calls.
    pub slowest_call_ns: u64,
    /// How often an access to the owner's memory delayed a worker while the port was watched. The
    /// user was charged for these, too.
    pub slow_touches: u64,
    /// Nanoseconds of the longest of these touches.
    pub slowest_touch_ns: u64,
    /// Wake-ups of the port's owner by the user's helper thread.
    pub helped_kicks: u64,
}

impl PortStats {
    /// Frames handed in, copies begun and segments made here, less frames handed out and dropped
    /// here. The sum rule: over all ports of a quiet switch these add up to the frames lost in
    /// restarts.
    #[must_use]
    pub fn unaccounted(&self) -> i128 {
        let drops = self.in_drops.values().chain(self.out_drops.values());
        let drops: i128 = drops.map(|frames| i128::from(*frames)).sum();
        i128::from(self.in_frames) + i128::from(self.in_copies) + i128::from(self.out_segments)
            - i128::from(self.out_frames)
            - drops
    }

    /// The counters of an ingress.
    #[must_use]
    pub fn of_ingress(c: &IngressCounters) -> Self {
        Self {
            in_frames: c.frames.get(),
            in_bytes: c.bytes.get(),
            in_copies: c.copies.get(),
            in_drops: drops(&DropReason::OF_INGRESS, &c.drops),
            batches: std::array::from_fn(|i| c.batches[i].get()),
            kicks: c.kicks.get(),
            wakeups: c.wakeups.get(),
            faults: c.faults.get(),
            flaps: c.flaps.get(),
            unlearned: c.unlearned.get(),
            ..Self::default()
        }
    }

    /// Adds a receive queue's counters. Sums wrap as counters do: a peer of a trusted switch can
    /// write any.
    pub fn add_egress(&mut self, c: &EgressCounters) {
        let add = |sum: &mut u64, n: u64| *sum = sum.wrapping_add(n);
        add(&mut self.out_frames, c.frames.get());
        add(&mut self.out_bytes, c.bytes.get());
        for (reason, n) in drops(&DropReason::ALL, &c.drops) {
            add(self.out_drops.entry(reason).or_default(), n);
        }
        add(&mut self.out_segmented, c.segmented.get());
        add(&mut self.out_segments, c.segments.get());
        add(&mut self.out_checksums, c.checksums.get());
        add(&mut self.kicks, c.kicks.get());
        add(&mut self.faults, c.faults.get());
        add(&mut self.stalls, c.stalls.get());
    }
}

/// The numbers of removed ports and of the switch itself, so that sums can be checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SwitchStats {
    /// The counters of removed ports.
    pub gone: PortStats,
    /// Frames in flight when a data process died.
    pub lost_in_restarts: u64,
    /// How often a data process was started again.
    pub restarts: u64,
}

/// A worker's numbers, read once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct WorkerStats {
    /// Passes over the worker's hot ports.
    pub passes: u64,
    /// Passes that moved a frame.
    pub busy_passes: u64,
    /// Nanoseconds in these busy passes.
    pub busy_ns: u64,
    /// Frames gathered.
    pub frames: u64,
    /// How often the worker slept.
    pub sleeps: u64,
    /// How often the worker woke a port's owner.
    pub kicks: u64,
    /// The number of ports that the worker serves.
    pub ports: u64,
    /// The CPU that the worker is pinned to.
    pub cpu: Option<u64>,
    /// Ports whose code panicked.
    pub panics: u64,
    /// How long the worker's turns took.
    pub turns: Vec<TurnTime>,
}

/// The turns of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TurnTime {
    /// The turns took less than this many nanoseconds, and at least the bound of the previous
    /// bucket. Turns in the last bucket may have taken longer.
    pub under_ns: u64,
    /// The number of turns in this bucket.
    pub turns: u64,
}

/// The limit that a refused mapping would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LimitOf {
    /// One port's.
    Port,
    /// One user's.
    User,
    /// The limit of all ports of the switch.
    Switch,
}

/// The memory of its owner that is mapped for a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct MappedMemory {
    /// Bytes of address space that the memory takes in the data process.
    pub bytes: u64,
    /// Mappings.
    pub mappings: u64,
    /// Mappings that were refused.
    pub refused: u64,
    /// The limit that was last exceeded.
    pub refused_by: Option<LimitOf>,
}

/// The time that a `share` (0 to 1) of the turns between two readings took at most; `None` if there
/// were none.
#[must_use]
pub fn percentile(before: &[TurnTime], after: &[TurnTime], share: f64) -> Option<u64> {
    let earlier = |at: u64| before.iter().find(|b| b.under_ns == at).map_or(0, |b| b.turns);
    let new = |b: &TurnTime| b.turns.saturating_sub(earlier(b.under_ns));
    let all = after.iter().map(new).fold(0, u64::saturating_add);
    let (mut seen, wanted) = (0_u64, (all as f64 * share).ceil() as u64);
    after.iter().filter(|b| new(b) > 0).find_map(|b| {
        seen = seen.saturating_add(new(b));
        (seen >= wanted).then_some(b.under_ns)
    })
}
