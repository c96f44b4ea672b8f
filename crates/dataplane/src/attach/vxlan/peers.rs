//! The hosts at the other ends of a tunnel (VTEPs), numbered from 1: the forwarding table's `via`.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use port::{Counter, Nanos};
use shmem::{Memfd, Shareable, SharedSlice};
use turn::attach::AttachError;

use super::socket::Address;

/// The maximum number of peers of a tunnel.
pub const MAX_PEERS: usize = 1024;

/// The counters of a peer, in memory that outlives a data process. The supervisor reads them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct PeerCounters {
    /// Frames that the peer has sent.
    pub in_frames: Counter,
    /// Their bytes.
    pub in_bytes: Counter,
    /// Frames sent to the peer, copies of floods included.
    pub out_frames: Counter,
    /// Their bytes.
    pub out_bytes: Counter,
    /// Frames that did not fit the path to it.
    pub too_long: Counter,
    /// Frames dropped because the socket was full.
    pub full: Counter,
    /// Frames dropped because the kernel had no route.
    pub unreachable: Counter,
    /// Frames that the kernel refused for another reason.
    pub refused: Counter,
}

// SAFETY: the type consists of counters only, without padding.
unsafe impl Shareable for PeerCounters {}

const _: () = assert!(size_of::<PeerCounters>() == 64);

impl PeerCounters {
    /// Bytes of memory for the counters of this many peers.
    #[must_use]
    pub const fn bytes(peers: usize) -> usize {
        peers * size_of::<Self>()
    }
}

/// A list of peers, to be made [`Peers`].
#[derive(Clone, Copy)]
pub(super) struct List<'a> {
    /// The peers' addresses by number, from 1. The unspecified address is a free number.
    pub peers: &'a [IpAddr],
    /// The numbers of the peers that get floods; `None` for all.
    pub flooded: Option<&'a [u16]>,
    /// How many segments they are in, in turn.
    pub segments: u16,
    /// The UDP port of all peers.
    pub port: u16,
}

/// A tunnel's peers: hosts in a segment.
pub(super) struct Peers {
    /// The addresses by peer number; `None` for a free number.
    addresses: Vec<Option<Address>>,
    by_ip: HashMap<(u16, IpAddr), u16>,
    /// For each segment, the numbers of those that get floods, in order.
    flooded: Vec<Vec<u16>>,
    counters: SharedSlice<PeerCounters>,
}

impl Peers {
    /// These peers, with their counters in `memory`.
    pub fn new(list: &List<'_>, memory: OwnedFd) -> Result<Self, AttachError> {
        let expected = "1 to 1024 peers, and memory for their counters";
        let wrong = || AttachError::Descriptors { expected };
        // Peers that are set later need room for all of them.
        let room = if list.flooded.is_some() { MAX_PEERS } else { list.peers.len() };
        if room == 0 || list.peers.len() > MAX_PEERS {
            return Err(wrong());
        }
        let memory = Memfd::adopt(memory)?.map()?;
        let counters = memory.shared_slice(0, room).ok_or_else(wrong)?;
        Ok(Self::of(list, counters))
    }

    /// Other peers, with the same memory for counters; `None` if there is no room for this many.
    pub fn replaced(&self, list: &List<'_>) -> Option<Self> {
        let fits = list.peers.len() <= self.counters.len();
        fits.then(|| Self::of(list, self.counters.clone()))
    }

    fn of(list: &List<'_>, counters: SharedSlice<PeerCounters>) -> Self {
        let List { peers, port, segments, .. } = *list;
        let address =
            |ip: &IpAddr| (!ip.is_unspecified()).then(|| Address::of(SocketAddr::new(*ip, port)));
        let addresses: Vec<_> = peers.iter().map(address).collect();
        let is_there = |via: &u16| addresses.get(usize::from(*via).wrapping_sub(1));
        let is_there = |via: &u16| is_there(via).is_some_and(Option::is_some);
        let all = 1..=addresses.len() as u16;
        let mut numbers: Vec<_> = match list.flooded {
            Some(flooded) => flooded.iter().copied().filter(is_there).collect(),
            None => all.filter(is_there).collect(),
        };
        numbers.sort_unstable();
        numbers.dedup();
        let segment_of = |via: u16| (via - 1) % segments.max(1);
        let mut flooded = vec![Vec::new(); usize::from(segments)];
        numbers.iter().for_each(|via| flooded[usize::from(segment_of(*via))].push(*via));
        let numbered = peers.iter().copied().zip(1..).filter(|(ip, _)| !ip.is_unspecified());
        let by_ip = numbered.map(|(ip, via)| ((segment_of(via), ip), via)).collect();
        Self { addresses, by_ip, flooded, counters }
    }

