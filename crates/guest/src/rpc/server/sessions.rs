//! Opening and closing of sessions.

use std::hash::BuildHasher;

use tcp::Nanos;
use zerocopy::little_endian::{U16, U32, U64};

use super::{SWEEP, Server, Session};
use crate::nic::Room;
use crate::rpc::checked_fragment;
use crate::rpc::slots::Slot;
use crate::rpc::wire::{Header, Kind, Packet};

/// Sessions.
impl Server {
    pub(super) fn open(&mut self, packet: &Packet<'_>, now: Nanos, room: &mut impl Room) {
        let nonce = packet.header.token.get();
        let known = self.nonces.get(&(packet.from, nonce)).copied();
        let number = match known {
            Some(number) => Some(number),
            None => self.add(packet, now, room),
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

    /// Makes a session, if there is room for one.
    fn add(&mut self, packet: &Packet<'_>, now: Nanos, room: &impl Room) -> Option<u32> {
        self.sweep(now);
        let fragment =
            self.config.fragment(room)?.min(checked_fragment(packet.header.fragment.get().into())?);
        let has_room =
            self.nonces.len() < self.config.max_sessions && !packet.from.mac().is_group();
        if !has_room || !self.budget.open(packet.from) {
            return None;
        }
        let number = self.free.pop().unwrap_or(self.sessions.len() as u32);
        let (nonce, serial) = (packet.header.token.get(), self.counters.opened);
        let session = Session {
            token: self.random.hash_one((serial, number)).max(1),
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
        self.counters.opened += 1;
        self.share();
        Some(number)
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
