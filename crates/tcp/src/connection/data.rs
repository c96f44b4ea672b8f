//! Receives data: lends it to the application from the frame, or copies it. ACKs go out once a
//! batch.

use crate::connection::{Connection, Events, Marks, QUICK_ACKS, Run, State};
use crate::counters::Drop;
use crate::handle::{ConnId, Receive};
use crate::segment::{Ecn, Flags};
use crate::seq::Seq;
use crate::shared::Shared;
use crate::time::Nanos;

/// Minimum time over which the receive rate is measured; the rate sizes the window.
const ROUND: u64 = Nanos::MILLI;

impl Connection {
    /// Handles a payload, a FIN, or both, which lie at least partly in the window.
    pub(super) fn on_data(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        now: Nanos,
        app: &mut impl Receive,
    ) -> Result<(), Drop> {
        let seq = run.header().seq;
        if !self.is_receiving() {
            self.acknowledge_now(shared);
            return Err(Drop::AfterClose);
        }
        self.on_congestion_marks(shared, run);
        let skip = if seq.before(self.receive.nxt) { self.receive.nxt.since(seq) } else { 0 };
        let start = seq + skip;
        let data_end = seq + run.len;
        let end = data_end.min(self.receive.edge).max(start);
        if data_end.after(end) {
            shared.counters.count(Drop::BeyondWindow);
            self.acknowledge_now(shared);
        }
        if self.receive.fin.is_some_and(|fin| end.after(fin)) {
            return Err(Drop::AfterClose);
        }
        if run.fin && data_end == end && self.receive.fin.is_none() {
            self.receive.fin = Some(data_end);
        }
        let (skip, keep) = (skip as usize, end.since(start) as usize);
        let whole = self.take_data(shared, run, skip, keep, start, now, app);
        self.on_stream_end(shared, now);
        whole
    }

    #[expect(clippy::too_many_arguments, reason = "what was found out about the run, used once")]
    fn take_data(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        skip: usize,
        keep: usize,
        start: Seq,
        now: Nanos,
        app: &mut impl Receive,
    ) -> Result<(), Drop> {
        if keep == 0 {
            // A FIN behind a gap.
            if start != self.receive.nxt {
                self.acknowledge_now(shared);
            }
            return Ok(());
        }
        if !self.has(Marks::OWNED) && self.listener == 0 {
            // The application has closed, so no reader is left (RFC 9293, 3.6.1).
            self.abort(shared, now);
            return Err(Drop::AfterClose);
        }
        if start == self.receive.nxt {
            self.in_order(shared, run, skip, keep, app)?;
            self.tune_window(shared, keep as u32, now);
            self.schedule_ack(shared, keep as u32, now);
            return Ok(());
        }
        self.out_of_order(shared, run, skip, keep, start)
    }

    fn in_order(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        skip: usize,
        keep: usize,
        app: &mut impl Receive,
    ) -> Result<(), Drop> {
        let id = ConnId { index: self.index, generation: self.generation };
        let receive = &mut self.receive;
        let mut lend = receive.buffer.readable() == 0 && self.marks.contains(Marks::OWNED);
        for piece in run.pieces(skip, keep) {
            let taken = if lend { app.receive(id, piece).min(piece.len()) } else { 0 };
            receive.buffer.skip(taken, &mut shared.pool);
            receive.nxt += taken as u32;
            shared.counters.bytes_lent += taken as u64;
            shared.counters.bytes_in += taken as u64;
            let rest = &piece[taken..];
            if rest.is_empty() {
                continue;
            }
            lend = false;
            if !receive.buffer.write(receive.buffer.readable(), rest, &mut shared.pool) {
                return self.out_of_memory(shared);
            }
            receive.buffer.extend(rest.len());
            receive.nxt += rest.len() as u32;
            shared.counters.bytes_in += rest.len() as u64;
        }
        self.fill_gap(shared);
        if self.receive.buffer.readable() > 0 {
            self.queue_events(shared, Events::READABLE);
        }
        Ok(())
    }

    /// Drops data for lack of memory; the peer retransmits it. A FIN that was seen is forgotten, as
    /// it must not come before missing data.
    fn out_of_memory(&mut self, shared: &mut Shared) -> Result<(), Drop> {
        if self.receive.fin.is_some_and(|fin| fin.after(self.receive.nxt)) {
            self.receive.fin = None;
        }
        self.acknowledge_now(shared);
        if self.receive.buffer.readable() > 0 {
            self.queue_events(shared, Events::READABLE);
        }
        Err(Drop::NoMemory)
    }

