//! Limits what each peer may use of a server: sessions and memory.

use std::collections::HashMap;

use frame::Mac;

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    sessions: usize,
    bytes: usize,
}

/// What each peer uses, and all of them together.
#[derive(Debug)]
pub struct Budget {
    peers: HashMap<Mac, Share>,
    bytes: usize,
    max_bytes: usize,
    max_sessions_of_peer: usize,
}

impl Budget {
    pub fn new(max_bytes: usize, max_sessions_of_peer: usize) -> Self {
        Self { peers: HashMap::new(), bytes: 0, max_bytes, max_sessions_of_peer }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a new session of the peer. Returns false if it has too many.
    pub fn open(&mut self, peer: Mac) -> bool {
        let share = self.peers.entry(peer).or_default();
        let has_room = share.sessions < self.max_sessions_of_peer;
        share.sessions += usize::from(has_room);
        has_room
    }

    /// Notes that a session of the peer has ended. Its memory was given back before.
    pub fn close(&mut self, peer: Mac) {
        if let Some(share) = self.peers.get_mut(&peer) {
            share.sessions = share.sessions.saturating_sub(1);
            if share.sessions == 0 {
                self.peers.remove(&peer);
            }
        }
    }

    /// True if the peer may use `bytes` more. One peer may use a quarter of all memory.
    pub fn has_room(&self, peer: Mac, bytes: usize) -> bool {
        let share = self.peers.get(&peer).map_or(0, |share| share.bytes);
        self.bytes.saturating_add(bytes) <= self.max_bytes
            && share.saturating_add(bytes) <= self.max_bytes / 4
    }

    /// True if the peer is within its own limit of memory.
    #[inline]
    pub fn is_within(&self, peer: Mac) -> bool {
        self.bytes <= self.max_bytes / 4 || self.has_room(peer, 0)
    }

    /// Counts a change of the memory that the peer uses, even above its limit.
    pub fn change(&mut self, peer: Mac, from: usize, to: usize) {
        if from == to {
            return;
        }
        self.bytes = (self.bytes + to).saturating_sub(from);
        if let Some(share) = self.peers.get_mut(&peer) {
            share.bytes = (share.bytes + to).saturating_sub(from);
        }
    }
}
