//! The client: sessions, requests in flight, and timers.

mod calls;
mod input;
mod timers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use frame::Mac;
use tcp::{Bytes, Nanos, Secret};
use zerocopy::little_endian::{U16, U32, U64};

use super::Config;
use super::carrier::Peer;
use super::fragments::{Assembly, Sending};
use super::wire::{self, Header, Kind};
use crate::nic::Room;

/// Requests to this length are kept in the slot itself.
const INLINE: usize = 32;
/// A time-out doubles at most this often.
const DOUBLINGS: u8 = 6;
/// The maximum number of sessions that [`Client::poll`] sends for.
const TURN: usize = 16;
/// The maximum amount of memory that is kept for the next long reply.
const SPARE: usize = 4;

/// Names a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(super) u32);

/// The reason why a request has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The session has ended: the server was restarted, or does not answer.
    #[error("The session ended before the reply: the request may have run, or not")]
    Ambiguous,
    /// The reply is longer than this client takes.
    #[error("The request has run, but its reply is longer than this client's limit")]
    TooLong,
}

/// The reason why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The session is not open yet. Call again once [`Client::is_open`] says so.
    #[error("The session is being opened")]
    Opening,
    /// All slots or credits are in use. Call again after a reply.
    #[error("As many requests are outstanding as the server allows; call again after a reply")]
    Busy,
    /// The send ring is full. Call again after the next turn.
    #[error("The send ring is full; call again after the next turn")]
    Full,
    /// The server refused the session or does not answer.
    #[error("The server does not answer or has no room; connect again")]
    Closed,
    /// The request is longer than the server takes.
    #[error("The request has {0} bytes; the server takes at most {1}")]
    TooLong(usize, usize),
}

/// Learns the results of requests.
pub trait Replies {
    /// The request of `tag` has a reply, which lies in the receive ring if it is one fragment, or
    /// has none.
    fn done(&mut self, session: SessionId, tag: u64, reply: Result<&[u8], Failure>);
}

impl<F: FnMut(SessionId, u64, Result<&[u8], Failure>)> Replies for F {
    fn done(&mut self, session: SessionId, tag: u64, reply: Result<&[u8], Failure>) {
        self(session, tag, reply);
    }
}

/// The counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Replies.
    pub replies: u64,
    /// Packets that were sent again after a time-out.
    pub repeated: u64,
    /// Frames of other protocols or for other hosts.
    pub foreign: u64,
    /// Packets whose fields contradict each other.
    pub malformed: u64,
    /// Packets with a wrong checksum.
    pub checksum: u64,
    /// Packets of earlier sessions or requests.
    pub stale: u64,
    /// Sessions that have ended with requests outstanding or without an answer.
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum State {
    Opening,
    Open,
    /// The session has ended.
    Closed,
    /// The number is free: the application has given the session back.
    Free,
}

/// The station of a server that is not known yet.
pub(super) const UNKNOWN: Mac = Mac::from_word(0);

/// The deadline of a session without a timer.
const UNARMED: Nanos = Nanos(u64::MAX);

#[derive(Debug)]
struct Session {
    peer: Peer,
    state: State,
    token: u64,
    /// What the server has sent for the next `Open` to carry; 0 for nothing.
    cookie: u64,
    /// The server's number.
    remote: u32,
    fragment: NonZeroU16,
    /// Fragments that the server takes at once.
    credits: u16,
    /// Requests of one fragment in flight, and of several.
    singles: u16,
    multiples: u16,
    /// A bit for each free slot.
    free: u64,
    slots: Box<[Slot]>,
    heard: Nanos,
    /// When a request was first repeated, if that was after `heard`; or when the opening began.
    silent: Nanos,
    /// Repetitions of the opening.
    tries: u8,
    /// When the session's requests are next checked.
    armed: Nanos,
    is_listed: bool,
    max_message: usize,
}

#[derive(Debug, Default)]
struct Slot {
    sequence: u32,
    /// Bytes of the request that are in `inline`, or [`u8::MAX`].
    len: u8,
    inline: [u8; INLINE],
    tries: u8,
    /// The server has the request: it works on it, or sends its reply.
    is_taken: bool,
    /// The request is sent again when there is room.
    is_due: bool,
    tag: u64,
    heard: Nanos,
    long: Option<Box<Long>>,
}

