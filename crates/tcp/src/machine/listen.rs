//! Listeners: SYN queue, SYN cookies, accept queue.

use alloc::collections::VecDeque;
use core::net::IpAddr;
use core::num::NonZeroU16;

use crate::config::Tuning;
use crate::connection::{Agreed, Connection, MIN_MSS, Marks, Run};
use crate::cookie::{self, CookieState};
use crate::counters::Drop;
use crate::flow::Flow;
use crate::handle::{ConnId, Receive};
use crate::machine::{ListenerId, Machine, OpenError};
use crate::options::{Options, SackBlocks, Timestamp};
use crate::segment::{Ecn, Flags, Header};
use crate::seq::Seq;
use crate::time::Nanos;

pub(super) struct Listener {
    address: Option<IpAddr>,
    port: u16,
    backlog: usize,
    /// Connections whose handshake is done.
    queue: VecDeque<u32>,
    tuning: Tuning,
}

/// A connection whose SYN-ACK is unacknowledged. It takes 64 bytes in the table.
#[derive(Clone, Copy)]
pub(super) struct HalfOpen {
    pub flow: Flow,
    iss: Seq,
    irs: Seq,
    ts_recent: u32,
    /// When the SYN-ACK was first sent, in microseconds.
    sent: u32,
    mss: NonZeroU16,
    /// Window scale in the low four bits, 15 for none; then [`SACK`], [`ECN`], [`STAMPED`],
    /// [`PROMPT`].
    options: u8,
    retries: u8,
}

/// For this long after a cookie was sent, segments that match none get no reset: the segment with
/// the cookie may be lost or late.
const COOKIE_PATIENCE: u64 = 3 * Nanos::SECOND;

const NO_SCALE: u8 = 15;
const SACK: u8 = 1 << 4;
const ECN: u8 = 1 << 5;
const STAMPED: u8 = 1 << 6;
/// The peer has said that it acknowledges at once.
const PROMPT: u8 = 1 << 7;

/// How long an unanswered SYN-ACK is retransmitted. A peer that lives repeats its SYN for longer.
const SYN_ACK_PATIENCE: u64 = 60 * Nanos::SECOND;

impl HalfOpen {
    fn agreed(&self, now: Nanos) -> Agreed {
        let took = now.micros().wrapping_sub(self.sent);
        Agreed {
            iss: self.iss,
            irs: self.irs,
            mss: self.mss.get(),
            shift: Some(self.options & 15).filter(|shift| *shift != NO_SCALE),
            sack: self.options & SACK != 0,
            ecn: self.options & ECN != 0,
            ts_recent: (self.options & STAMPED != 0).then_some(self.ts_recent),
            prompt: self.options & PROMPT != 0,
            rtt: if self.retries == 0 { u64::from(took.max(1)) * Nanos::MICRO } else { 0 },
        }
    }
}

impl Machine {
    /// Listens at a port, on one local address or on all. At most `backlog` connections wait for
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    /// [`OpenError::InUse`] if there is a listener at this port.
    pub fn listen(
        &mut self,
        address: Option<IpAddr>,
        port: u16,
        backlog: usize,
        tuning: Option<Tuning>,
    ) -> Result<ListenerId, OpenError> {
        if self.ports.contains_key(&port) {
            return Err(OpenError::InUse);
        }
        let tuning = tuning.unwrap_or(self.shared.config.tuning);
        let queue = VecDeque::with_capacity(backlog.min(1024));
        let listener = Listener { address, port, backlog, queue, tuning };
        let free = self.listeners.iter().position(Option::is_none);
        let index = free.unwrap_or(self.listeners.len());
        match self.listeners.get_mut(index) {
            Some(place) => *place = Some(listener),
            None => self.listeners.push(Some(listener)),
        }
        self.ports.insert(port, index as u32);
        Ok(ListenerId(index as u32))
    }

    /// Accepts the listener's oldest connection whose handshake is done.
    pub fn accept(&mut self, id: ListenerId) -> Option<ConnId> {
        let listener = self.listeners.get_mut(id.0 as usize)?.as_mut()?;
        let index = listener.queue.pop_front()?;
        let connection = self.connections.get_mut(index)?;
        connection.marks |= Marks::OWNED;
        connection.listener = 0;
        self.shared.counters.accepted += 1;
        // Before the application accepted the connection, data may have arrived, or it may have
        // ended.
        let events = connection.events;
        connection.queue_events(&mut self.shared, events);
        Some(ConnId { index, generation: connection.generation })
    }

    /// Returns how many connections of a listener wait to be accepted.
    #[must_use]
    pub fn waiting(&self, id: ListenerId) -> usize {
        let listener = self.listeners.get(id.0 as usize).and_then(Option::as_ref);
        listener.map_or(0, |listener| listener.queue.len())
    }

