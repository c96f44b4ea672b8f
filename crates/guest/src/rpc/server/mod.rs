//! The server: sessions, slots and replies.

mod requests;
mod sessions;

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU16;

use tcp::{Bytes, Nanos, Secret};
use zerocopy::little_endian::U16;

use super::Config;
use super::budget::Budget;
use super::carrier::{Bad, Peer};
use super::slots::Slot;
use super::wire::{self, Header, Kind, Packet};
use crate::nic::Room;

/// The number of sessions that [`Server`] checks for idle ones when another is opened.
const SWEEP: usize = 4;
/// The maximum number of slots that [`Server::poll`] sends for.
const TURN: usize = 16;
/// The maximum amount of memory that is kept for the next long request.
const SPARE: usize = 4;

/// Names a request that a handler answers later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The client's address.
    pub peer: Peer,
    token: u64,
    session: u32,
    sequence: u32,
    slot: u8,
}

#[cfg(test)]
impl Call {
    /// A request of no session.
    pub(in crate::rpc) fn of_test(sequence: u32) -> Self {
        Self { peer: frame::Mac::local(1).into(), token: 1, session: 0, sequence, slot: 0 }
    }
}

/// What a handler does with a request.
#[derive(Debug)]
pub enum Answer {
    /// The handler has written this many bytes of reply into the room that it got.
    Here(usize),
    /// This is the reply, of any length.
    Whole(Bytes),
    /// The reply follows, by [`Server::answer`].
    Later,
    /// The handler has not begun, and cannot take the request now. The client sends it again.
    Busy,
}

/// Answers requests.
pub trait Handler {
    /// Answers `request`, which lies in the receive ring if it is one fragment. `reply` is room for
    /// a reply of one fragment in the send ring.
    fn call(&mut self, call: Call, request: &[u8], reply: &mut [u8]) -> Answer;
}

impl<F: FnMut(Call, &[u8], &mut [u8]) -> Answer> Handler for F {
    fn call(&mut self, call: Call, request: &[u8], reply: &mut [u8]) -> Answer {
        self(call, request, reply)
    }
}

/// The counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Requests that a handler got.
    pub requests: u64,
    /// Requests that came again, and got the kept reply or the state.
    pub repeated: u64,
    /// Frames of other protocols or for other hosts.
    pub foreign: u64,
    /// Packets whose fields contradict each other.
    pub malformed: u64,
    /// Packets with a wrong checksum.
    pub checksum: u64,
    /// Packets of sessions that do not exist.
    pub unknown: u64,
    /// Packets of earlier requests, or of requests that cannot be yet.
    pub stale: u64,
    /// Sessions that were refused.
    pub refused: u64,
    /// Sessions that were opened.
    pub opened: u64,
    /// Sessions that gave way: they were idle, or had made no request and others had no room.
    pub evicted: u64,
    /// Openings that were asked to come again with a cookie.
    pub cookies: u64,
    /// Requests that were dropped because the memory was used up.
    pub memory: u64,
    /// Requests that the handler could not take.
    pub busy: u64,
    /// Packets that found no room in the send ring.
    pub full: u64,
}

#[derive(Debug)]
struct Session {
    /// 0 if there is no session.
    token: u64,
    peer: Peer,
    /// The client's number.
    remote: u32,
    fragment: NonZeroU16,
    used: Nanos,
    nonce: u64,
}

/// A session and a slot of it: their indexes.
#[derive(Clone, Copy)]
struct At {
    session: usize,
    slot: u8,
}

/// An RPC server, without I/O.
#[derive(Debug)]
pub struct Server {
    config: Config,
    sessions: Vec<Session>,
    /// The slots of all sessions; those of session `i` begin at `i * config.slots()`.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Which session a client's nonce has opened.
    nonces: HashMap<(Peer, u64), u32>,
    budget: Budget,
    /// The next session that is looked at for being idle.
    hand: usize,
    /// Sessions that had made no request when they were last looked at, oldest first: their numbers
    /// and tokens.
    unused: VecDeque<(u32, u64)>,
    /// Slots with something to send.
    ready: VecDeque<(u32, u8)>,
    /// Memory for long requests.
    spare: Vec<Vec<u8>>,
    secret: Secret,
    granted: u16,
    counters: ServerCounters,
}

