//! Requests and replies.

use tcp::Bytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::{Answer, At, Call, Handler, SPARE, Server, Session, TURN};
use crate::nic::Room;
use crate::rpc::MAX_MESSAGE;
use crate::rpc::fragments::{Arrival, Assembly};
use crate::rpc::slots::State;
use crate::rpc::wire::{self, Flags, Header, Kind, Packet};

/// Requests and replies.
impl Server {
    #[inline]
    pub(super) fn request(
        &mut self,
        at: At,
        packet: &Packet<'_>,
        handler: &mut impl Handler,
        room: &mut impl Room,
    ) {
        let sequence = packet.header.sequence.get();
        let slot = self.slot(at);
        match (sequence.wrapping_sub(slot.sequence), slot.state) {
            (1, State::Fresh | State::Done) if packet.is_whole() => {
                self.run(at, sequence, packet.header.credits.get(), packet.payload, handler, room);
            }
            (1, State::Fresh | State::Done) => {
                if self.begin(at, packet) {
                    self.fragment(at, packet, handler, room);
                }
            }
            (0, State::Receiving) => self.fragment(at, packet, handler, room),
            (0, State::Working | State::Done) => {
                self.counters.repeated += 1;
                if packet.header.fragment.get() == 0 {
                    self.again(at, packet, true, room);
                }
            }
            _ => self.counters.stale += 1,
        }
    }

    /// Makes room for a request in fragments.
    fn begin(&mut self, at: At, packet: &Packet<'_>) -> bool {
        let len = packet.header.len.get() as usize;
        let fragment = self.sessions[at.session].fragment;
        if len <= packet.payload.len() || len > self.config.max_message() {
            self.counters.malformed += 1;
            return false;
        }
        let peer = self.sessions[at.session].peer;
        let before = self.slot(at).bytes();
        if !self.budget.has_room(peer, len) {
            self.counters.memory += 1;
            return false;
        }
        let assembly = Assembly::new(self.spare.pop().unwrap_or_default(), len, fragment.into());
        let slot = self.slot(at);
        slot.begin(packet.header.sequence.get(), State::Receiving);
        slot.long.get_or_insert_default().assembly = Some(assembly);
        self.charge(at, before);
        true
    }

    /// Takes a fragment of a request; the last one runs it.
    fn fragment(
        &mut self,
        at: At,
        packet: &Packet<'_>,
        handler: &mut impl Handler,
        room: &mut impl Room,
    ) {
        let header = &packet.header;
        let asks = header.flags & Flags::ASKS != 0;
        let len = header.len.get() as usize;
        let long = self.slot(at).long.get_or_insert_default();
        long.credits = header.credits.get();
        let assembly = long.assembly.as_mut().filter(|assembly| assembly.len() == len);
        let arrival = assembly.map(|it| it.put(header.fragment.get(), packet.payload, asks));
        match arrival {
            Some(Arrival::New { report: false }) => {}
            Some(Arrival::New { report: true } | Arrival::Duplicate) => self.got(at, 0, room),
            Some(Arrival::Complete) => self.run_assembled(at, handler, room),
            Some(Arrival::Wrong) | None => self.counters.malformed += 1,
        }
    }

    /// Runs a request whose fragments have all arrived.
    fn run_assembled(&mut self, at: At, handler: &mut impl Handler, room: &mut impl Room) {
        let slot = self.slot(at);
        let sequence = slot.sequence;
        let Some(long) = &mut slot.long else { return };
        let credits = long.credits;
        let Some(assembly) = long.assembly.take() else { return };
        let len = assembly.len();
        self.run(at, sequence, credits, assembly.bytes(), handler, room);
        let slot = self.slot(at);
        match slot.state {
            // If there was no room for a reply, the next packet of the client tries again.
            State::Receiving => slot.long.get_or_insert_default().assembly = Some(assembly),
            _ => {
                let peer = self.sessions[at.session].peer;
                self.budget.change(peer, len, 0);
                if self.spare.len() < SPARE {
                    self.spare.push(assembly.into_bytes());
                }
            }
        }
    }