    /// Stops listening. Connections that were not accepted are reset.
    pub fn stop_listening(&mut self, id: ListenerId, now: Nanos) {
        let Some(listener) = self.listeners.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        self.ports.remove(&listener.port);
        for index in listener.queue {
            if let Some(connection) = self.connections.get_mut(index) {
                connection.listener = 0;
                connection.abort(&mut self.shared, now);
                connection.release(&mut self.shared, now);
                self.settle(index);
            }
        }
    }

    /// Handles a segment that belongs to no connection. `least` is the lowest allowed initial
    /// number.
    pub(super) fn on_listener(
        &mut self,
        run: &Run<'_, '_>,
        least: Option<Seq>,
        now: Nanos,
        app: &mut impl Receive,
    ) {
        let header = run.header();
        let Some(listener) = self.listener_for(&header.flow) else {
            self.shared.counters.count(Drop::NoConnection);
            self.shared.reset_for(header, run.end().since(header.seq));
            return;
        };
        let flags = header.flags & (Flags::SYN | Flags::ACK | Flags::RST);
        let dropped = match flags {
            Flags::SYN => self.on_syn(listener, header, least, now),
            Flags::ACK => self.on_cookie(listener, run, now, app),
            _ => Err(Drop::ListenNoSyn),
        };
        if let Err(reason) = dropped {
            self.shared.counters.count(reason);
            // No reset where the peer may retransmit the start of its stream. There may be room by
            // then. And a segment from later in the stream matches no cookie, but the first one
            // does.
            let again = match reason {
                Drop::AcceptFull | Drop::ConnectionsFull => true,
                Drop::BadCookie => self.sent_cookie_within(COOKIE_PATIENCE, now),
                _ => false,
            };
            if flags.contains(Flags::ACK) && !again {
                self.shared.reset_for(header, run.end().since(header.seq));
            }
        }
    }

    fn sent_cookie_within(&self, nanos: u64, now: Nanos) -> bool {
        self.last_cookie.is_some_and(|last| now - last <= nanos)
    }

    fn listener_for(&self, flow: &Flow) -> Option<u32> {
        let index = *self.ports.get(&flow.local_port())?;
        let listener = self.listeners.get(index as usize)?.as_ref()?;
        listener.address.is_none_or(|address| address == flow.local().0).then_some(index)
    }

    fn accept_is_full(&self, listener: u32) -> bool {
        let listener = self.listeners.get(listener as usize).and_then(Option::as_ref);
        listener.is_none_or(|listener| listener.queue.len() >= listener.backlog)
    }

    fn on_syn(
        &mut self,
        listener: u32,
        header: &Header,
        least: Option<Seq>,
        now: Nanos,
    ) -> Result<(), Drop> {
        if self.accept_is_full(listener) {
            return Err(Drop::AcceptFull);
        }
        let remembered = self.offered(header);
        if self.half_open.is_full() {
            return self.send_cookie(header, &remembered, now);
        }
        let iss = self.shared.secret.initial_seq(&header.flow, now);
        let iss = least.map_or(iss, |least| iss.max(least));
        let stamp = header.options.timestamp.filter(|_| self.shared.config.timestamps);
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let half = HalfOpen {
            flow: header.flow,
            iss,
            irs: header.seq,
            ts_recent: stamp.map_or(0, |stamp| stamp.value),
            sent: now.micros(),
            mss: NonZeroU16::new(remembered.mss).unwrap_or(NonZeroU16::MIN),
            options: remembered.shift.unwrap_or(NO_SCALE)
                | bit(remembered.sack, SACK)
                | bit(remembered.ecn, ECN)
                | bit(stamp.is_some(), STAMPED)
                | bit(self.shared.config.tuning.is_prompt(header.options.ack_delay), PROMPT),
            retries: 0,
        };
        let hash = self.shared.secret.table_hash(&header.flow) as u32;
        let index = self.half_open.insert(hash, half).map_err(|_| Drop::SynQueueFull)?;
        self.send_syn_ack(index, now);
        self.arm_half_open(index, now);
        Ok(())
    }

    /// Returns the options that the peer's SYN offers and this side accepts.
    fn offered(&self, header: &Header) -> CookieState {
        let (options, config) = (&header.options, &self.shared.config);
        let asks = Flags::ECE | Flags::CWR;
        CookieState {
            mss: options.mss.unwrap_or(536).max(MIN_MSS),
            shift: options.window_scale.filter(|_| config.window_scaling),
            sack: options.sack_permitted && config.sack,
            ecn: header.flags.contains(asks) && config.ecn,
        }
    }

