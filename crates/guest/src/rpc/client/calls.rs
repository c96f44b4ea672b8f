//! Sending of requests.

use tcp::{Bytes, Nanos};
use zerocopy::little_endian::{U16, U32};

use super::{CallError, Client, SessionId, State};
use crate::nic::Room;
use crate::rpc::fragments::{Assembly, Sending, count};
use crate::rpc::wire::{self, Flags, Header, Kind};

/// Requests.
impl Client {
    /// Sends a request. `tag` comes back with the reply.
    ///
    /// # Errors
    /// See [`CallError`]; nothing was sent.
    #[inline]
    pub fn call(
        &mut self,
        id: SessionId,
        tag: u64,
        request: &[u8],
        now: Nanos,
        room: &mut impl Room,
    ) -> Result<(), CallError> {
        let (number, slot) = self.admit(id, request.len(), now, room)?;
        let (own, credits, timeout) = (self.config.end(), self.config.credits, self.config.timeout);
        let session = &mut self.sessions[number];
        if request.len() > usize::from(session.fragment.get()) {
            self.call_whole(number, slot, tag, Bytes::copy_from_slice(request), now, room);
            return Ok(());
        }
        let place = &mut session.slots[slot];
        let sequence = place.sequence.wrapping_add(1);
        let header = Header {
            len: U32::new(request.len() as u32),
            credits: U16::new(credits),
            slot: slot as u8,
            ..session.header(Kind::Request, sequence)
        };
        let peer = session.peer;
        room.build(own.head() + request.len(), |out| {
            out[own.head()..].copy_from_slice(request);
            wire::seal(out, peer, own, header, request.len())
        })
        .map_err(|_| CallError::Full)?;
        let place = &mut session.slots[slot];
        place.keep(request);
        place.begin(sequence, tag, now);
        session.free &= !(1 << slot);
        session.singles += 1;
        self.arm(number, now + timeout);
        Ok(())
    }

    /// Like [`call`](Self::call), for requests of any length to
    /// [`MAX_MESSAGE`](crate::rpc::MAX_MESSAGE), without a copy.
    ///
    /// # Errors
    /// See [`CallError`]; nothing was sent.
    pub fn call_bytes(
        &mut self,
        id: SessionId,
        tag: u64,
        request: Bytes,
        now: Nanos,
        room: &mut impl Room,
    ) -> Result<(), CallError> {
        let (number, slot) = self.admit(id, request.len(), now, room)?;
        if request.len() <= usize::from(self.sessions[number].fragment.get()) {
            return self.call(id, tag, &request, now, room);
        }
        self.call_whole(number, slot, tag, request, now, room);
        Ok(())
    }

    /// Finds a free slot for a request of `len` bytes.
    #[inline]
    fn admit(
        &mut self,
        id: SessionId,
        len: usize,
        now: Nanos,
        room: &mut impl Room,
    ) -> Result<(usize, usize), CallError> {
        let number = id.0 as usize;
        let session = self.sessions.get(number).ok_or(CallError::Closed)?;
        match session.state {
            State::Opening => return Err(CallError::Opening),
            State::Closed | State::Free => return Err(CallError::Closed),
            State::Open => {}
        }
        if len > session.max_message {
            return Err(CallError::TooLong(len, session.max_message));
        }
        let busy = session.singles + session.multiples;
        if busy == 0 && now - session.heard > self.config.idle / 2 {
            // After a long silence, the server may have given the session up, so it is opened
            // again.
            self.reopen(number, now, room);
            return Err(CallError::Opening);
        }
        if session.free == 0 || busy >= session.credits.max(1) {
            return Err(CallError::Busy);
        }
        Ok((number, session.free.trailing_zeros() as usize))
    }

    fn call_whole(
        &mut self,
        number: usize,
        slot: usize,
        tag: u64,
        request: Bytes,
        now: Nanos,
        room: &mut impl Room,
    ) {
        let session = &mut self.sessions[number];
        let place = &mut session.slots[slot];
        let total = count(request.len(), session.fragment.into());
        place.len = u8::MAX;
        let long = place.long.get_or_insert_default();
        (long.whole, long.sending) = (request, Some(Sending::new(total)));
        place.begin(place.sequence.wrapping_add(1), tag, now);
        session.free &= !(1 << slot);
        session.multiples += 1;
        self.arm(number, now + self.config.timeout);
        self.push(number, slot, room);
    }

    /// Sends as much of a request as the server takes.
    pub(super) fn push(&mut self, number: usize, slot: usize, room: &mut impl Room) {
        let (own, credits) = (self.config.end(), self.config.credits);
        let session = &mut self.sessions[number];
        let (peer, allowed) = (session.peer, session.share());
        let size = usize::from(session.fragment.get());
        let place = &mut session.slots[slot];
        let sequence = place.sequence;
        let header = session.header(Kind::Request, sequence);
        let place = &mut session.slots[slot];
        let mut sending = place.long.as_mut().and_then(|long| long.sending.take());
        let request = place.request();
        let mut is_full = false;
        while !is_full {
            let next = sending.as_ref().map_or(Some(0), |sending| sending.peek(allowed));
            let Some(fragment) = next else { break };
            let from = usize::from(fragment) * size;
            let part = request.get(from..request.len().min(from + size)).unwrap_or_default();
            let asks = sending.as_ref().is_some_and(|sending| sending.asks(allowed));
            let header = Header {
                flags: if asks { Flags::ASKS } else { 0 },
                len: U32::new(request.len() as u32),
                fragment: U16::new(fragment),
                credits: U16::new(credits),
                slot: slot as u8,
                ..header
            };
            let built = room.build(own.head() + part.len(), |out| {
                out[own.head()..].copy_from_slice(part);
                wire::seal(out, peer, own, header, part.len())
            });
            is_full = built.is_err();
            match &mut sending {
                Some(sending) if !is_full => sending.sent(fragment, asks),
                Some(_) => {}
                None => break,
            }
        }
        place.is_due = is_full;
        if let Some(long) = &mut place.long {
            long.sending = sending;
        }
        if is_full {
            self.list(number);
        }
    }

    /// Asks for what is missing of a reply, or for the state of a request.
    pub(super) fn pull(&mut self, number: usize, slot: usize, flags: u8, room: &mut impl Room) {
        let session = &mut self.sessions[number];
        let place = &mut session.slots[slot];
        let sequence = place.sequence;
        let assembly = place.long.as_ref().and_then(|long| long.assembly.as_ref());
        let (next, map) = assembly.map_or((0, 0), Assembly::report);
        let header = Header {
            flags,
            fragment: U16::new(next),
            slot: slot as u8,
            ..session.header(Kind::Pull, sequence)
        };
        let peer = session.peer;
        self.control(peer, header, &map.to_le_bytes(), room);
    }
}
