//! Handles received segments (RFC 9293, 3.10.7).

use crate::connection::{
    Agreed, CHALLENGES, CloseReason, Connection, Events, MIN_MSS, Marks, State,
};
use crate::counters::Drop;
use crate::handle::Receive;
use crate::segment::{Flags, Header, Segment};
use crate::seq::Seq;
use crate::shared::Shared;
use crate::time::Nanos;

/// Idle time after which timestamps are not comparable any more (RFC 7323, 5.5).
const PAWS_IDLE: u64 = 24 * 24 * 3600 * Nanos::SECOND;

/// Consecutive segments of one flow that are processed as one (GRO).
#[derive(Clone, Copy)]
pub(crate) struct Run<'r, 'p> {
    parts: &'r [Segment<'p>],
    pub len: u32,
    pub fin: bool,
}

impl<'r, 'p> Run<'r, 'p> {
    /// Makes a run of `parts`, which must follow each other without gaps and not be empty.
    pub fn new(parts: &'r [Segment<'p>]) -> Self {
        let len = parts.iter().map(|part| part.payload.len() as u32).sum();
        let fin = parts.last().is_some_and(|part| part.header.flags.contains(Flags::FIN));
        Self { parts, len, fin }
    }

    #[inline]
    pub fn header(&self) -> &'r Header {
        &self.parts[0].header
    }

    /// The number after the run.
    pub fn end(&self) -> Seq {
        let syn = u32::from(self.header().flags.contains(Flags::SYN));
        self.header().seq + self.len + u32::from(self.fin) + syn
    }

    /// Returns the payload without its first `skip` bytes, at most `keep` bytes of it.
    pub fn pieces(
        &self,
        mut skip: usize,
        mut keep: usize,
    ) -> impl Iterator<Item = &'p [u8]> + use<'r, 'p> {
        self.parts.iter().filter_map(move |part| {
            let from = skip.min(part.payload.len());
            skip -= from;
            let piece = &part.payload[from..];
            let piece = &piece[..piece.len().min(keep)];
            keep -= piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }
}

impl Connection {
    /// Processes a run of segments.
    pub fn input(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        now: Nanos,
        app: &mut impl Receive,
    ) {
        let result = match self.state {
            State::Closed => Err(Drop::NoConnection),
            State::SynSent => self.input_syn_sent(shared, run, now),
            _ => self.input_synchronised(shared, run, now, app),
        };
        if let Err(reason) = result {
            shared.counters.count(reason);
        }
        self.rearm(shared, now);
    }

    /// Processes a run in all states from SYN-RECEIVED on (RFC 9293, 3.10.7.4).
    fn input_synchronised(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        now: Nanos,
        app: &mut impl Receive,
    ) -> Result<(), Drop> {
        let header = run.header();
        self.check_timestamp(shared, header, now)?;
        self.check_window(shared, run, now)?;
        if header.flags.contains(Flags::RST) {
            return self.on_reset(shared, header, now);
        }
        if header.flags.contains(Flags::SYN) {
            return self.on_unexpected_syn(shared, header, now);
        }
        if !header.flags.contains(Flags::ACK) {
            return Err(Drop::NoAck);
        }
        self.receive.last_heard = now;
        self.send.unanswered = 0;
        self.update_ts_recent(header, now);
        if self.state == State::SynReceived {
            self.establish(shared, header)?;
        }
        self.on_ack(shared, run, now)?;
        if run.len > 0 || run.fin {
            self.on_data(shared, run, now, app)?;
        }
        Ok(())
    }

    /// PAWS (RFC 7323, 5.3).
    ///
    /// A segment without a timestamp passes, although RFC 7323, 3.2 says that it should be dropped:
    /// Windows, illumos, macOS and stacks with SYN cookies leave timestamps out of some segments.
    fn check_timestamp(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        now: Nanos,
    ) -> Result<(), Drop> {
        if !self.has(Marks::TIMESTAMPS) || header.flags.contains(Flags::RST) {
            return Ok(());
        }
        let Some(timestamp) = header.options.timestamp else { return Ok(()) };
        let older = (timestamp.value.wrapping_sub(self.receive.ts_recent) as i32) < 0;
        if older && now - self.receive.ts_recent_at < PAWS_IDLE {
            self.challenge(shared, now);
            return Err(Drop::Paws);
        }
        Ok(())
    }

    fn update_ts_recent(&mut self, header: &Header, now: Nanos) {
        if self.has(Marks::TIMESTAMPS)
            && let Some(timestamp) = header.options.timestamp
            && !header.seq.after(self.receive.last_ack)
            && (timestamp.value.wrapping_sub(self.receive.ts_recent) as i32) >= 0
        {
            (self.receive.ts_recent, self.receive.ts_recent_at) = (timestamp.value, now);
        }
    }

    /// Checks that a part of the run lies in the window (RFC 9293, 3.10.7.4, first check).
    fn check_window(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        now: Nanos,
    ) -> Result<(), Drop> {
        let (seq, end, receive) = (run.header().seq, run.end(), &mut self.receive);
        let empty = end == seq;
        let late = end.before(receive.nxt) || (end == receive.nxt && !empty);
        let beyond =
            seq.after(receive.edge) || (seq == receive.edge && seq != receive.nxt && !empty);
        if !late && !beyond {
            return Ok(());
        }
        let reset = run.header().flags.contains(Flags::RST);
        if reset {
            return Err(Drop::BadReset);
        }
        if late && run.len > 0 {
            // The peer retransmitted needlessly: report the duplicate at once (RFC 2883).
            receive.duplicate = Some((seq, seq + run.len));
            self.acknowledge_now(shared);
            return Err(Drop::Duplicate);
        }
        self.challenge(shared, now);
        Err(Drop::OutOfWindow)
    }