    /// Sends the SYN-ACK of a half-open connection.
    fn send_syn_ack(&mut self, index: u32, now: Nanos) {
        let Some(half) = self.half_open.get(index).copied() else { return };
        let agreed = half.agreed(now);
        let remembered = CookieState {
            mss: agreed.mss,
            shift: agreed.shift,
            sack: agreed.sack,
            // A retransmitted SYN-ACK does not agree to ECN: a middlebox may drop such packets.
            ecn: agreed.ecn,
        };
        let clock = now.millis().wrapping_add(self.shared.secret.timestamp_offset(&half.flow));
        let stamp = agreed.ts_recent.map(|echo| Timestamp { value: clock, echo });
        let mut header = self.syn_ack(half.flow, half.iss, half.irs, &remembered, stamp);
        // Only a peer that knows the option is told, and once.
        if agreed.prompt && half.retries == 0 {
            header.options.ack_delay = self.shared.config.told_ack_delay();
        }
        self.shared.reply(header);
    }

    fn arm_half_open(&mut self, index: u32, now: Nanos) {
        let Some(half) = self.half_open.get(index) else { return };
        let wait = self.shared.config.tuning.rto_initial << half.retries.min(16);
        let wait = wait.min(self.shared.config.tuning.rto_max);
        let timer = self.shared.config.max_connections as u32 + index;
        self.shared.wheel.schedule(timer, now + wait, now);
    }

    fn syn_ack(
        &self,
        flow: Flow,
        iss: Seq,
        irs: Seq,
        with: &CookieState,
        stamp: Option<Timestamp>,
    ) -> Header {
        let config = &self.shared.config;
        let mut flags = Flags::SYN | Flags::ACK;
        flags.set(Flags::ECE, with.ecn);
        Header {
            flow,
            seq: iss,
            ack: irs + 1,
            flags,
            window: config.receive_start.min(0xffff) as u16,
            ecn: Ecn::NotCapable,
            options: Options {
                mss: Some(config.mss(flow.ip_header_len())),
                window_scale: with.shift.map(|_| config.window_shift()),
                sack_permitted: with.sack,
                ack_delay: 0,
                timestamp: stamp,
                sack: SackBlocks::NONE,
            },
        }
    }

    /// Answers a SYN by a cookie: the SYN queue is full, so nothing is stored.
    fn send_cookie(
        &mut self,
        header: &Header,
        offered: &CookieState,
        now: Nanos,
    ) -> Result<(), Drop> {
        if !self.shared.config.syn_cookies {
            return Err(Drop::SynQueueFull);
        }
        let iss = cookie::make(&self.shared.secret, &header.flow, header.seq, offered.mss, now);
        let stamp = header.options.timestamp.filter(|_| self.shared.config.timestamps);
        let clock = now.millis().wrapping_add(self.shared.secret.timestamp_offset(&header.flow));
        // Without a timestamp there is no room to remember options.
        let with = match stamp {
            Some(_) => *offered,
            None => CookieState { shift: None, sack: false, ecn: false, ..*offered },
        };
        let stamp =
            stamp.map(|stamp| Timestamp { value: cookie::stamp(clock, &with), echo: stamp.value });
        let reply = self.syn_ack(header.flow, iss, header.seq, &with, stamp);
        self.shared.counters.cookies_out += u64::from(self.shared.reply(reply));
        self.last_cookie = Some(now);
        Ok(())
    }

    /// Handles an ACK to a listener, which may answer a cookie.
    fn on_cookie(
        &mut self,
        listener: u32,
        run: &Run<'_, '_>,
        now: Nanos,
        app: &mut impl Receive,
    ) -> Result<(), Drop> {
        let header = run.header();
        let (irs, iss) = (header.seq - 1, header.ack - 1);
        let secret = &self.shared.secret;
        // Cookies are accepted only while some may be out, so that guessing is useless at other
        // times.
        if !self.sent_cookie_within(2 * cookie::PERIOD, now) {
            return Err(Drop::ListenNoSyn);
        }
        let mss = cookie::check(secret, &header.flow, irs, iss, now).ok_or(Drop::BadCookie)?;
        let stamp = header.options.timestamp.filter(|_| self.shared.config.timestamps);
        let remembered = match stamp {
            // The timestamp offset was added before the option bits were put in, so the echo holds
            // the bits unchanged.
            Some(stamp) => cookie::unstamp(stamp.echo, mss),
            None => CookieState { mss, shift: None, sack: false, ecn: false },
        };
        let agreed = Agreed {
            iss,
            irs,
            mss: remembered.mss,
            shift: remembered.shift,
            sack: remembered.sack,
            ecn: remembered.ecn,
            ts_recent: stamp.map(|stamp| stamp.value),
            prompt: false,
            rtt: 0,
        };
        self.complete(listener, &agreed, run, now, app)?;
        self.shared.counters.cookies_in += 1;
        Ok(())
    }

