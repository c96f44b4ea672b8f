//! Opening and closing of sessions.
//!
//! A stranger can forge the sender of an `Open`. So a server keeps nothing for one until it carries
//! a cookie, which the server has sent to that sender. The cookie is a keyed hash, so it needs no
//! memory either.

use std::hash::BuildHasher;

use tcp::Nanos;
use zerocopy::little_endian::{U16, U32, U64};

use super::{SWEEP, Server, Session};
use crate::nic::Room;
use crate::rpc::checked_fragment;
use crate::rpc::slots::{Slot, State};
use crate::rpc::wire::{Header, Kind, Packet};

/// How long a cookie is new. It is valid for as long again.
const COOKIE_TIME: u64 = 8 * Nanos::SECOND;

/// Sessions.
impl Server {
    pub(super) fn open(&mut self, packet: &Packet<'_>, now: Nanos, room: &mut impl Room) {
        let nonce = packet.header.token.get();
        let Some(cookie) = packet.word().filter(|_| !packet.from.mac().is_group()) else {
            self.counters.malformed += 1;
            return;
        };
        let known = self.nonces.get(&(packet.from, nonce)).copied();
        let number = match known {
            Some(number) => Some(number),
            None if self.is_valid(packet, cookie, now) => self.add(packet, now, room),
            None => return self.send_cookie(packet, now, room),
        };
        let Some(number) = number else {
            self.counters.refused += 1;
            let header = Header { session: packet.header.session, ..Header::new(Kind::Refused) };
            let header = Header { token: packet.header.token, ..header };
            return self.control(packet.from, header, &[], room);
        };
        let session = &self.sessions[number as usize];
        let header = Header {
            slot: self.config.slots(),
            session: packet.header.session,
            token: U64::new(session.token),
            sequence: U32::new(number),
            fragment: U16::new(session.fragment.get()),
            len: U32::new(self.config.max_message() as u32),
            ..Header::new(Kind::Opened)
        };
        self.control(packet.from, header, &nonce.to_le_bytes(), room);
    }

    /// The cookie of an `Open` in a period of time.
    fn cookie(&self, packet: &Packet<'_>, period: u64) -> u64 {
        let (nonce, session) = (packet.header.token.get(), packet.header.session.get());
        self.secret.hash_one(("cookie", packet.from, nonce, session, period)).max(1)
    }

    fn is_valid(&self, packet: &Packet<'_>, cookie: u64, now: Nanos) -> bool {
        let period = now.0 / COOKIE_TIME;
        [period, period.wrapping_sub(1)].iter().any(|it| self.cookie(packet, *it) == cookie)
    }

    /// Answers an `Open` without a valid cookie. The answer is no longer than the question.
    fn send_cookie(&mut self, packet: &Packet<'_>, now: Nanos, room: &mut impl Room) {
        let cookie = self.cookie(packet, now.0 / COOKIE_TIME);
        let header = Header { session: packet.header.session, ..Header::new(Kind::Cookie) };
        let header = Header { token: packet.header.token, ..header };
        self.counters.cookies += 1;
        self.control(packet.from, header, &cookie.to_le_bytes(), room);
    }

    /// Makes a session, if there is room for one.
    fn add(&mut self, packet: &Packet<'_>, now: Nanos, room: &impl Room) -> Option<u32> {
        self.sweep(now);
        let fragment =
            self.config.fragment(room)?.min(checked_fragment(packet.header.fragment.get().into())?);
        if self.nonces.len() >= self.config.max_sessions && !self.evict_unused() {
            return None;
        }
        if !self.budget.open(packet.from) {
            return None;
        }
        let number = self.free.pop().unwrap_or(self.sessions.len() as u32);
        let (nonce, serial) = (packet.header.token.get(), self.counters.opened);
        let session = Session {
            token: self.secret.hash_one((serial, number)).max(1),
            peer: packet.from,
            remote: packet.header.session.get(),
            fragment,
            used: now,
            nonce,
        };
        match self.sessions.get_mut(number as usize) {
            Some(place) => *place = session,
            None => {
                self.sessions.push(session);
                let slots = self.slots.len() + usize::from(self.config.slots());
                self.slots.resize_with(slots, Slot::new);
            }
        }
        self.nonces.insert((packet.from, nonce), number);
        self.note_unused(number);
        self.counters.opened += 1;
        self.share();
        Some(number)
    }

    /// Remembers that a session has not been used yet.
    fn note_unused(&mut self, number: u32) {
        if self.unused.len() > 2 * self.sessions.len() {
            let mut unused = std::mem::take(&mut self.unused);
            unused.retain(|(number, token)| self.is_unused(*number, *token));
            self.unused = unused;
        }
        self.unused.push_back((number, self.sessions[number as usize].token));
    }

    /// Whether this session is open, and no request of it has come.
    fn is_unused(&self, number: u32, token: u64) -> bool {
        let (at, slots) = (number as usize, usize::from(self.config.slots()));
        let is_new = |slot: &Slot| slot.sequence == 0 && slot.state == State::Fresh;
        self.sessions[at].token == token
            && self.slots[at * slots..(at + 1) * slots].iter().all(is_new)
    }

    /// Closes the oldest session that has made no request; returns whether there was one.
    fn evict_unused(&mut self) -> bool {
        while let Some((number, token)) = self.unused.pop_front() {
            if self.is_unused(number, token) {
                self.counters.evicted += 1;
                self.close(number as usize);
                return true;
            }
        }
        false
    }

    /// Closes idle sessions among the next few.
    fn sweep(&mut self, now: Nanos) {
        for _ in 0..SWEEP.min(self.sessions.len()) {
            self.hand = (self.hand + 1) % self.sessions.len();
            let session = &self.sessions[self.hand];
            if session.token != 0 && now - session.used > self.config.idle {
                self.counters.evicted += 1;
                self.close(self.hand);
            }
        }
    }

    pub(super) fn close(&mut self, number: usize) {
        let slots = usize::from(self.config.slots());
        let session = &mut self.sessions[number];
        let (peer, nonce) = (session.peer, session.nonce);
        session.token = 0;
        for slot in &mut self.slots[number * slots..(number + 1) * slots] {
            self.budget.change(peer, slot.bytes(), 0);
            *slot = Slot::new();
        }
        self.nonces.remove(&(peer, nonce));
        self.budget.close(peer);
        self.free.push(number as u32);
        self.share();
    }

    /// Shares the receive ring among the sessions.
    fn share(&mut self) {
        let sessions = self.nonces.len().max(1);
        let share = usize::from(self.config.receive_room) / sessions;
        self.granted = share.clamp(1, self.config.credits.max(1).into()) as u16;
    }
}
