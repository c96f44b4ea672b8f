//! The numbers in the state memory, as reports show them.

use std::collections::BTreeMap;

use port::{Counter, DropReason, EgressCounters, HISTOGRAM_BUCKETS, IngressCounters};
use serde::{Deserialize, Serialize};
use settings::PortId;
use shmem::sync::Ordering;

use super::{MappedMemory, SwitchState, TurnTime, WorkerState};

/// Drops by reason; reasons that did not occur are left out.
pub type Drops = BTreeMap<DropReason, u64>;

fn drops(of: &[Counter]) -> Drops {
    DropReason::ALL.into_iter().zip(of).map(|(r, c)| (r, c.get())).filter(|(_, n)| *n > 0).collect()
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

    pub(super) fn of_ingress(c: &IngressCounters) -> Self {
        Self {
            in_frames: c.frames.get(),
            in_bytes: c.bytes.get(),
            in_copies: c.copies.get(),
            in_drops: drops(&c.drops),
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
    pub(super) fn add_egress(&mut self, c: &EgressCounters) {
        let add = |sum: &mut u64, n: u64| *sum = sum.wrapping_add(n);
        add(&mut self.out_frames, c.frames.get());
        add(&mut self.out_bytes, c.bytes.get());
        for (reason, n) in drops(&c.drops) {
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

impl SwitchState {
    /// True if port `id` exists.
    #[must_use]
    pub fn has_port(&self, id: PortId) -> bool {
        let word = self.ports.get(usize::from(id) / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (id % 64) & 1 != 0)
    }

    /// Notes whether port `id` exists. For the control thread only.
    pub fn set_port(&self, id: PortId, there: bool) {
        if let Some(word) = self.ports.get(usize::from(id) / 64) {
            let others = word.load(Ordering::Relaxed) & !(1 << (id % 64));
            word.store(others | u64::from(there) << (id % 64), Ordering::Relaxed);
        }
    }

    /// Reads the switch's numbers once.
    #[must_use]
    pub fn snapshot(&self) -> SwitchStats {
        let mut gone = PortStats::of_ingress(&self.gone_ingress);
        gone.add_egress(&self.gone_egress);
        SwitchStats {
            gone,
            lost_in_restarts: self.lost_in_restarts.get(),
            restarts: self.restarts.get(),
        }
    }
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

impl WorkerStats {
    pub(super) fn of(w: &WorkerState) -> Self {
        Self {
            passes: w.passes.get(),
            busy_passes: w.busy_passes.get(),
            busy_ns: w.busy_ns.get(),
            frames: w.frames.get(),
            sleeps: w.sleeps.get(),
            kicks: w.kicks.get(),
            ports: w.ports.get(),
            cpu: w.cpu.get().checked_sub(1),
            panics: w.panics.get(),
            turns: w.turns.read(),
        }
    }
}
