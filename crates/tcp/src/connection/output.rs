//! Sends SYNs, data, retransmissions, probes and ACKs (RFC 9293, 3.8).

use crate::connection::timers::Retransmission;
use crate::connection::{Connection, Marks, State};
use crate::options::{Options, SackBlocks, Timestamp};
use crate::segment::{Ecn, Emit, Flags, Full, Header, Request};
use crate::send::Payload;
use crate::seq::Seq;
use crate::shared::Shared;
use crate::time::Nanos;

/// Maximum payload bytes of one visit, so that connections take turns.
const QUANTUM: u32 = 128 << 10;

/// A piece of the stream that the windows allow to send.
#[derive(Clone, Copy)]
struct Piece {
    seq: Seq,
    len: u32,
    fin: bool,
}

impl Connection {
    /// Sends what is due. Returns true if more is due than one visit may send.
    ///
    /// # Errors
    /// [`Full`] if `out` has no room. What was not sent stays due.
    pub fn transmit(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<bool, Full> {
        let result = match self.state {
            State::SynSent | State::SynReceived => self.send_syn(shared, now, out).map(|()| false),
            State::Closed => Ok(false),
            _ => self.send_all(shared, now, out),
        };
        self.rearm(shared, now);
        result
    }

    fn send_syn(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<(), Full> {
        if !self.has(Marks::SYN_DUE) {
            return Ok(());
        }
        let header = self.syn_header(shared, now);
        self.emit(shared, out, &Request { header, gso_size: 0, payload: Payload::EMPTY })?;
        self.marks.remove(Marks::SYN_DUE | Marks::ACK_DUE);
        self.send.last_sent = now;
        if self.timers.retransmission_is_off() {
            let wait = self.send.rtt.rto(&self.tuning);
            self.timers.set_retransmission(Retransmission::Timeout, now + wait);
        }
        Ok(())
    }

    fn syn_header(&self, shared: &Shared, now: Nanos) -> Header {
        let config = &shared.config;
        let answer = self.state == State::SynReceived;
        // A retransmitted SYN does not ask for ECN: a middlebox may have dropped the first for it
        // (RFC 3168, 6.1.1.1).
        let ecn = match answer {
            true => self.has(Marks::ECN),
            false => config.ecn && self.send.rtt.backoff < 2,
        };
        let flags = match (answer, ecn) {
            (true, true) => Flags::SYN | Flags::ACK | Flags::ECE,
            (true, false) => Flags::SYN | Flags::ACK,
            (false, true) => Flags::SYN | Flags::ECE | Flags::CWR,
            (false, false) => Flags::SYN,
        };
        let timestamp = Timestamp {
            value: now.millis().wrapping_add(self.timestamp_offset),
            echo: self.receive.ts_recent,
        };
        let stamps = if answer { self.has(Marks::TIMESTAMPS) } else { config.timestamps };
        let scales = if answer { self.has(Marks::SCALED) } else { true };
        Header {
            flow: self.flow,
            seq: self.iss,
            ack: if answer { self.receive.nxt } else { Seq(0) },
            flags,
            window: self.receive.limit.min(0xffff) as u16,
            ecn: Ecn::NotCapable,
            options: Options {
                mss: Some(config.mss(self.flow.ip_header_len())),
                window_scale: (scales && config.window_scaling).then(|| config.window_shift()),
                sack_permitted: config.sack && (!answer || self.has(Marks::SACK)),
                // A middlebox may drop what it does not know, so it is not sent twice.
                ack_delay: if self.send.rtt.backoff == 0 { config.told_ack_delay() } else { 0 },
                timestamp: stamps.then_some(timestamp),
                sack: SackBlocks::NONE,
            },
        }
    }

    fn send_all(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<bool, Full> {
        let mut left = QUANTUM;
        self.marks.remove(Marks::LIMITED);
        self.restart_after_idle(now);
        self.send_tail_probe(shared, now, out)?;
        let more = loop {
            let sent = match self.send_again(shared, now, out)? {
                0 => self.send_new(shared, now, out)?,
                sent => sent,
            };
            if sent == 0 {
                break false;
            }
            left = left.saturating_sub(sent);
            if left == 0 {
                break true;
            }
        };
        if !more {
            self.send_probe(shared, now, out)?;
        }
        self.send_ack(shared, now, out)?;
        Ok(more)
    }

    fn restart_after_idle(&mut self, now: Nanos) {
        let silence = now - self.send.last_sent;
        if self.send.board.is_empty() && silence > self.send.rtt.rto(&self.tuning) {
            self.send.congestion.idle(self.tuning.restart_after_idle);
        }
    }

    /// Retransmits one lost record, or as much of it as the window allows. Returns the number of
    /// bytes.
    fn send_again(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<u32, Full> {
        let Some((index, record)) = self.send.board.next_lost() else { return Ok(0) };
        let in_flight = self.send.board.in_flight();
        let room = self.send.congestion.window.saturating_sub(in_flight);
        let mss = self.segment_payload();
        if room < mss.min(record.len()) && in_flight > 0 {
            self.marks |= Marks::LIMITED;
            return Ok(0);
        }
        let len = record.len().min((room / mss).max(1) * mss).min(self.request_max(shared, mss));
        self.resend(shared, index, Piece { seq: record.start, len, fin: false }, mss, now, out)?;
        Ok(len)
    }

    fn resend(
        &mut self,
        shared: &mut Shared,
        index: usize,
        mut piece: Piece,
        mss: u32,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<(), Full> {
        let numbers = piece.len;
        let data = self.send.data_end().since(piece.seq).min(numbers);
        piece.fin = data < numbers;
        piece.len = data;
        // Retransmitted data is never ECN-capable (RFC 3168, 6.1.5).
        self.emit_data(shared, piece, mss, Ecn::NotCapable, now, out)?;
        self.send.board.resent(index, numbers, now);
        self.count_sent(numbers);
        if let Some(left) = &mut self.send.undo {
            *left = left.saturating_add(numbers);
        }
        shared.counters.bytes_retransmitted += u64::from(data);
        if self.timers.retransmission_is_off() {
            self.arm_retransmission(now);
        }
        Ok(())
    }

    /// Sends new data, at most one request. Returns how many sequence numbers it takes.
    fn send_new(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<u32, Full> {
        let mss = self.segment_payload();
        let Some(piece) = self.next_new(shared, mss) else { return Ok(0) };
        self.send_piece(shared, piece, mss, now, out)
    }

    fn send_piece(
        &mut self,
        shared: &mut Shared,
        piece: Piece,
        mss: u32,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<u32, Full> {
        let ecn =
            if self.has(Marks::ECN) && piece.len > 0 { Ecn::Capable0 } else { Ecn::NotCapable };
        self.emit_data(shared, piece, mss, ecn, now, out)?;
        let numbers = piece.len + u32::from(piece.fin);
        let first = self.send.board.is_empty();
        self.send.nxt = piece.seq + numbers;
        self.send.board.push(piece.seq, self.send.nxt, now, mss);
        if piece.fin {
            self.marks |= Marks::FIN_SENT;
        }
        self.count_sent(numbers);
        self.arm_for_new_data(first, now);
        Ok(numbers)
    }

    /// Returns the next unsent piece, if the windows and Nagle's algorithm allow it.
    fn next_new(&mut self, shared: &Shared, mss: u32) -> Option<Piece> {
        if self.has(Marks::FIN_SENT) || self.send.board.is_full() {
            return None;
        }
        let send = &self.send;
        let unsent = send.data_end().since(send.nxt);
        let fin_waits = self.has(Marks::FIN_QUEUED);
        if unsent == 0 {
            return fin_waits.then_some(Piece { seq: send.nxt, len: 0, fin: true });
        }
        let outstanding = send.nxt.since(send.una);
        let congestion = send.congestion.window.saturating_sub(send.board.in_flight());
        let window = send.window.saturating_sub(outstanding);
        let most = unsent.min(congestion).min(window).min(self.request_max(shared, mss));
        let nagle = self.tuning.nagle && outstanding > 0 && !fin_waits;
        let len = if most == unsent && !nagle { most } else { most / mss * mss };
        if len > 0 {
            return Some(Piece { seq: send.nxt, len, fin: fin_waits && len == unsent });
        }
        if congestion < mss && window > congestion {
            self.marks |= Marks::LIMITED;
        }
        // The window may never open for a whole segment: half of the largest window suffices (RFC
        // 9293, 3.8.6.2.1).
        let silly = outstanding > 0 || window < send.max_window / 2 || window == 0;
        let last_resort = Piece { seq: send.nxt, len: window.min(unsent), fin: false };
        (!silly && congestion >= window).then_some(last_resort)
    }

    /// Sends a tail loss probe: new data if there is any, otherwise the last segment (RFC 8985,
    /// 7.3).
    fn send_tail_probe(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<(), Full> {
        if !self.has(Marks::TAIL_PROBE_DUE) {
            return Ok(());
        }
        let mss = self.segment_payload();
        let unsent = self.send.data_end().since(self.send.nxt);
        let window = self.send.window.saturating_sub(self.send.nxt.since(self.send.una));
        let len = unsent.min(mss).min(window);
        if !self.has(Marks::FIN_SENT) && len > 0 && len == unsent.min(mss) {
            let fin = self.has(Marks::FIN_QUEUED) && len == unsent;
            self.send_piece(shared, Piece { seq: self.send.nxt, len, fin }, mss, now, out)?;
            self.probed(false);
        } else if let Some((index, record)) = self.send.board.split_tail(mss) {
            let piece = Piece { seq: record.start, len: record.len(), fin: false };
            self.resend(shared, index, piece, mss, now, out)?;
            self.probed(true);
        }
        self.marks.remove(Marks::TAIL_PROBE_DUE);
        Ok(())
    }

    /// Probes a closed window or an idle peer. The probe's number is one that the peer has
    /// received, so it must answer.
    fn send_probe(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<(), Full> {
        let blocked = !self.has(Marks::FIN_SENT) && self.send.data_end() != self.send.nxt;
        self.arm_window_probe(blocked, now);
        if !self.has(Marks::PROBE_DUE) {
            return Ok(());
        }
        let outstanding = self.send.nxt.since(self.send.una);
        let window = self.send.window.saturating_sub(outstanding);
        let mss = self.segment_payload();
        if blocked && outstanding == 0 && window > 0 {
            // The window is open for less than a segment, and the timer has expired: send that
            // much.
            let len = self.send.data_end().since(self.send.nxt).min(window).min(mss);
            self.send_piece(shared, Piece { seq: self.send.nxt, len, fin: false }, mss, now, out)?;
        } else {
            let header = self.header(self.send.una - 1, Flags::ACK, now);
            self.emit(shared, out, &Request { header, gso_size: 0, payload: Payload::EMPTY })?;
        }
        self.marks.remove(Marks::PROBE_DUE);
        Ok(())
    }

    fn send_ack(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<(), Full> {
        if !self.has(Marks::ACK_DUE) {
            return Ok(());
        }
        let header = self.header(self.send.nxt, Flags::ACK, now);
        self.emit(shared, out, &Request { header, gso_size: 0, payload: Payload::EMPTY })?;
        self.acknowledged(&header);
        Ok(())
    }

    /// Emits data with an ACK.
    fn emit_data(
        &mut self,
        shared: &mut Shared,
        piece: Piece,
        mss: u32,
        ecn: Ecn,
        now: Nanos,
        out: &mut impl Emit,
    ) -> Result<(), Full> {
        let mut flags = Flags::ACK;
        let end = piece.seq + piece.len;
        flags.set(Flags::PSH, piece.len > 0 && end == self.send.data_end());
        flags.set(Flags::FIN, piece.fin);
        let reduced = ecn == Ecn::Capable0 && self.has(Marks::CWR_DUE);
        flags.set(Flags::CWR, reduced);
        let mut header = self.header(piece.seq, flags, now);
        header.ecn = ecn;
        let offset = piece.seq.since(self.send.una) as usize;
        let payload = self.send.buffer.payload(offset, piece.len as usize);
        let gso_size = if piece.len > mss { mss as u16 } else { 0 };
        out.emit(&Request { header, gso_size, payload })?;
        let segments = if gso_size == 0 { 1 } else { u64::from(piece.len.div_ceil(mss)) };
        shared.counters.requests_out += 1;
        shared.counters.segments_out += segments;
        shared.counters.bytes_out += u64::from(piece.len);
        if reduced {
            self.marks.remove(Marks::CWR_DUE);
        }
        self.send.last_sent = now;
        self.acknowledged(&header);
        Ok(())
    }

    fn emit(
        &self,
        shared: &mut Shared,
        out: &mut impl Emit,
        request: &Request<'_>,
    ) -> Result<(), Full> {
        out.emit(request)?;
        shared.counters.requests_out += 1;
        shared.counters.segments_out += 1;
        Ok(())
    }

    /// Notes that a segment with an ACK was sent.
    fn acknowledged(&mut self, header: &Header) {
        let receive = &mut self.receive;
        let edge = receive.nxt + (u32::from(header.window) << receive.shift);
        receive.edge = receive.edge.max(edge);
        receive.last_ack = receive.nxt;
        if receive.unacked > 0 || self.marks.contains(Marks::ACK_DUE) {
            receive.quick_acks = receive.quick_acks.saturating_sub(1);
        }
        (receive.unacked, receive.duplicate) = (0, None);
        self.marks.remove(Marks::ACK_DUE);
        self.timers.ack = Nanos::NEVER;
    }

    /// Makes a header with the current acknowledgment, window and options.
    pub(super) fn header(&self, seq: Seq, flags: Flags, now: Nanos) -> Header {
        let mut flags = flags;
        flags.set(Flags::ECE, self.has(Marks::ECE));
        Header {
            flow: self.flow,
            seq,
            ack: self.receive.nxt,
            flags,
            window: self.window_field(),
            ecn: Ecn::NotCapable,
            options: self.options(now),
        }
    }

    fn options(&self, now: Nanos) -> Options {
        let mut options = Options::default();
        if self.has(Marks::TIMESTAMPS) {
            let value = now.millis().wrapping_add(self.timestamp_offset);
            options.timestamp = Some(Timestamp { value, echo: self.receive.ts_recent });
        }
        if self.has(Marks::SACK) {
            let mut room = if self.has(Marks::TIMESTAMPS) { 3 } else { 4 };
            if let Some((start, end)) = self.receive.duplicate {
                options.sack.push(start, end);
                room -= 1;
            }
            if !self.receive.ranges.is_empty() {
                self.receive.ranges.blocks(&mut options.sack, room);
            }
        }
        options
    }

    /// The window as it is written in the header.
    fn window_field(&self) -> u16 {
        let receive = &self.receive;
        let right = self.window_edge();
        let window = right.since(receive.nxt) >> receive.shift;
        window.min(0xffff) as u16
    }

    /// Returns the right edge to announce. It never moves left, and moves right only in large
    /// steps, which avoids silly windows (RFC 9293, 3.8.6.2.2).
    pub(super) fn window_edge(&self) -> Seq {
        let receive = &self.receive;
        let free = receive.limit.saturating_sub(receive.buffer.readable() as u32);
        let edge = receive.nxt + free;
        let step = (receive.limit / 2).min(u32::from(self.send.mss));
        let old = receive.edge.max(receive.nxt);
        if edge.before(old + step) { old } else { edge }
    }

    /// Returns the payload of a full segment that carries the options that are due.
    fn segment_payload(&self) -> u32 {
        let blocks = if self.receive.ranges.is_empty() && self.receive.duplicate.is_none() {
            0
        } else {
            self.options(Nanos(0)).written_len() as u32
        };
        let fixed = u32::from(self.send.mss) - self.payload_max();
        u32::from(self.send.mss) - fixed.max(blocks)
    }

    /// The maximum number of payload bytes in a request.
    fn request_max(&self, shared: &Shared, mss: u32) -> u32 {
        let headers = u32::from(self.flow.ip_header_len()) + 60;
        let most = shared.config.gso_max.min(u32::from(u16::MAX) - headers);
        (most / mss).max(1) * mss
    }
}