    /// Lets the handler answer. If there is no room for the reply, does nothing, and the client
    /// asks again.
    #[inline]
    fn run(
        &mut self,
        at: At,
        sequence: u32,
        credits: u16,
        request: &[u8],
        handler: &mut impl Handler,
        room: &mut impl Room,
    ) {
        let session = &self.sessions[at.session];
        let Session { token, peer, fragment, .. } = *session;
        let before = self.slot(at).bytes();
        if before == 0 && !self.budget.is_within(peer) {
            self.counters.memory += 1;
            return;
        }
        let call = Call { peer, token, session: at.session as u32, sequence, slot: at.slot };
        let header = self.header(at, Kind::Reply, sequence);
        let own = self.config.end();
        let slot = self.slot(at);
        let (was, before_sequence) = (slot.state, slot.sequence);
        let (mut whole, mut is_busy) = (None, false);
        let built = room.build(own.head() + usize::from(fragment.get()), |out| {
            slot.begin(sequence, State::Working);
            let Some((_, reply)) = out.split_at_mut_checked(own.head()) else { return 0 };
            match handler.call(call, request, reply) {
                Answer::Here(len) => {
                    let len = len.min(reply.len());
                    slot.keep(&reply[..len]);
                    let header = Header { len: U32::new(len as u32), ..header };
                    return wire::seal(out, peer, own, header, len);
                }
                Answer::Whole(reply) => whole = Some(reply),
                Answer::Later => {}
                Answer::Busy => is_busy = true,
            }
            0
        });
        if built.is_err() {
            self.counters.full += 1;
            return;
        }
        if is_busy {
            // The slot is as if the request had not come. The reply before it is gone, because the
            // client has it.
            let slot = self.slot(at);
            slot.sequence = before_sequence;
            slot.state = if was == State::Receiving { was } else { State::Fresh };
            self.counters.busy += 1;
            return self.charge(at, before);
        }
        self.counters.requests += 1;
        self.finish(at, before, credits, whole, room);
    }

    /// Finishes [`run`](Self::run) for a reply that was not sent at once.
    #[inline]
    fn finish(
        &mut self,
        at: At,
        before: usize,
        credits: u16,
        whole: Option<Bytes>,
        room: &mut impl Room,
    ) {
        let slot = self.slot(at);
        if slot.long.is_none() && whole.is_none() && slot.state == State::Done {
            return;
        }
        slot.long.get_or_insert_default().credits = credits;
        if let Some(reply) = whole {
            return self.reply(at, before, reply, room);
        }
        self.charge(at, before);
    }

    /// Keeps a reply of any length, and sends as much of it as the client takes at once.
    fn reply(&mut self, at: At, before: usize, mut reply: Bytes, room: &mut impl Room) {
        reply.truncate(MAX_MESSAGE);
        let fragment = self.sessions[at.session].fragment;
        self.slot(at).keep_whole(reply, fragment);
        self.charge(at, before);
        self.push(at, room);
    }

    /// Answers a request that a handler left for later. Does nothing if its session has ended.
    pub fn answer(&mut self, call: Call, reply: Bytes, room: &mut impl Room) {
        let at = At { session: call.session as usize, slot: call.slot };
        let session = self.sessions.get(at.session);
        if session.is_none_or(|session| session.token != call.token) {
            return;
        }
        let slot = self.slot(at);
        if slot.sequence == call.sequence && slot.state == State::Working {
            let before = slot.bytes();
            self.reply(at, before, reply, room);
        }
    }

    fn header(&self, at: At, kind: Kind, sequence: u32) -> Header {
        let session = &self.sessions[at.session];
        Header {
            slot: at.slot,
            session: U32::new(session.remote),
            token: U64::new(session.token),
            sequence: U32::new(sequence),
            credits: U16::new(self.granted),
            ..Header::new(kind)
        }
    }

    /// The client asks for fragments of a reply, or for the state of its request.
    pub(super) fn pull(
        &mut self,
        at: At,
        packet: &Packet<'_>,
        handler: &mut impl Handler,
        room: &mut impl Room,
    ) {
        let (sequence, expired) =
            (packet.header.sequence.get(), packet.header.flags & Flags::EXPIRED);
        let slot = self.slot(at);
        match (sequence.wrapping_sub(slot.sequence), slot.state) {
            (0, State::Receiving) => {
                let assembly = slot.long.as_ref().and_then(|long| long.assembly.as_ref());
                match assembly.is_some_and(Assembly::is_complete) {
                    true => self.run_assembled(at, handler, room),
                    false => self.got(at, expired, room),
                }
            }
            (0, State::Working | State::Done) => self.again(at, packet, expired != 0, room),
            // No fragment of the request has arrived.
            (1, State::Fresh | State::Done) => {
                let header = self.header(at, Kind::Got, sequence);
                let header = Header { flags: expired, ..header };
                self.control(packet.from, header, &0u64.to_le_bytes(), room);
            }
            _ => self.counters.stale += 1,
        }
    }