    /// Handles a segment of a half-open connection.
    pub(super) fn on_half_open(
        &mut self,
        index: u32,
        run: &Run<'_, '_>,
        now: Nanos,
        app: &mut impl Receive,
    ) {
        if let Err(reason) = self.try_half_open(index, run, now, app) {
            self.shared.counters.count(reason);
        }
    }

    fn try_half_open(
        &mut self,
        index: u32,
        run: &Run<'_, '_>,
        now: Nanos,
        app: &mut impl Receive,
    ) -> Result<(), Drop> {
        let header = run.header();
        let half = *self.half_open.get(index).ok_or(Drop::NoConnection)?;
        if header.flags.intersects(Flags::RST | Flags::SYN) {
            return self.control_half_open(index, &half, header, now);
        }
        if !header.flags.contains(Flags::ACK) {
            return Err(Drop::NoAck);
        }
        let listener = self.listener_for(&half.flow).ok_or(Drop::NoConnection)?;
        if header.ack == half.iss + 1 {
            self.check_last_ack(&half, header)?;
            self.complete(listener, &half.agreed(now), run, now, app)?;
        } else if self.on_cookie(listener, run, now, app).is_err() {
            // The peer may have sent its SYN twice, and got a cookie for the first one. This
            // segment matches neither the cookie nor the half-open connection.
            if !self.sent_cookie_within(COOKIE_PATIENCE, now) {
                self.shared.reset_for(header, 0);
            }
            return Err(Drop::BadAck);
        }
        self.forget_half_open(index);
        Ok(())
    }

    /// Handles a reset or a repeated SYN.
    fn control_half_open(
        &mut self,
        index: u32,
        half: &HalfOpen,
        header: &Header,
        now: Nanos,
    ) -> Result<(), Drop> {
        if header.flags.contains(Flags::RST) {
            if header.seq != half.irs + 1 {
                return Err(Drop::BadReset);
            }
            self.forget_half_open(index);
        } else if header.seq == half.irs {
            // The peer has missed the SYN-ACK; its timer keeps running.
            self.send_syn_ack(index, now);
        } else {
            return Err(Drop::UnexpectedSyn);
        }
        Ok(())
    }

    /// Checks that this segment, which acknowledges our SYN, completes the handshake.
    fn check_last_ack(&self, half: &HalfOpen, header: &Header) -> Result<(), Drop> {
        let window = self.shared.config.receive_start.min(0xffff);
        match header.seq.since(half.irs + 1) > window {
            true => Err(Drop::OutOfWindow),
            false => Ok(()),
        }
    }

    fn forget_half_open(&mut self, index: u32) {
        self.shared.wheel.cancel(self.shared.config.max_connections as u32 + index);
        self.half_open.unlink(index);
        self.half_open.remove(index);
    }

    pub(super) fn on_half_open_timer(&mut self, index: u32, now: Nanos) {
        let patience = SYN_ACK_PATIENCE.min(self.shared.config.tuning.syn_patience);
        let Some(half) = self.half_open.get_mut(index) else { return };
        if u64::from(now.micros().wrapping_sub(half.sent)) * Nanos::MICRO >= patience {
            self.forget_half_open(index);
            return;
        }
        half.retries = half.retries.saturating_add(1);
        self.send_syn_ack(index, now);
        self.arm_half_open(index, now);
    }

    /// Completes the handshake: the connection enters the accept queue, and processes the segment
    /// that completed it.
    fn complete(
        &mut self,
        listener: u32,
        agreed: &Agreed,
        run: &Run<'_, '_>,
        now: Nanos,
        app: &mut impl Receive,
    ) -> Result<(), Drop> {
        if self.accept_is_full(listener) {
            return Err(Drop::AcceptFull);
        }
        if self.connections.is_full() {
            return Err(Drop::ConnectionsFull);
        }
        let Some(Some(place)) = self.listeners.get_mut(listener as usize) else {
            return Err(Drop::NoConnection);
        };
        self.generation = self.generation.wrapping_add(1);
        let flow = run.header().flow;
        let mut connection =
            Connection::accept(flow, self.generation, &self.shared, place.tuning, agreed, now);
        connection.listener = listener + 1;
        connection.arm_keep_alive();
        let index = self.insert(connection).ok_or(Drop::ConnectionsFull)?;
        if let Some(Some(place)) = self.listeners.get_mut(listener as usize) {
            place.queue.push_back(index);
        }
        if let Some(connection) = self.connections.get_mut(index) {
            connection.input(&mut self.shared, run, now, app);
        }
        self.settle(index);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    #[test]
    fn a_half_open_connection_takes_64_bytes() {
        assert_eq!(Table::<HalfOpen>::ENTRY, 64);
    }
}