    /// Makes out-of-order data readable that the in-order data has reached.
    fn fill_gap(&mut self, shared: &mut Shared) {
        let receive = &mut self.receive;
        if receive.ranges.is_empty() {
            if receive.buffer.readable() == 0 {
                receive.buffer.shrink(&mut shared.pool);
            }
            return;
        }
        let end = receive.ranges.advance(receive.nxt);
        let filled = end.since(receive.nxt);
        receive.buffer.extend(filled as usize);
        receive.nxt = end;
        shared.counters.bytes_in += u64::from(filled);
        // A gap was filled, at least in part: acknowledge at once (RFC 5681, 4.2).
        receive.quick_acks = QUICK_ACKS;
        self.acknowledge_now(shared);
    }

    fn out_of_order(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        skip: usize,
        keep: usize,
        start: Seq,
    ) -> Result<(), Drop> {
        let receive = &mut self.receive;
        receive.quick_acks = QUICK_ACKS;
        let end = start + keep as u32;
        if !receive.ranges.has_room(start, end) {
            self.acknowledge_now(shared);
            return Err(Drop::Ranges);
        }
        let mut at = receive.buffer.readable() + start.since(receive.nxt) as usize;
        for piece in run.pieces(skip, keep) {
            if !receive.buffer.write(at, piece, &mut shared.pool) {
                return self.out_of_memory(shared);
            }
            at += piece.len();
        }
        if receive.ranges.insert(start, end) {
            receive.duplicate = Some((start, end));
            shared.counters.count(Drop::Duplicate);
        }
        self.acknowledge_now(shared);
        Ok(())
    }

    /// Reacts to congestion marks on received data (RFC 3168, 6.1.3).
    fn on_congestion_marks(&mut self, shared: &mut Shared, run: &Run<'_, '_>) {
        if !self.has(Marks::ECN) {
            return;
        }
        if run.header().flags.contains(Flags::CWR) {
            self.marks.remove(Marks::ECE);
        }
        if run.header().ecn == Ecn::Congested && !self.has(Marks::ECE) {
            self.marks |= Marks::ECE;
            self.acknowledge_now(shared);
        }
    }

    /// Schedules an ACK: at the end of the batch for two segments or more, otherwise a delayed one
    /// (RFC 9293, 3.8.6.3).
    fn schedule_ack(&mut self, shared: &mut Shared, len: u32, now: Nanos) {
        let receive = &mut self.receive;
        receive.unacked += len;
        let two = 2 * u32::from(self.send.mss);
        if receive.unacked >= two.min(receive.limit / 2) || receive.quick_acks > 0 {
            self.acknowledge_now(shared);
        } else if self.timers.ack == Nanos::NEVER {
            self.timers.ack = now + self.tuning.ack_delay;
        }
    }

    /// Sizes the window by the measured bandwidth-delay product, so that it grows only as needed.
    fn tune_window(&mut self, shared: &Shared, len: u32, now: Nanos) {
        let receive = &mut self.receive;
        receive.round_bytes = receive.round_bytes.saturating_add(len);
        let rtt = self.send.rtt.min();
        let elapsed = now - receive.round;
        if elapsed < rtt.max(ROUND) || receive.limit >= shared.config.receive_max {
            if elapsed > rtt.max(ROUND) {
                (receive.round, receive.round_bytes) = (now, 0);
            }
            return;
        }
        let delay_product =
            u128::from(receive.round_bytes) * u128::from(rtt) / u128::from(elapsed.max(1));
        let wanted = u32::try_from(2 * delay_product).unwrap_or(u32::MAX);
        if wanted > receive.limit {
            receive.limit =
                wanted.max(receive.limit.saturating_mul(2)).min(shared.config.receive_max);
        }
        (receive.round, receive.round_bytes) = (now, 0);
    }

    /// Handles the end of the peer's stream, if all data before it has arrived.
    fn on_stream_end(&mut self, shared: &mut Shared, now: Nanos) {
        if self.receive.fin != Some(self.receive.nxt) || !self.is_receiving() {
            return;
        }
        self.receive.nxt += 1;
        self.acknowledge_now(shared);
        self.queue_events(shared, Events::PEER_CLOSED | Events::READABLE);
        match self.state {
            State::FinWait1 if self.has(Marks::FIN_ACKED) => self.enter_time_wait(shared, now),
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(shared, now),
            _ => self.state = State::CloseWait,
        }
    }

    /// Moves the connection to TIME-WAIT: both streams have ended. A 32-byte entry answers from
    /// here on.
    pub(super) fn enter_time_wait(&mut self, shared: &mut Shared, now: Nanos) {
        let ts_recent = self.has(Marks::TIMESTAMPS).then_some(self.receive.ts_recent);
        shared.enter_time_wait(&self.flow, self.send.nxt, self.receive.nxt, ts_recent, now);
        if self.has(Marks::ACK_DUE) {
            let header = self.header(self.send.nxt, Flags::ACK, now);
            shared.reply(header);
        }
        self.finish(shared, crate::connection::CloseReason::Finished);
    }
}