/// What does not fit into the slot: a long message.
#[derive(Debug, Default)]
struct Long {
    short: Vec<u8>,
    whole: Bytes,
    sending: Option<Sending>,
    assembly: Option<Assembly>,
}

impl Slot {
    fn keep(&mut self, request: &[u8]) {
        match self.inline.get_mut(..request.len()) {
            Some(place) => {
                place.copy_from_slice(request);
                self.len = request.len() as u8;
            }
            None => {
                self.len = u8::MAX;
                let long = self.long.get_or_insert_default();
                long.short.clear();
                long.short.extend_from_slice(request);
            }
        }
    }

    fn request(&self) -> &[u8] {
        match &self.long {
            Some(long) if self.len == u8::MAX && long.whole.is_empty() => &long.short,
            Some(long) if self.len == u8::MAX => &long.whole,
            _ => self.inline.get(..self.len.into()).unwrap_or_default(),
        }
    }

    fn sending(&mut self) -> Option<&mut Sending> {
        self.long.as_mut()?.sending.as_mut()
    }
}

/// An RPC client, without I/O.
#[derive(Debug)]
pub struct Client {
    config: Config,
    sessions: Vec<Session>,
    free: Vec<u32>,
    /// When a session's requests are looked at. One entry for each armed session.
    timers: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// Sessions with something to send.
    ready: VecDeque<u32>,
    /// Memory for long replies.
    spare: Vec<Vec<u8>>,
    secret: Secret,
    serial: u64,
    counters: ClientCounters,
}

impl Client {
    /// Makes a client.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            secret: config.secret(),
            config,
            sessions: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            ready: VecDeque::new(),
            spare: Vec::new(),
            serial: 0,
            counters: ClientCounters::default(),
        }
    }

    /// The client's counters.
    #[must_use]
    pub fn counters(&self) -> &ClientCounters {
        &self.counters
    }

    /// Whether a session can be called.
    #[must_use]
    pub fn is_open(&self, id: SessionId) -> bool {
        self.sessions.get(id.0 as usize).is_some_and(|session| session.state == State::Open)
    }

    /// Whether a session has ended, or was refused.
    #[must_use]
    pub fn is_closed(&self, id: SessionId) -> bool {
        self.sessions.get(id.0 as usize).is_none_or(|session| session.state >= State::Closed)
    }

    /// Requests of a session without a reply yet.
    #[must_use]
    pub fn outstanding(&self, id: SessionId) -> usize {
        let session = self.sessions.get(id.0 as usize);
        session.map_or(0, |session| usize::from(session.singles + session.multiples))
    }

    /// Opens a session with a server.
    pub fn connect(
        &mut self,
        peer: impl Into<Peer>,
        now: Nanos,
        room: &mut impl Room,
    ) -> SessionId {
        let peer = peer.into();
        let number = self.free.pop().unwrap_or(self.sessions.len() as u32);
        let session = Session {
            peer,
            state: State::Opening,
            token: 0,
            cookie: 0,
            remote: 0,
            fragment: NonZeroU16::MIN,
            credits: 1,
            singles: 0,
            multiples: 0,
            free: 0,
            slots: Box::new([]),
            heard: now,
            silent: now,
            tries: 0,
            armed: UNARMED,
            is_listed: false,
            max_message: 0,
        };
        match self.sessions.get_mut(number as usize) {
            Some(place) => *place = session,
            None => self.sessions.push(session),
        }
        self.reopen(number as usize, now, room);
        SessionId(number)
    }

    /// Ends a session. Requests without a reply are forgotten.
    pub fn close(&mut self, id: SessionId, room: &mut impl Room) {
        let Some(session) = self.sessions.get_mut(id.0 as usize) else { return };
        let header = session.header(Kind::Close, 0);
        let peer = session.peer;
        let was = std::mem::replace(&mut session.state, State::Free);
        if was == State::Free {
            return;
        }
        session.armed = UNARMED;
        session.slots = Box::new([]);
        self.free.push(id.0);
        if was == State::Open {
            self.control(peer, header, &[], room);
        }
    }

    /// Looks for the stations of servers that were connected to by their IP address alone: of
    /// sessions that are opening, at stations that `station_of` knows.
    pub(super) fn locate(
        &mut self,
        number: u32,
        station_of: impl FnOnce(SocketAddr) -> Option<Mac>,
        room: &mut impl Room,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(number as usize) else { return true };
        let (State::Opening, Some(address)) = (session.state, session.peer.udp()) else {
            return true;
        };
        let Some(mac) = station_of(address) else { return false };
        session.peer = session.peer.at(mac);
        self.ask_to_open(number as usize, room);
        true
    }

    /// Restarts the opening of a session: resolves the address of its server again.
    pub(super) fn wait_for_station(&mut self, number: u32, now: Nanos) {
        if let Some(session) = self.sessions.get_mut(number as usize)
            && session.state == State::Opening
        {
            (session.tries, session.silent) = (0, now);
        }
    }

    /// Starts to open a session, under a new nonce: an old one may name an earlier session.
    fn reopen(&mut self, number: usize, now: Nanos, room: &mut impl Room) {
        self.serial += 1;
        let session = &mut self.sessions[number];
        (session.token, session.cookie) = (self.secret.hash_one(self.serial).max(1), 0);
        (session.state, session.tries) = (State::Opening, 0);
        (session.heard, session.silent) = (now, now);
        self.ask_to_open(number, room);
        self.arm(number, now + self.config.timeout);
    }

    fn ask_to_open(&mut self, number: usize, room: &mut impl Room) {
        let session = &self.sessions[number];
        let peer = session.peer;
        if peer.mac() == UNKNOWN {
            return;
        }
        let header = Header {
            slot: self.config.slots(),
            session: U32::new(number as u32),
            token: U64::new(session.token),
            fragment: U16::new(self.config.fragment(room).map_or(0, NonZeroU16::get)),
            ..Header::new(Kind::Open)
        };
        self.control(peer, header, &session.cookie.to_le_bytes(), room);
    }

    fn control(&self, to: Peer, header: Header, payload: &[u8], room: &mut impl Room) {
        let own = self.config.end();
        let header = Header { credits: U16::new(self.config.credits), ..header };
        // A packet that finds no room is sent again after a time-out.
        let _ = room.build(own.head() + payload.len(), |out| {
            out[own.head()..].copy_from_slice(payload);
            wire::seal(out, to, own, header, payload.len())
        });
    }

    #[inline]
    fn arm(&mut self, number: usize, deadline: Nanos) {
        let session = &mut self.sessions[number];
        if deadline < session.armed {
            session.armed = deadline;
            self.timers.push(Reverse((deadline, number as u32)));
        }
    }

    fn list(&mut self, number: usize) {
        let session = &mut self.sessions[number];
        if !std::mem::replace(&mut session.is_listed, true) {
            self.ready.push_back(number as u32);
        }
    }
}

