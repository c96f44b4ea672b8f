//! What peers may use of a server: sessions, and memory.

use std::collections::HashMap;

use frame::Mac;

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    sessions: usize,
    bytes: usize,
}

/// What all peers use, and each of them.
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

    /// Counts a session; false if the peer has too many.
    pub fn open(&mut self, peer: Mac) -> bool {
        let share = self.peers.entry(peer).or_default();
        let has_room = share.sessions < self.max_sessions_of_peer;
        share.sessions += usize::from(has_room);
        has_room
    }

    /// A session of the peer has ended. What it used was given back before.
    pub fn close(&mut self, peer: Mac) {
        if let Some(share) = self.peers.get_mut(&peer) {
            share.sessions = share.sessions.saturating_sub(1);
            if share.sessions == 0 {
                self.peers.remove(&peer);
            }
        }
    }

    /// Whether the peer may have `bytes` more. It may have a quarter of all.
    pub fn has_room(&self, peer: Mac, bytes: usize) -> bool {
        let share = self.peers.get(&peer).map_or(0, |share| share.bytes);
        self.bytes.saturating_add(bytes) <= self.max_bytes
            && share.saturating_add(bytes) <= self.max_bytes / 4
    }

    /// Whether the peer is within its limit.
    #[inline]
    pub fn is_within(&self, peer: Mac) -> bool {
        self.bytes <= self.max_bytes / 4 || self.has_room(peer, 0)
    }

    /// Counts a change of what the peer uses, even above its limit.
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