    /// The highest peer number.
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// The number of the peer with this address in a segment.
    pub fn via(&self, segment: u16, ip: IpAddr) -> Option<u16> {
        self.by_ip.get(&(segment, ip)).copied()
    }

    /// Where peer `via` is.
    pub fn address(&self, via: u16) -> Option<&Address> {
        self.addresses.get(usize::from(via).checked_sub(1)?)?.as_ref()
    }

    /// The numbers, from `via` on, of the peers that get a segment's floods.
    pub fn flooded_from(&self, segment: u16, via: u16) -> &[u16] {
        let all = self.flooded.get(usize::from(segment)).map_or(&[][..], Vec::as_slice);
        &all[all.partition_point(|number| *number < via)..]
    }

    /// The counters of peer `via`.
    pub fn counters(&self, via: u16) -> Option<&PeerCounters> {
        self.counters.get(usize::from(via).checked_sub(1)?)
    }
}

/// The peers of a tunnel, which its control thread replaces.
pub(super) struct Hosts {
    peers: RwLock<Arc<Peers>>,
    /// Increases as they are replaced.
    ///
    /// # Protocol: `Hosts.version`
    /// - Writer: control thread
    /// - Reader: holder of the sending lock; home worker; once a batch
    /// - Ordering: add release / load acquire
    /// - Partner: `peers`, under its lock
    /// - Without it: frames go to the earlier peers for another batch
    /// - Shown by: `vxlan` test `peers_that_are_replaced_get_the_next_frames`
    version: AtomicU32,
}

/// A worker's copy of the peers.
pub(super) struct Known {
    pub peers: Arc<Peers>,
    version: u32,
}

impl Hosts {
    pub fn new(peers: Peers) -> Self {
        Self { peers: RwLock::new(Arc::new(peers)), version: AtomicU32::new(0) }
    }

    pub fn current(&self) -> Known {
        let version = self.version.load(Ordering::Acquire);
        let peers = Arc::clone(&self.peers.read().unwrap_or_else(PoisonError::into_inner));
        Known { peers, version }
    }

    pub fn replace(&self, peers: Peers) {
        *self.peers.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(peers);
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Known {
    /// Takes over the tunnel's current peers. Returns true if they have changed.
    #[inline]
    pub fn refresh(&mut self, hosts: &Hosts) -> bool {
        let is_old = self.version != hosts.version.load(Ordering::Acquire);
        if is_old {
            *self = hosts.current();
        }
        is_old
    }
}

/// For how long datagrams are not tried that a path has refused as too long.
const REFUSAL_NS: u64 = Nanos::SECOND;

/// The lengths that the paths to the peers have refused lately. Each refusal by the kernel costs a
/// call.
pub(super) struct Paths {
    /// For each peer: the length of the shortest datagram that was refused, and until when that
    /// holds.
    too_long: Vec<(usize, Nanos)>,
}

impl Paths {
    pub fn new(peers: usize) -> Self {
        Self { too_long: vec![(usize::MAX, Nanos(0)); peers + 1] }
    }

    /// Makes room for this many peers.
    pub fn resize(&mut self, peers: usize) {
        self.too_long.resize(peers + 1, (usize::MAX, Nanos(0)));
    }

    /// True if the path to a peer has refused a datagram of this length lately.
    pub fn refuses(&self, via: u16, datagram: usize, now: Nanos) -> bool {
        let known = self.too_long.get(usize::from(via));
        known.is_some_and(|(len, until)| datagram >= *len && now < *until)
    }

    /// Notes that the path to a peer has refused a datagram of this length.
    pub fn note(&mut self, via: u16, datagram: usize, now: Nanos) {
        if let Some((len, until)) = self.too_long.get_mut(usize::from(via)) {
            *len = if now < *until { datagram.min(*len) } else { datagram };
            *until = now + REFUSAL_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_tried_again_after_a_while() {
        let mut paths = Paths::new(2);
        let (start, later) = (Nanos(5), Nanos(5) + REFUSAL_NS);
        assert!(!paths.refuses(1, 9000, start));
        paths.note(1, 1500, start);
        paths.note(1, 1600, start);
        assert!(paths.refuses(1, 1500, start) && !paths.refuses(1, 1499, start));
        assert!(!paths.refuses(2, 9000, start) && !paths.refuses(1, 9000, later));
        paths.note(1, 1600, later);
        assert!(!paths.refuses(1, 1500, later), "the path became longer");
        paths.note(9, 1, start);
    }
}
