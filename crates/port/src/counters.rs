//! A port's counters, laid out for memory that survives a data process.

use std::sync::atomic::{AtomicU64, Ordering};

use shmem::Shareable;

/// A counter with one writer at a time (a port's home worker, or the holder of an egress lock).
///
/// # Protocol: `port::Counter`
/// - Writer: home worker, or holder of the egress lock
/// - Reader: supervisor
/// - Ordering: relaxed load and store, not read-modify-write
/// - Without it: a statistic is a little old
/// - Shown by: sum-rule tests
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

// SAFETY: the type consists of one atomic word.
unsafe impl Shareable for Counter {}

impl Counter {
    /// A counter of value 0.
    #[must_use]
    pub const fn zero() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`, without a read-modify-write, because there is one writer.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds `n`, for rare events that several threads may count at once.
    #[inline]
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The current value.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value, when a port slot is reused.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The reason why a frame was dropped.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum DropReason {
    /// Shorter than an Ethernet header.
    Runt,
    /// Longer than the port's MTU allows.
    TooLong,
    /// To 01:80:C2:00:00:0X, which bridges do not forward.
    LinkLocal,
    /// The frame's destination is the port that sent it.
    SamePort,
    /// The frame has no receiver.
    NoDestination,
    /// Between two protected ports, or from one tunnel to another.
    Protected,
    /// From a source address, of Ethernet or IP, that is not allowed at the port.
    PortSecurity,
    /// In a VLAN that the port is not a member of.
    Vlan,
    /// Beyond the rate limit of the receiving port.
    RateLimit,
    /// The receiver's queue was full.
    Full,
    /// The receiver on a lossless port did not make room in time.
    StallTimeout,
    /// The receiving port is down or in its error state.
    Down,
    /// Requests an offload that cannot be done.
    Offload,
    /// The frame was in flight when its port was removed or reset.
    Detached,
    /// The frame was in flight when the data process died.
    Restart,
    /// The operating system refused the frame (tap, file).
    Io,
    /// The receiving NIC's address or VLAN filter rejects it.
    Filtered,
    /// Beyond the port's flood rate limit.
    FloodLimit,
    /// The frame would leave without its VLAN tag and begin with another one, and so change its
    /// VLAN.
    DoubleTag,
    /// ARP with a sender other than the guarded port's own.
    ArpSpoof,
    /// Neighbour discovery for a station other than the guarded port's own.
    NdSpoof,
    /// A DHCP server's message from a guarded port.
    DhcpServer,
    /// A router's advertisement or redirect from a guarded port.
    RouterAdvert,
    /// From a guarded port, with headers that cannot be checked.
    HiddenHeaders,
    /// Lost by the impairment of its port's link, on its way in or out.
    Impaired,
    /// Came to a tunnel with another segment's number.
    UnknownVni,
    /// Came to a tunnel from a host that is not one of its peers.
    UnknownPeer,
    /// Came to a tunnel without a valid encapsulation header.
    Encapsulation,
    /// The tunnel's path was congested, and the frame's transport does not support ECN (RFC 6040,
    /// 4.2).
    Congestion,
    /// A rule, or the default of a port with rules, denies it.
    Denied,
}

impl DropReason {
    /// The number of reasons.
    pub const COUNT: usize = 30;
    /// The number of counters at an ingress. Their memory outlives versions, so it has no more.
    pub const AT_INGRESS: usize = 29;
    /// The number of reasons that can occur at egresses, which come first; the others occur only at
    /// ingresses.
    pub const AT_EGRESS: usize = 17;

    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Runt,
        Self::TooLong,
        Self::LinkLocal,
        Self::SamePort,
        Self::NoDestination,
        Self::Protected,
        Self::PortSecurity,
        Self::Vlan,
        Self::RateLimit,
        Self::Full,
        Self::StallTimeout,
        Self::Down,
        Self::Offload,
        Self::Detached,
        Self::Restart,
        Self::Io,
        Self::Filtered,
        Self::FloodLimit,
        Self::DoubleTag,
        Self::ArpSpoof,
        Self::NdSpoof,
        Self::DhcpServer,
        Self::RouterAdvert,
        Self::HiddenHeaders,
        Self::Impaired,
        Self::UnknownVni,
        Self::UnknownPeer,
        Self::Encapsulation,
        Self::Congestion,
        Self::Denied,
    ];

    /// The reasons that an ingress counts, in the order of its counters. `Denied` has the place of
    /// `Filtered`, which occurs at egresses alone.
    pub const OF_INGRESS: [Self; Self::AT_INGRESS] = {
        let mut reasons = [Self::Runt; Self::AT_INGRESS];
        let mut i = 0;
        while i < reasons.len() {
            reasons[i] = Self::ALL[i];
            i += 1;
        }
        reasons[Self::Filtered as usize] = Self::Denied;
        reasons
    };

    /// The counter of reason number `reason` at an ingress.
    #[inline(always)]
    #[must_use]
    pub const fn at_ingress(reason: usize) -> usize {
        if reason == Self::Denied as usize { Self::Filtered as usize } else { reason }
    }

    /// The reason's name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runt => "runt",
            Self::TooLong => "too_long",
            Self::LinkLocal => "link_local",
            Self::SamePort => "same_port",
            Self::NoDestination => "no_destination",
            Self::Protected => "protected",
            Self::PortSecurity => "port_security",
            Self::Vlan => "vlan",
            Self::FloodLimit => "flood_limit",
            Self::Full => "full",
            Self::StallTimeout => "stall_timeout",
            Self::Down => "down",
            Self::Offload => "offload",
            Self::Detached => "detached",
            Self::Restart => "restart",
            Self::Io => "io",
            Self::Filtered => "filtered",
            Self::RateLimit => "rate_limit",
            Self::DoubleTag => "double_tag",
            Self::ArpSpoof => "arp_spoof",
            Self::NdSpoof => "nd_spoof",
            Self::DhcpServer => "dhcp_server",
            Self::RouterAdvert => "router_advert",
            Self::HiddenHeaders => "hidden_headers",
            Self::Impaired => "impaired",
            Self::UnknownVni => "unknown_vni",
            Self::UnknownPeer => "unknown_peer",
            Self::Encapsulation => "encapsulation",
            Self::Congestion => "congestion",
            Self::Denied => "denied",
        }
    }
}

/// Buckets of the batch-size histogram: bucket i counts batches of 2^i to 2^(i+1)-1 frames.
pub const HISTOGRAM_BUCKETS: usize = 11;

/// The bucket for a batch of `frames` frames (at least 1).
#[inline]
#[must_use]
pub fn histogram_bucket(frames: usize) -> usize {
    (frames.max(1).ilog2() as usize).min(HISTOGRAM_BUCKETS - 1)
}

/// Counters of an ingress, written by the port's home worker.
///
/// The sum rule of a switch, over all its ports: `frames + copies` at the ingresses plus `segments`
/// at the egresses equals `frames` at the egresses plus `drops` at both.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct IngressCounters {
    /// Frames gathered.
    pub frames: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Deliveries beyond the first per frame: floods and mirrors.
    pub copies: Counter,
    /// Frames dropped before they reached an egress, by reason.
    pub drops: [Counter; DropReason::AT_INGRESS],
    /// Batches by size.
    pub batches: [Counter; HISTOGRAM_BUCKETS],
    /// How often the worker notified the owner that sent frames are done.
    pub kicks: Counter,
    /// How often the owner woke the worker.
    pub wakeups: Counter,
    /// Malformed descriptors, each of which put the port into its error state.
    pub faults: Counter,
    /// Source addresses that moved too often and were not learned.
    pub flaps: Counter,
    /// Source addresses that were not learned, because the table, or the share of the port or its
    /// user, was full.
    pub unlearned: Counter,
}

// SAFETY: the type consists of counters only; padding at the end is never read.
unsafe impl Shareable for IngressCounters {}

/// Counters of an egress, written under its lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct EgressCounters {
    /// Frames delivered.
    pub frames: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Frames dropped at this egress, by reason.
    pub drops: [Counter; DropReason::AT_EGRESS],
    /// How often the owner was woken.
    pub kicks: Counter,
    /// Malformed descriptors, each of which put the port into its error state.
    pub faults: Counter,
    /// Frames segmented in software, because the owner does not accept them whole.
    pub segmented: Counter,
    /// Further segments of these frames, beyond one each.
    pub segments: Counter,
    /// Checksums computed for the owner.
    pub checksums: Counter,
    /// How often senders waited the whole stall time and got no room.
    pub stalls: Counter,
    /// The number of delivered frames at the last stall, plus one; 0 before any.
    stalled_at: Counter,
}

// SAFETY: the type consists of counters only.
unsafe impl Shareable for EgressCounters {}

/// Work done in software for a receiver that does not accept offload requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Software {
    /// Frames segmented.
    pub segmented: u64,
    /// Segments beyond one each.
    pub segments: u64,
    /// Checksums computed.
    pub checksums: u64,
}

impl IngressCounters {
    /// Counts `n` frames dropped for `reason`.
    #[inline]
    pub fn drop_frames(&self, reason: DropReason, n: u64) {
        self.drops[DropReason::at_ingress(reason as usize)].add(n);
    }
}

impl EgressCounters {
    /// Notes that senders waited in vain. Until frames are delivered again, no sender waits for
    /// this receiver.
    pub fn stall(&self) {
        self.stalls.add_shared(1);
        self.stalled_at.set(self.frames.get().wrapping_add(1));
    }

    /// True if senders waited the whole stall time, and no frame was delivered since.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled_at.get() == self.frames.get().wrapping_add(1)
    }

    /// Forgets a stall, for the next owner.
    pub fn forget_stall(&self) {
        self.stalls.set(0);
        self.stalled_at.set(0);
    }

    /// Counts work done in software. Any worker may call it, without the egress's lock.
    pub fn add_software(&self, done: Software) {
        self.segmented.add_shared(done.segmented);
        self.segments.add_shared(done.segments);
        self.checksums.add_shared(done.checksums);
    }

    /// Counts `n` frames dropped for `reason`.
    #[inline]
    pub fn drop_frames(&self, reason: DropReason, n: u64) {
        self.drops[reason as usize].add(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_listed() {
        for (number, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number, "{}", reason.name());
        }
        let counters = IngressCounters::default();
        for reason in DropReason::OF_INGRESS {
            counters.drop_frames(reason, 1);
        }
        assert!(counters.drops.iter().all(|counter| counter.get() == 1), "each has its counter");
        assert_eq!(size_of::<IngressCounters>(), 384, "the memory of earlier versions");
    }

    #[test]
    fn batches_fall_into_buckets_by_powers_of_two() {
        let buckets = [(1, 0), (2, 1), (3, 1), (64, 6), (65, 6), (1024, 10), (5000, 10)];
        for (frames, bucket) in buckets {
            assert_eq!(histogram_bucket(frames), bucket, "{frames}");
        }
    }
}
