//! The answers of a tunnel to senders, as if from the destination: "packet too big" for packets
//! that do not fit the path, and the addresses of stations behind it.

use port::Nanos;

use super::Tunnel;

/// Answers that wait at most.
const MAX_ANSWERS: usize = 16;
/// The maximum number of answers of all kinds that may wait.
const MAX_WAITING: usize = 64;
/// The least time between two answers. Linux limits such messages in the same way
/// (`icmp_msgs_per_sec`).
const INTERVAL_NS: u64 = Nanos::MILLI;

/// An answer, which enters the switch as a frame of the peer.
pub(super) struct Answer {
    /// The peer.
    pub via: u16,
    /// The frame.
    pub frame: Vec<u8>,
}

/// The answers that the home worker hands in.
#[derive(Default)]
pub(super) struct Answers {
    waiting: Vec<Answer>,
    /// When the next answer may be made.
    next_at: Nanos,
}

impl Answers {
    pub const fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Answers the sender of a frame to peer `via` with the size that fits. `head` and `len` are
    /// the frame's. Does nothing if the rate limit forbids it, or the size is unknown.
    pub fn say(&mut self, tunnel: &Tunnel, (head, len): (&[u8], usize), via: u16, now: Nanos) {
        let Some(mtu) = tunnel.mtu().filter(|mtu| len > usize::from(*mtu)) else { return };
        // A tag that does not enter the tunnel takes no room there.
        let mtu = mtu.saturating_add(tunnel.segments.tag() as u16);
        if now < self.next_at || self.waiting.len() >= MAX_ANSWERS {
            return;
        }
        if let Some(frame) = frame::packet_too_big(head, mtu) {
            self.next_at = now + INTERVAL_NS;
            self.waiting.push(Answer { via, frame });
        }
    }

    /// Adds an answer. Returns false if too many wait.
    pub fn push(&mut self, via: u16, frame: Vec<u8>) -> bool {
        let fits = self.waiting.len() < MAX_WAITING;
        if fits {
            self.waiting.push(Answer { via, frame });
        }
        fits
    }

    pub fn take(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.waiting)
    }
}