    /// Handles a reset (RFC 5961, 3).
    fn on_reset(&mut self, shared: &mut Shared, header: &Header, now: Nanos) -> Result<(), Drop> {
        if header.seq != self.receive.nxt {
            self.challenge(shared, now);
            return Err(Drop::BlindReset);
        }
        let refused = self.state == State::SynReceived;
        self.finish(shared, if refused { CloseReason::Refused } else { CloseReason::Reset });
        Ok(())
    }

    /// Answers a SYN on a connection (RFC 5961, 4). In SYN-RECEIVED the peer has missed our
    /// SYN-ACK.
    fn on_unexpected_syn(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        now: Nanos,
    ) -> Result<(), Drop> {
        if self.state == State::SynReceived && header.seq + 1 == self.receive.nxt {
            self.marks |= Marks::SYN_DUE;
            self.wake(shared);
            return Ok(());
        }
        self.challenge(shared, now);
        Err(Drop::UnexpectedSyn)
    }

    /// Sends a challenge ACK, which tells the peer our state (RFC 5961, 7).
    ///
    /// Each connection has its own rate limit: a shared one would be a side channel
    /// (CVE-2016-5696).
    pub(super) fn challenge(&mut self, shared: &mut Shared, now: Nanos) {
        let second = (now.0 / Nanos::SECOND) as u32;
        if self.challenge_second != second {
            (self.challenge_second, self.challenges) = (second, 0);
        }
        if self.challenges >= CHALLENGES {
            shared.counters.count(Drop::ChallengeLimit);
            return;
        }
        self.challenges += 1;
        shared.counters.challenges += 1;
        self.acknowledge_now(shared);
    }

    /// Handles the ACK of our SYN in SYN-RECEIVED.
    fn establish(&mut self, shared: &mut Shared, header: &Header) -> Result<(), Drop> {
        if header.ack != self.send.nxt {
            shared.reset_for(header, 0);
            return Err(Drop::BadAck);
        }
        self.send.una = header.ack;
        self.state = self.state_of_open();
        self.send.rack = crate::rack::Rack::new(self.send.una);
        self.send.set_window(u32::from(header.window) << self.send.shift, header.seq, header.ack);
        self.timers.stop_retransmission();
        self.send.rtt.backoff = 0;
        self.arm_keep_alive();
        self.queue_events(shared, Events::CONNECTED);
        Ok(())
    }

    /// Returns the state after the handshake: the application may have ended its stream already.
    fn state_of_open(&self) -> State {
        if self.has(Marks::FIN_QUEUED) { State::FinWait1 } else { State::Established }
    }

    /// Handles a segment in SYN-SENT (RFC 9293, 3.10.7.3).
    fn input_syn_sent(
        &mut self,
        shared: &mut Shared,
        run: &Run<'_, '_>,
        now: Nanos,
    ) -> Result<(), Drop> {
        let header = run.header();
        let flags = header.flags;
        let acks = flags.contains(Flags::ACK);
        if acks && header.ack != self.send.nxt {
            if !flags.contains(Flags::RST) {
                shared.reset_for(header, run.len);
            }
            return Err(Drop::BadAck);
        }
        if flags.contains(Flags::RST) {
            if !acks {
                return Err(Drop::BadReset);
            }
            self.finish(shared, CloseReason::Refused);
            return Ok(());
        }
        if !flags.contains(Flags::SYN) {
            return Err(Drop::BadFlags);
        }
        self.apply_options(shared, header, acks, now);
        self.receive.last_heard = now;
        self.timers.stop_retransmission();
        if acks {
            self.on_syn_ack(shared, header, now);
        } else {
            // Simultaneous open: the SYN is retransmitted, with an ACK.
            self.state = State::SynReceived;
            self.marks |= Marks::SYN_DUE;
            self.wake(shared);
        }
        Ok(())
    }

    fn apply_options(&mut self, shared: &Shared, header: &Header, acks: bool, now: Nanos) {
        let options = &header.options;
        let config = &shared.config;
        // A SYN asks for ECN by both flags; a SYN-ACK agrees by ECE alone (RFC 3168, 6.1.1).
        let ecn = header.flags & (Flags::ECE | Flags::CWR);
        let agreed = Agreed {
            iss: self.iss,
            irs: header.seq,
            mss: options.mss.unwrap_or(536).max(MIN_MSS),
            shift: options.window_scale.filter(|_| config.window_scaling),
            sack: options.sack_permitted,
            ecn: ecn == if acks { Flags::ECE } else { Flags::ECE | Flags::CWR },
            ts_recent: options.timestamp.filter(|_| config.timestamps).map(|t| t.value),
            prompt: self.tuning.is_prompt(options.ack_delay),
            rtt: 0,
        };
        self.negotiate(config, &agreed, now);
    }

    fn on_syn_ack(&mut self, shared: &mut Shared, header: &Header, now: Nanos) {
        self.send.una = header.ack;
        self.state = self.state_of_open();
        self.send.rack = crate::rack::Rack::new(self.send.una);
        // The window of a SYN is never scaled (RFC 7323, 2.2).
        self.send.set_window(header.window.into(), header.seq, header.ack);
        if self.send.rtt.backoff == 0 {
            self.send.rtt.sample(now - self.send.last_sent, now);
        }
        self.send.rtt.backoff = 0;
        self.arm_keep_alive();
        self.acknowledge_now(shared);
        self.queue_events(shared, Events::CONNECTED | Events::WRITABLE);
    }
}
