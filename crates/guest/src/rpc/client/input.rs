//! Handles the packets that servers send.

use tcp::Nanos;

use super::{Client, Failure, Replies, SPARE, SessionId, Slot, State};
use crate::nic::Room;
use crate::rpc::carrier::Bad;
use crate::rpc::fragments::{Arrival, Assembly};
use crate::rpc::wire::{self, Flags, Kind, Packet};
use crate::rpc::{MAX_MESSAGE, MAX_SLOTS, checked_fragment};

/// Packets.
impl Client {
    /// Receives a frame, and reports results to `replies`.
    #[inline]
    pub fn frame(
        &mut self,
        frame: &[u8],
        now: Nanos,
        replies: &mut impl Replies,
        room: &mut impl Room,
    ) {
        let packet = match wire::parse(frame, self.config.end()) {
            Ok(packet) => packet,
            Err(bad) => return self.bad(bad),
        };
        let number = packet.header.session.get() as usize;
        let Some(session) = self.sessions.get_mut(number) else { return self.stale() };
        if session.peer != packet.from || session.state >= State::Closed {
            return self.stale();
        }
        if packet.kind == Kind::Opened {
            return self.opened(number, &packet, now);
        }
        if session.token != packet.header.token.get() {
            return self.stale();
        }
        match (packet.kind, session.state) {
            (Kind::Reply | Kind::Got, State::Open) => {
                self.answered(number, &packet, now, replies, room);
            }
            (Kind::Gone, State::Open) => {
                self.fail(number, replies);
                self.reopen(number, now, room);
            }
            (Kind::Cookie, State::Opening) => self.take_cookie(number, &packet, room),
            (Kind::Refused, State::Opening) => self.sessions[number].state = State::Closed,
            _ => self.stale(),
        }
    }

    #[cold]
    fn stale(&mut self) {
        self.counters.stale += 1;
    }

    #[cold]
    fn bad(&mut self, bad: Bad) {
        match bad {
            Bad::Foreign => self.counters.foreign += 1,
            Bad::Malformed => self.counters.malformed += 1,
            Bad::Checksum => self.counters.checksum += 1,
        }
    }

    /// The server wants proof that this end receives: its cookie. A cookie that was sent before is
    /// sent again after the time-out only, so no server can make this end busy.
    fn take_cookie(&mut self, number: usize, packet: &Packet<'_>, room: &mut impl Room) {
        let session = &mut self.sessions[number];
        match packet.word() {
            Some(cookie) if cookie != session.cookie => {
                session.cookie = cookie;
                self.ask_to_open(number, room);
            }
            _ => self.stale(),
        }
    }

    fn opened(&mut self, number: usize, packet: &Packet<'_>, now: Nanos) {
        let session = &mut self.sessions[number];
        let (header, slots) = (&packet.header, packet.header.slot.min(self.config.slots()));
        let fragment = checked_fragment(header.fragment.get().into());
        if session.state != State::Opening || packet.word() != Some(session.token) {
            return self.stale();
        }
        let Some(fragment) = fragment.filter(|_| header.token.get() != 0 && slots > 0) else {
            self.counters.malformed += 1;
            return;
        };
        let slots = slots.min(MAX_SLOTS);
        session.slots = (0..slots).map(|_| Slot::default()).collect();
        session.free = 1u64.checked_shl(slots.into()).unwrap_or(0).wrapping_sub(1);
        (session.singles, session.multiples, session.tries) = (0, 0, 0);
        (session.token, session.remote) = (header.token.get(), header.sequence.get());
        (session.fragment, session.credits) = (fragment, header.credits.get());
        session.max_message = (header.len.get() as usize).min(MAX_MESSAGE);
        (session.state, session.heard) = (State::Open, now);
    }

    /// Handles a packet about a request.
    #[inline]
    fn answered(
        &mut self,
        number: usize,
        packet: &Packet<'_>,
        now: Nanos,
        replies: &mut impl Replies,
        room: &mut impl Room,
    ) {
        let session = &mut self.sessions[number];
        let slot = usize::from(packet.header.slot);
        let is_free = session.free.checked_shr(slot as u32).is_none_or(|free| free & 1 != 0);
        let Some(place) = session.slots.get_mut(slot) else { return self.stale() };
        if is_free || place.sequence != packet.header.sequence.get() {
            return self.stale();
        }
        session.credits = packet.header.credits.get();
        session.heard = now;
        (place.heard, place.tries) = (now, 0);
        if packet.kind == Kind::Got {
            return self.got(number, slot, packet, room);
        }
        place.is_taken = true;
        // A complete message ends the request: the application reads it where it lies.
        if packet.is_whole() && place.long.as_ref().is_none_or(|long| long.assembly.is_none()) {
            let tag = session.end(slot);
            self.counters.replies += 1;
            return replies.done(SessionId(number as u32), tag, Ok(packet.payload));
        }
        self.fragment(number, slot, packet, replies, room);
    }

    /// Handles a report of which fragments of a request the server has.
    fn got(&mut self, number: usize, slot: usize, packet: &Packet<'_>, room: &mut impl Room) {
        let place = &mut self.sessions[number].slots[slot];
        let flags = packet.header.flags;
        if flags & Flags::WORKING != 0 {
            place.is_taken = true;
            return;
        }
        if place.is_taken {
            return self.stale();
        }
        if let Some(sending) = place.sending() {
            let map = packet.word().unwrap_or(0);
            if !sending.report(packet.header.fragment.get(), map) {
                self.counters.malformed += 1;
                return;
            }
            if flags & Flags::EXPIRED != 0 {
                sending.expire();
            }
        }
        self.push(number, slot, room);
    }

    /// A fragment of a reply.
    fn fragment(
        &mut self,
        number: usize,
        slot: usize,
        packet: &Packet<'_>,
        replies: &mut impl Replies,
        room: &mut impl Room,
    ) {
        let header = &packet.header;
        let asks = header.flags & Flags::ASKS != 0;
        let len = header.len.get() as usize;
        let session = &mut self.sessions[number];
        let size = session.fragment.into();
        if len > self.config.max_message() {
            let tag = session.end(slot);
            return replies.done(SessionId(number as u32), tag, Err(Failure::TooLong));
        }
        let long = session.slots[slot].long.get_or_insert_default();
        long.sending = None;
        let spare = &mut self.spare;
        let assembly = long
            .assembly
            .get_or_insert_with(|| Assembly::new(spare.pop().unwrap_or_default(), len, size));
        if assembly.len() != len {
            self.counters.malformed += 1;
            return;
        }
        match assembly.put(header.fragment.get(), packet.payload, asks) {
            Arrival::New { report: false } => {}
            Arrival::New { report: true } | Arrival::Duplicate => {
                self.pull(number, slot, 0, room);
            }
            Arrival::Complete => self.complete(number, slot, replies),
            Arrival::Wrong => self.counters.malformed += 1,
        }
    }

    /// A reply has all its fragments.
    fn complete(&mut self, number: usize, slot: usize, replies: &mut impl Replies) {
        let session = &mut self.sessions[number];
        let long = session.slots[slot].long.get_or_insert_default();
        let assembly = long.assembly.take();
        let tag = session.end(slot);
        self.counters.replies += 1;
        let reply = assembly.map(Assembly::into_bytes).unwrap_or_default();
        replies.done(SessionId(number as u32), tag, Ok(&reply));
        if self.spare.len() < SPARE {
            self.spare.push(reply);
        }
    }
}