impl Slot {
    fn begin(&mut self, sequence: u32, tag: u64, now: Nanos) {
        (self.sequence, self.tag, self.heard) = (sequence, tag, now);
        (self.tries, self.is_taken, self.is_due) = (0, false, false);
    }
}

impl Session {
    fn header(&self, kind: Kind, sequence: u32) -> Header {
        Header {
            session: U32::new(self.remote),
            token: U64::new(self.token),
            sequence: U32::new(sequence),
            ..Header::new(kind)
        }
    }

    /// Credits of each request in fragments.
    fn share(&self) -> u16 {
        self.credits.saturating_sub(self.singles) / self.multiples.max(1)
    }

    /// Slots with a request.
    fn busy(&self) -> impl Iterator<Item = usize> + use<> {
        let used = self.slots.len() as u32;
        let mut busy = !self.free & 1u64.checked_shl(used).unwrap_or(0).wrapping_sub(1);
        std::iter::from_fn(move || {
            let slot = (busy != 0).then(|| busy.trailing_zeros() as usize)?;
            busy &= busy - 1;
            Some(slot)
        })
    }

    /// Frees the slot of a request that has ended; returns its tag.
    #[inline]
    fn end(&mut self, slot: usize) -> u64 {
        let place = &mut self.slots[slot];
        let mut is_single = true;
        if let Some(long) = &mut place.long {
            is_single = long.whole.is_empty();
            long.whole = Bytes::new();
            (long.sending, long.assembly) = (None, None);
        }
        self.free |= 1 << slot;
        match is_single {
            true => self.singles -= 1,
            false => self.multiples -= 1,
        }
        place.tag
    }
}