impl Server {
    /// Makes a server.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let network = config.carrier.network();
        let budget = Budget::new(config.memory, config.max_sessions_of_peer, network);
        let granted = config.credits.max(1);
        Self {
            secret: config.secret(),
            config,
            sessions: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            nonces: HashMap::new(),
            budget,
            hand: 0,
            unused: VecDeque::new(),
            ready: VecDeque::new(),
            spare: Vec::new(),
            granted,
            counters: ServerCounters::default(),
        }
    }

    /// Returns the server's counters.
    #[must_use]
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Sessions that are open.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.nonces.len()
    }

    /// Bytes of assembled requests and kept replies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.budget.bytes()
    }

    /// True if packets wait that found no room.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Receives a frame. `handler` answers requests.
    #[inline]
    pub fn frame(
        &mut self,
        frame: &[u8],
        now: Nanos,
        handler: &mut impl Handler,
        room: &mut impl Room,
    ) {
        let packet = match wire::parse(frame, self.config.end()) {
            Ok(packet) => packet,
            Err(bad) => return self.bad(bad),
        };
        if packet.kind == Kind::Open {
            return self.open(&packet, now, room);
        }
        let Some(at) = self.find(&packet, now) else { return self.unknown(&packet, room) };
        match packet.kind {
            Kind::Request => self.request(at, &packet, handler, room),
            Kind::Pull => self.pull(at, &packet, handler, room),
            Kind::Close => self.close(at.session),
            _ => self.counters.malformed += 1,
        }
    }

    #[cold]
    fn bad(&mut self, bad: Bad) {
        match bad {
            Bad::Foreign => self.counters.foreign += 1,
            Bad::Malformed => self.counters.malformed += 1,
            Bad::Checksum => self.counters.checksum += 1,
        }
    }

    #[inline]
    fn find(&mut self, packet: &Packet<'_>, now: Nanos) -> Option<At> {
        let number = packet.header.session.get() as usize;
        let session = self.sessions.get_mut(number)?;
        let token = packet.header.token.get();
        if token == 0 || session.token != token || session.peer != packet.from {
            return None;
        }
        session.used = now;
        let slot = packet.header.slot;
        (slot < self.config.slots()).then_some(At { session: number, slot })
    }

    /// Tells a client that its session does not exist. This reveals nothing that the client did not
    /// send.
    #[cold]
    fn unknown(&mut self, packet: &Packet<'_>, room: &mut impl Room) {
        self.counters.unknown += 1;
        if !matches!(packet.kind, Kind::Request | Kind::Pull) {
            return;
        }
        let header = Header { session: packet.header.session, ..Header::new(Kind::Gone) };
        self.control(packet.from, Header { token: packet.header.token, ..header }, &[], room);
    }

    /// Sends a packet without a message.
    fn control(&mut self, to: Peer, header: Header, payload: &[u8], room: &mut impl Room) {
        let own = self.config.end();
        let header = Header { credits: U16::new(self.granted), ..header };
        let built = room.build(own.head() + payload.len(), |out| {
            out[own.head()..].copy_from_slice(payload);
            wire::seal(out, to, own, header, payload.len())
        });
        self.counters.full += u64::from(built.is_err());
    }

    fn slot(&mut self, at: At) -> &mut Slot {
        &mut self.slots[at.session * usize::from(self.config.slots()) + usize::from(at.slot)]
    }

    /// Counts a change of the memory that a slot uses.
    fn charge(&mut self, at: At, before: usize) {
        let after = self.slot(at).bytes();
        let peer = self.sessions[at.session].peer;
        self.budget.change(peer, before, after);
    }
}
