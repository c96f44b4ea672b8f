//! The answers of a tunnel to senders whose packets do not fit the path: "packet too big", as if
//! from the destination.

use port::Nanos;

use super::Tunnel;

/// Answers that wait at most.
const MAX_ANSWERS: usize = 16;
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
        let Some(mtu) = tunnel.mtu.filter(|mtu| len > usize::from(*mtu)) else { return };
        if now < self.next_at || self.waiting.len() >= MAX_ANSWERS {
            return;
        }
        if let Some(frame) = frame::packet_too_big(head, mtu) {
            self.next_at = now + INTERVAL_NS;
            self.waiting.push(Answer { via, frame });
        }
    }

    pub fn take(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.waiting)
    }
}
