//! What a port counts, laid out so that it can live in memory that survives a data process.

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

// SAFETY: one atomic word.
unsafe impl Shareable for Counter {}

impl Counter {
    /// One that has counted nothing.
    #[must_use]
    pub const fn zero() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. Not a read-modify-write: there is one writer.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds `n` where several threads may count at once (rare events only).
    #[inline]
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The present value.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value: when a port slot is used anew.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Why a frame was not delivered.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum DropReason {
    /// Shorter than an Ethernet header.
    Runt,
    /// Longer than the port's MTU allows.
    TooLong,
    /// To 01:80:C2:00:00:0X, which bridges keep in.
    LinkLocal,
    /// Its destination is the port it came from.
    SamePort,
    /// Nobody to deliver it to.
    NoDestination,
    /// Between two protected ports, or from a tunnel to a tunnel.
    Protected,
    /// From a source address that the port may not use.
    PortSecurity,
    /// In a VLAN that the port is not a member of.
    Vlan,
    /// Beyond the rate limit of the receiving port.
    RateLimit,
    /// The receiver's queue was full.
    Full,
    /// The receiver of a lossless port did not make room in time.
    StallTimeout,
    /// The receiving port is down or in its error state.
    Down,
    /// Asks for an offload that cannot be done.
    Offload,
    /// In flight when its port was removed or reset.
    Detached,
    /// In flight when the data process died.
    Restart,
    /// The operating system refused it (tap, file).
    Io,
    /// The receiving NIC's address or VLAN filter does not take it.
    Filtered,
    /// Beyond the port's flood rate limit.
    FloodLimit,
    /// Would leave without its VLAN tag and begin with another one: it would be in another VLAN.
    DoubleTag,
    /// ARP of another sender than the guarded port's own.
    ArpSpoof,
    /// Neighbour discovery that names another station than the guarded port's own.
    NdSpoof,
    /// A DHCP server's message from a guarded port.
    DhcpServer,
    /// A router's advertisement or redirect from a guarded port.
    RouterAdvert,
    /// From a guarded port, with headers that cannot be judged.
    HiddenHeaders,
    /// Lost by the impairment of its port's link, on its way in or out.
    Impaired,
    /// Came to a tunnel with the number of a segment that is not its.
    UnknownVni,
    /// Came to a tunnel from a host that is none of its peers.
    UnknownPeer,
    /// Came to a tunnel without the header of its encapsulation.
    Encapsulation,
    /// The tunnel's path was congested, and the frame's transport would not hear of it (RFC 6040, 4.2).
    Congestion,
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = 29;
    /// The first so many can be met where frames go out; the others only where they come in.
    pub const AT_EGRESS: usize = 17;

    /// All of them, in the order of their numbers.
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
    ];

    /// Its name in tables and JSON.
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
        }
    }
}

/// Buckets of the batch-size histogram: bucket i counts batches of 2^i to 2^(i+1)-1 frames.
pub const HISTOGRAM_BUCKETS: usize = 11;

/// The bucket of a batch of `frames` (at least 1).
#[inline]
#[must_use]
pub fn histogram_bucket(frames: usize) -> usize {
    (frames.max(1).ilog2() as usize).min(HISTOGRAM_BUCKETS - 1)
}

/// What is counted where frames come in; written by the port's home worker.
///
/// The sum rule of a switch, over all its ports: `frames + copies` at the ingresses plus `segments` at
/// the egresses equals `frames` at the egresses plus `drops` at both.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct IngressCounters {
    /// Frames gathered.
    pub frames: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Deliveries begun beyond one per frame: floods and mirrors.
    pub copies: Counter,
    /// Frames dropped before they reached an egress, by reason.
    pub drops: [Counter; DropReason::COUNT],
    /// Batches by size.
    pub batches: [Counter; HISTOGRAM_BUCKETS],
    /// Times the worker told the owner that sent frames are done.
    pub kicks: Counter,
    /// Times the owner woke the worker.
    pub wakeups: Counter,
    /// Malformed descriptors, each of which put the port into its error state.
    pub faults: Counter,
    /// Source addresses that moved too often and were not learned.
    pub flaps: Counter,
    /// Source addresses that were not learned, because the table or the share of the port or its user was full.
    pub unlearned: Counter,
}

// SAFETY: counters only; padding at the end is never read.
unsafe impl Shareable for IngressCounters {}

/// What is counted where frames go out; written under the egress's lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct EgressCounters {
    /// Frames delivered.
    pub frames: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Frames dropped here, by reason.
    pub drops: [Counter; DropReason::AT_EGRESS],
    /// Times the owner was woken.
    pub kicks: Counter,
    /// Malformed descriptors, each of which put the port into its error state.
    pub faults: Counter,
    /// Frames that were segmented in software, because the owner does not take them whole.
    pub segmented: Counter,
    /// Segments that they became beyond one each.
    pub segments: Counter,
    /// Checksums that were computed for the owner.
    pub checksums: Counter,
    /// Times that its senders waited in vain for the stall time.
    pub stalls: Counter,
    /// Frames that had been delivered when that happened last, and one more; 0 before.
    stalled_at: Counter,
}

// SAFETY: counters only.
unsafe impl Shareable for EgressCounters {}

/// What a switch did in software for a receiver that does not take offload requests.
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
        self.drops[reason as usize].add(n);
    }
}

impl EgressCounters {
    /// Senders have waited in vain: until frames are delivered again, nobody waits for this receiver.
    pub fn stall(&self) {
        self.stalls.add_shared(1);
        self.stalled_at.set(self.frames.get() + 1);
    }

    /// True if senders waited in vain, and no frame was delivered since.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled_at.get() == self.frames.get() + 1
    }

    /// Forgets a stall, for the next owner.
    pub fn forget_stall(&self) {
        self.stalls.set(0);
        self.stalled_at.set(0);
    }

    /// Counts what was done in software: by any worker, not under the egress's lock.
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
    }

    #[test]
    fn batches_fall_into_buckets_by_powers_of_two() {
        let buckets = [(1, 0), (2, 1), (3, 1), (64, 6), (65, 6), (1024, 10), (5000, 10)];
        for (frames, bucket) in buckets {
            assert_eq!(histogram_bucket(frames), bucket, "{frames}");
        }
    }
}
