//! The calls that an application makes on a connection.

use bytes::Bytes;

use crate::config::Config;
use crate::connection::{CloseReason, Connection, Marks, State};
use crate::handle::Path;
use crate::segment::Flags;
use crate::seq::Seq;
use crate::shared::Shared;
use crate::time::Nanos;

/// The maximum number of chunks in a send buffer.
const MAX_CHUNKS: usize = 16_384;

impl Connection {
    /// Limit of unacknowledged bytes: twice the congestion window, within the configured bounds.
    pub fn send_limit(&self, config: &Config) -> usize {
        let window = self.send.congestion.window.saturating_mul(2);
        window.clamp(config.send_start, config.send_max.max(config.send_start)) as usize
    }

    /// Bytes that the application can send now.
    pub fn room(&self, config: &Config) -> usize {
        if self.send.buffer.chunks() >= MAX_CHUNKS {
            return 0;
        }
        self.send_limit(config).saturating_sub(self.send.buffer.len())
    }

    /// True if the application may still send.
    pub fn can_send(&self) -> bool {
        let open = matches!(
            self.state,
            State::SynSent | State::SynReceived | State::Established | State::CloseWait
        );
        open && !self.has(Marks::FIN_QUEUED)
    }

    /// Appends a chunk; gives it back if the buffer is full.
    pub fn send(&mut self, shared: &mut Shared, bytes: Bytes) -> Result<(), Bytes> {
        if self.room(&shared.config) == 0 || self.send.buffer.len() + bytes.len() > MAX_QUEUED {
            self.marks |= Marks::WANTS_ROOM;
            return Err(bytes);
        }
        self.send.buffer.push(bytes);
        self.wake(shared);
        Ok(())
    }

    /// Copies bytes; returns how many found room.
    pub fn send_slice(&mut self, shared: &mut Shared, bytes: &[u8]) -> usize {
        let room = self.room(&shared.config).min(bytes.len());
        let taken = self.send.buffer.copy_in(&bytes[..room], &mut shared.pool);
        if taken < bytes.len() {
            self.marks |= Marks::WANTS_ROOM;
        }
        if taken > 0 {
            self.wake(shared);
        }
        taken
    }

    /// Passes the readable data to `read`, piece by piece, until it takes less than a whole piece.
    pub fn receive(&mut self, shared: &mut Shared, mut read: impl FnMut(&[u8]) -> usize) -> usize {
        let mut total = 0;
        loop {
            let piece = self.receive.buffer.front();
            if piece.is_empty() {
                break;
            }
            let len = piece.len();
            let taken = read(piece).min(len);
            self.receive.buffer.consume(taken, &mut shared.pool);
            total += taken;
            if taken < len {
                break;
            }
        }
        self.after_read(shared, total);
        total
    }

    /// Copies data out without taking it; returns how many bytes.
    pub fn peek(&self, out: &mut [u8]) -> usize {
        self.receive.buffer.copy_out(0, out)
    }

    /// Consumes `n` bytes that were peeked at.
    pub fn consume(&mut self, shared: &mut Shared, n: usize) -> usize {
        let n = n.min(self.receive.buffer.readable());
        self.receive.buffer.consume(n, &mut shared.pool);
        self.after_read(shared, n);
        n
    }

    fn after_read(&mut self, shared: &mut Shared, n: usize) {
        if self.receive.ranges.is_empty() {
            self.receive.buffer.shrink(&mut shared.pool);
        }
        // The announced window was closed or nearly so: the peer waits for an update.
        let small = self.receive.edge.since(self.receive.nxt) < self.receive.limit / 2;
        if n > 0 && small && self.is_receiving() && self.window_edge().after(self.receive.edge) {
            self.acknowledge_now(shared);
        }
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> usize {
        self.receive.buffer.readable()
    }

    /// Returns true if no more data can come: the peer has ended its stream, or the connection is
    /// closed.
    pub fn is_at_end(&self) -> bool {
        self.state == State::Closed
            || self.receive.fin.is_some_and(|fin| self.receive.nxt.after(fin))
    }

    /// Ends this side's stream.
    pub fn shut_down(&mut self, shared: &mut Shared) {
        self.state = match self.state {
            State::Established => State::FinWait1,
            // The FIN follows when the handshake is done.
            state @ (State::SynSent | State::SynReceived) => state,
            State::CloseWait => State::LastAck,
            _ => return,
        };
        self.marks |= Marks::FIN_QUEUED;
        self.wake(shared);
    }

    /// Releases the connection when the application closes it. Unread data makes this a reset (RFC
    /// 9293, 3.6.1; RFC 2525, 2.17).
    pub fn release(&mut self, shared: &mut Shared, now: Nanos) {
        self.marks.remove(Marks::OWNED);
        self.listener = 0;
        if self.readable() > 0 && self.state != State::Closed {
            self.abort(shared, now);
        }
        self.receive.buffer.clear(&mut shared.pool);
        if self.state == State::SynSent && self.send.buffer.len() == 0 {
            // RFC 9293, 3.10.4: a connection in SYN-SENT without data is just dropped.
            self.finish(shared, CloseReason::Aborted);
        }
        self.shut_down(shared);
        if self.state != State::Closed {
            self.arm_orphan(now);
            self.rearm(shared, now);
        }
    }

    /// Returns true if a segment with this number may be in flight.
    pub fn is_in_flight(&self, seq: Seq) -> bool {
        let send = &self.send;
        let synchronised =
            !matches!(self.state, State::SynSent | State::SynReceived | State::Closed);
        synchronised && !seq.before(send.una) && seq.before(send.nxt)
    }

    /// Returns true if our SYN has this number and is unanswered.
    pub fn is_opening_with(&self, seq: Seq) -> bool {
        self.state == State::SynSent && seq == self.iss
    }

    /// What the connection knows of the path to its peer.
    pub fn path(&self) -> Path {
        let send = &self.send;
        Path {
            rtt: send.rtt.smoothed,
            rtt_min: send.rtt.min(),
            rto: send.rtt.rto(&self.tuning),
            congestion_window: send.congestion.window,
            threshold: send.congestion.threshold,
            in_flight: send.board.in_flight(),
            send_window: send.window,
            receive_window: self.receive.limit,
            mss: self.payload_max(),
        }
    }

    /// Resets the connection.
    pub fn abort(&mut self, shared: &mut Shared, now: Nanos) {
        if !matches!(self.state, State::SynSent | State::Closed) {
            let reset = self.header(self.send.nxt, Flags::RST | Flags::ACK, now);
            shared.reply(reset);
        }
        self.finish(shared, CloseReason::Aborted);
    }
}

/// Maximum bytes in a send buffer, so that offsets within it fit in sequence numbers.
const MAX_QUEUED: usize = 1 << 30;
