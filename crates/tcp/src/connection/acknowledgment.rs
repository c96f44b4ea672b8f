//! Handles what the peer acknowledges, cumulatively and selectively (RFC 9293, 3.10.7.4, fifth
//! check).

use crate::connection::{CloseReason, Connection, Events, Marks, Phase, Run, State};
use crate::counters::Drop;
use crate::segment::{Flags, Header};
use crate::seq::Seq;
use crate::shared::Shared;
use crate::time::Nanos;

/// The changes that one acknowledgment has caused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Numbers acknowledged in order.
    pub acked: u32,
    /// Newly delivered bytes: acknowledged, or selectively acknowledged.
    pub delivered: u32,
    /// Bytes in flight before this segment.
    pub in_flight: u32,
    /// Bytes that were unacknowledged before this segment (RFC 5681, 2: FlightSize).
    pub outstanding: u32,
    /// The segment had a duplicate SACK.
    pub duplicate: bool,
    /// The segment was a duplicate ACK and carried nothing else.
    pub repeated: bool,
}

impl Connection {
    pub(super) fn on_ack(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        now: Nanos,
    ) -> Result<(), Drop> {
        let header = run.header();
        let (ack, una) = (header.ack, self.send.una);
        if !self.is_plausible(shared, ack, now)? {
            return Ok(());
        }
        let window = u32::from(header.window) << self.send.shift;
        let window_changed = self.update_window(shared, header, window);
        let mut progress = Progress {
            acked: ack.since(una),
            in_flight: self.send.board.in_flight(),
            outstanding: self.send.nxt.since(una),
            repeated: run.len == 0 && !run.fin && ack == una && !window_changed,
            ..Progress::default()
        };
        let sacked = self.send.board.sacked;
        let rtt = self.take_acknowledged(shared, header, now);
        let sack_rtt = self.take_sacked(shared, header, &mut progress, now);
        progress.delivered = (progress.acked + self.send.board.sacked).saturating_sub(sacked);
        if let Some(rtt) = rtt.or(sack_rtt) {
            self.send.rtt.sample(rtt, now);
            self.send.congestion.sample(rtt);
        }
        if progress.acked > 0 {
            self.send.duplicate_acks = 0;
            self.report_room(shared);
        }
        self.recover(shared, header, &progress, now);
        self.after_ack(shared, now);
        Ok(())
    }

    /// Returns false for an acknowledgment of data that was acknowledged before (RFC 5961, 5).
    fn is_plausible(&mut self, shared: &mut Shared, ack: Seq, now: Nanos) -> Result<bool, Drop> {
        let send = &self.send;
        if ack.after(send.nxt) || ack.before(send.una - send.max_window) {
            self.challenge(shared, now);
            return Err(Drop::BadAck);
        }
        Ok(!ack.before(send.una))
    }

    /// Updates SND.WND from the latest segment (RFC 9293, 3.10.7.4).
    fn update_window(&mut self, shared: &mut Shared, header: &Header, window: u32) -> bool {
        let send = &mut self.send;
        let newer =
            send.wl1.before(header.seq) || (send.wl1 == header.seq && !header.ack.before(send.wl2));
        if !newer {
            return false;
        }
        let changed = window != send.window;
        send.set_window(window, header.seq, header.ack);
        if changed {
            self.wake(shared);
        }
        changed
    }

    /// Drops acknowledged data from the buffer; returns a round-trip time, if one was measured.
    fn take_acknowledged(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        now: Nanos,
    ) -> Option<u64> {
        let send = &mut self.send;
        let acked = header.ack.since(send.una);
        if acked == 0 {
            return None;
        }
        let echo = header.options.timestamp.map(|t| t.echo.wrapping_sub(self.timestamp_offset));
        let (mut rtt, mut once, mut again) = (None, false, false);
        let (rack, estimate) = (&mut send.rack, &send.rtt);
        send.board.acknowledge(header.ack, |record| {
            if !record.sacked {
                rack.delivered(record, estimate, echo, now);
                rtt = Some(now - record.sent);
            }
            again |= record.retransmitted;
            once |= !record.retransmitted;
        });
        // A retransmitted segment may have held up those after it, so their delay says nothing
        // about the path (Karn).
        let rtt = rtt.filter(|_| !again);
        send.expired = None;
        send.rtt.backoff = if once { 0 } else { send.rtt.backoff.saturating_sub(1) };
        let data = (acked as usize).min(send.buffer.len());
        send.buffer.acknowledge(data, &mut shared.pool);
        send.una = header.ack;
        if self.marks.contains(Marks::FIN_SENT) && header.ack == send.nxt {
            self.marks |= Marks::FIN_ACKED;
        }
        // The connection may be able to send more.
        self.wake(shared);
        rtt
    }

