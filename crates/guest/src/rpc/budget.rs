//! Limits what each peer may use of a server: sessions and memory.

use std::collections::HashMap;

use super::carrier::Peer;

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    sessions: usize,
    bytes: usize,
}

/// What each peer's host uses, and all of them together.
#[derive(Debug)]
pub struct Budget {
    peers: HashMap<Peer, Share>,
    bytes: usize,
    max_bytes: usize,
    max_sessions_of_peer: usize,
    /// The server's own IPv6 network.
    network: Option<u64>,
}

impl Budget {
    pub fn new(max_bytes: usize, max_sessions_of_peer: usize, network: Option<u64>) -> Self {
        Self { peers: HashMap::new(), bytes: 0, max_bytes, max_sessions_of_peer, network }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a new session of the peer. Returns false if it has too many.
    pub fn open(&mut self, peer: Peer) -> bool {
        let share = self.peers.entry(peer.host(self.network)).or_default();
        let has_room = share.sessions < self.max_sessions_of_peer;
        share.sessions += usize::from(has_room);
        has_room
    }

    /// Notes that a session of the peer has ended. Its memory was given back before.
    pub fn close(&mut self, peer: Peer) {
        if let Some(share) = self.peers.get_mut(&peer.host(self.network)) {
            share.sessions = share.sessions.saturating_sub(1);
            if share.sessions == 0 {
                self.peers.remove(&peer.host(self.network));
            }
        }
    }

    /// True if the peer may use `bytes` more. One peer may use a quarter of all memory.
    pub fn has_room(&self, peer: Peer, bytes: usize) -> bool {
        let share = self.peers.get(&peer.host(self.network)).map_or(0, |share| share.bytes);
        self.bytes.saturating_add(bytes) <= self.max_bytes
            && share.saturating_add(bytes) <= self.max_bytes / 4
    }

    /// True if the peer is within its own limit of memory.
    #[inline]
    pub fn is_within(&self, peer: Peer) -> bool {
        self.bytes <= self.max_bytes / 4 || self.has_room(peer, 0)
    }

    /// Counts a change of the memory that the peer uses, even above its limit.
    pub fn change(&mut self, peer: Peer, from: usize, to: usize) {
        if from == to {
            return;
        }
        self.bytes = (self.bytes + to).saturating_sub(from);
        if let Some(share) = self.peers.get_mut(&peer.host(self.network)) {
            share.bytes = (share.bytes + to).saturating_sub(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use frame::Mac;

    use super::*;

    #[test]
    fn all_ports_of_a_host_share_its_limits() {
        let peer = |host, port| {
            let address = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), port);
            Peer::over_udp(Mac::local(host.into()), address)
        };
        let mut budget = Budget::new(400, 2, None);
        assert!(budget.open(peer(1, 1)) && budget.open(peer(1, 2)) && !budget.open(peer(1, 3)));
        assert!(budget.open(peer(2, 1)));
        budget.change(peer(1, 1), 0, 60);
        assert!(!budget.has_room(peer(1, 2), 60) && budget.has_room(peer(2, 1), 60));
        budget.change(peer(1, 1), 60, 0);
        (1..3).for_each(|port| budget.close(peer(1, port)));
        assert!(budget.open(peer(1, 3)));
    }
}
