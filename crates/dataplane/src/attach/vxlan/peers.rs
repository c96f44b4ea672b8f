//! The hosts at the other ends of a tunnel (VTEPs), numbered from 1: the forwarding table's `via`.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use port::{Counter, Nanos};
use shmem::{Memfd, Shareable, SharedSlice};
use turn::attach::AttachError;

use super::socket::Address;

/// Most peers of a tunnel.
pub const MAX_PEERS: usize = 1024;

/// The counters of a peer, in memory that outlives a data process. The supervisor reads them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct PeerCounters {
    /// Frames that came from it.
    pub in_frames: Counter,
    /// Their bytes.
    pub in_bytes: Counter,
    /// Frames sent to it, copies of floods included.
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

// SAFETY: counters only, without padding.
unsafe impl Shareable for PeerCounters {}

const _: () = assert!(size_of::<PeerCounters>() == 64);

impl PeerCounters {
    /// Bytes of memory for the counters of this many peers.
    #[must_use]
    pub const fn bytes(peers: usize) -> usize {
        peers * size_of::<Self>()
    }
}

/// A tunnel's peers.
pub(super) struct Peers {
    addresses: Vec<Address>,
    by_ip: HashMap<IpAddr, u16>,
    counters: SharedSlice<PeerCounters>,
}

impl Peers {
    /// These peers at UDP port `port`, with their counters in `memory`.
    pub fn new(peers: &[IpAddr], port: u16, memory: OwnedFd) -> Result<Self, AttachError> {
        let expected = "1 to 1024 peers, and memory for their counters";
        let wrong = || AttachError::Descriptors { expected };
        if peers.is_empty() || peers.len() > MAX_PEERS {
            return Err(wrong());
        }
        let memory = Memfd::adopt(memory)?.map()?;
        let counters = memory.shared_slice(0, peers.len()).ok_or_else(wrong)?;
        let by_ip = peers.iter().copied().zip(1..).collect();
        let addresses = peers.iter().map(|ip| Address::of(SocketAddr::new(*ip, port))).collect();
        Ok(Self { addresses, by_ip, counters })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// The number of the peer with this address.
    pub fn via(&self, ip: IpAddr) -> Option<u16> {
        self.by_ip.get(&ip).copied()
    }

    /// Where peer `via` is.
    pub fn address(&self, via: u16) -> Option<&Address> {
        self.addresses.get(usize::from(via).checked_sub(1)?)
    }

    /// The counters of peer `via`.
    pub fn counters(&self, via: u16) -> Option<&PeerCounters> {
        self.counters.get(usize::from(via).checked_sub(1)?)
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

    /// True if the path to a peer has refused a datagram of this length lately.
    pub fn refuses(&self, via: u16, datagram: usize, now: Nanos) -> bool {
        let known = self.too_long.get(usize::from(via));
        known.is_some_and(|(len, until)| datagram >= *len && now < *until)
    }

    /// Notes that it did.
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