    /// Says which fragments of a request have arrived.
    fn got(&mut self, at: At, flags: u8, room: &mut impl Room) {
        let slot = self.slot(at);
        let sequence = slot.sequence;
        let assembly = slot.long.as_ref().and_then(|long| long.assembly.as_ref());
        let (next, map) = assembly.map_or((0, 0), Assembly::report);
        let header = self.header(at, Kind::Got, sequence);
        let header = Header { flags, fragment: U16::new(next), ..header };
        let peer = self.sessions[at.session].peer;
        self.control(peer, header, &map.to_le_bytes(), room);
    }

    /// Sends a reply again, or its missing fragments. With `expired`, every fragment sent before
    /// may be lost.
    fn again(&mut self, at: At, packet: &Packet<'_>, expired: bool, room: &mut impl Room) {
        let slot = self.slot(at);
        if slot.state == State::Working {
            return self.got(at, Flags::WORKING, room);
        }
        let Some(long) = &mut slot.long else { return self.push(at, room) };
        long.credits = packet.header.credits.get();
        if let Some(sending) = &mut long.sending {
            let map = packet.word().filter(|_| packet.kind == Kind::Pull);
            let next = packet.header.fragment.get();
            let is_possible = map.is_none_or(|map| sending.report(next, map));
            if expired {
                sending.expire();
            }
            self.counters.malformed += u64::from(!is_possible);
        }
        self.push(at, room);
    }

    /// Sends the reply, or as many of its fragments as the client takes.
    fn push(&mut self, at: At, room: &mut impl Room) {
        let sequence = self.slot(at).sequence;
        let header = self.header(at, Kind::Reply, sequence);
        let own = self.config.end();
        let Session { peer, fragment, .. } = self.sessions[at.session];
        let size = usize::from(fragment.get());
        let slot = self.slot(at);
        let mut sending = slot.long.as_mut().and_then(|long| long.sending.take());
        let credits = slot.long.as_ref().map_or(1, |long| long.credits);
        let reply = slot.reply();
        let mut is_full = false;
        while !is_full {
            let next = sending.as_ref().map_or(Some(0), |sending| sending.peek(credits));
            let Some(number) = next else { break };
            let from = usize::from(number) * size;
            let part = reply.get(from..reply.len().min(from + size)).unwrap_or_default();
            let (len, fragment) = (U32::new(reply.len() as u32), U16::new(number));
            let asks = sending.as_ref().is_some_and(|sending| sending.asks(credits));
            let flags = if asks { Flags::ASKS } else { 0 };
            let header = Header { len, fragment, flags, ..header };
            let built = room.build(own.head() + part.len(), |out| {
                out[own.head()..].copy_from_slice(part);
                wire::seal(out, peer, own, header, part.len())
            });
            is_full = built.is_err();
            match &mut sending {
                Some(sending) if !is_full => sending.sent(number, asks),
                Some(_) => {}
                None => break,
            }
        }
        if let Some(long) = &mut slot.long {
            long.sending = sending;
        }
        if is_full {
            self.list(at);
        }
    }

    /// Remembers that a slot has something to send.
    fn list(&mut self, at: At) {
        self.counters.full += 1;
        // The list may also hold slots of sessions that have ended.
        let has_room = self.ready.len() < self.slots.len();
        let long = self.slot(at).long.get_or_insert_default();
        if has_room && !std::mem::replace(&mut long.is_listed, true) {
            self.ready.push_back((at.session as u32, at.slot));
        }
    }

    /// Sends what found no room in earlier turns.
    pub fn poll(&mut self, room: &mut impl Room) {
        for _ in 0..TURN.min(self.ready.len()) {
            let Some((session, slot)) = self.ready.pop_front() else { return };
            let at = At { session: session as usize, slot };
            let slot = self.slot(at);
            if let Some(long) = &mut slot.long {
                long.is_listed = false;
            }
            if slot.state == State::Done {
                self.push(at, room);
            }
        }
    }
}