    /// Marks the data that the peer holds out of order; returns a round-trip time, if one was
    /// measured.
    fn take_sacked(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        progress: &mut Progress,
        now: Nanos,
    ) -> Option<u64> {
        if !self.has(Marks::SACK) || header.options.sack.is_empty() {
            return None;
        }
        let blocks = header.options.sack.as_slice();
        if is_duplicate(blocks, header.ack) {
            progress.duplicate = true;
            self.on_duplicate_sack(shared, blocks[0]);
        }
        let echo = header.options.timestamp.map(|t| t.echo.wrapping_sub(self.timestamp_offset));
        let mss = self.payload_max();
        let send = &mut self.send;
        let (rack, estimate) = (&mut send.rack, &send.rtt);
        let mut rtt = None;
        for &(start, end) in blocks {
            let valid = start.before(end) && !start.before(send.una) && !end.after(send.nxt);
            if valid {
                send.board.sack(start, end, mss, |record| {
                    rack.delivered(record, estimate, echo, now);
                    rtt = Some(now - record.sent).filter(|_| !record.retransmitted).or(rtt);
                });
            }
        }
        rtt
    }

    fn on_duplicate_sack(&mut self, shared: &mut Shared, (start, end): (Seq, Seq)) {
        shared.counters.duplicate_sacks += 1;
        let send = &mut self.send;
        let len = end.since(start);
        if !start.before(end) || end.after(send.nxt) || len > send.max_window {
            return;
        }
        send.rack.duplicate(send.una, send.nxt);
        if core::mem::take(&mut send.by_timer) {
            send.rtt.was_early();
        }
        if let Some(left) = &mut send.undo {
            *left = left.saturating_sub(len);
        }
    }

    /// Changes the state and the timers after an acknowledgment.
    fn after_ack(&mut self, shared: &mut Shared, now: Nanos) {
        if self.has(Marks::FIN_ACKED) {
            match self.state {
                State::FinWait1 => self.state = State::FinWait2,
                State::Closing => self.enter_time_wait(shared, now),
                State::LastAck => self.finish(shared, CloseReason::Finished),
                _ => {}
            }
        }
    }

    /// Tells an application that waits for room, once there is enough to be worth a call.
    fn report_room(&mut self, shared: &mut Shared) {
        if self.has(Marks::WANTS_ROOM)
            && self.room(&shared.config) >= self.send_limit(&shared.config) / 2
        {
            self.marks.remove(Marks::WANTS_ROOM);
            self.queue_events(shared, Events::WRITABLE);
        }
    }

    /// Returns true if the current congestion phase is over.
    pub(super) fn phase_is_over(&self) -> bool {
        match self.send.phase {
            Phase::Open => false,
            Phase::Recovery(until) | Phase::Loss(until) | Phase::Reducing(until) => {
                !self.send.una.before(until)
            }
        }
    }

    /// Reacts to congestion marks that the peer echoes (RFC 3168, 6.1.2).
    pub(super) fn on_echo(&mut self, shared: &mut Shared, header: &Header, progress: &Progress) {
        let echo = self.has(Marks::ECN) && header.flags.contains(Flags::ECE);
        if !echo || self.send.phase != Phase::Open || self.send.board.is_empty() {
            return;
        }
        shared.counters.ecn_reductions += 1;
        self.marks |= Marks::CWR_DUE;
        self.reduce(progress.outstanding);
        self.send.phase = Phase::Reducing(self.send.nxt);
    }
}

/// Returns true if the first block reports data that arrived twice (RFC 2883, 4).
fn is_duplicate(blocks: &[(Seq, Seq)], ack: Seq) -> bool {
    match blocks {
        [(start, end), ..] if start.before(ack) && !end.after(ack) => true,
        [(start, end), (outer_start, outer_end), ..] => {
            !start.before(*outer_start) && !end.after(*outer_end)
        }
        _ => false,
    }
}
