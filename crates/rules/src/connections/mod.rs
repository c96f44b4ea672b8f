//! Connections: packets of one that the rules have admitted pass without them, in both directions,
//! but only between the two ports that made it.
//!
//! ```text
//!   memory, given by the caller:  header | entry | entry | ...       survives this process
//!   here:                         buckets of 8 -> entry; lists of unanswered entries by port
//! ```
//!
//! The part in memory is complete: the rest is made from it again by one pass. States and times
//! are Linux's, as `nf_conntrack` has them by default; windows are not tracked.

mod entry;
mod fragments;
mod index;
mod tcp;
mod tuple;

use core::ops::Deref;
use std::sync::atomic::AtomicU64;

use self::entry::{Entry, Header};
use self::fragments::Fragments;
use self::index::Index;
pub use self::tcp::State;
pub use self::tuple::Tuple;

/// The first words of the memory.
pub(crate) const HEADER_WORDS: usize = 8;
/// Words of an entry.
pub(crate) const ENTRY_WORDS: usize = 8;
/// The end of a connection that no port has answered from.
const UNKNOWN: u32 = u32::MAX;

/// How much memory a number of connections takes.
#[derive(Clone, Copy, Debug)]
pub struct Layout;

impl Layout {
    /// Words of 8 bytes for `connections`.
    #[must_use]
    pub const fn words(connections: usize) -> usize {
        HEADER_WORDS + connections * ENTRY_WORDS
    }
}

/// How many connections a port may have begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota(pub usize);

/// A port as an end of a connection: its number. Once the port is gone, call
/// [`Connections::forget_port`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End(u32);

impl End {
    /// The port with this number.
    #[must_use]
    pub fn new(port: u16) -> Self {
        Self(port.into())
    }

    fn port(self) -> u16 {
        self.0 as u16
    }
}

/// A connection to which a packet belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    entry: u32,
    /// The packet goes as the first one did.
    pub forward: bool,
    /// The packet is an ICMP error about the connection.
    pub related: bool,
    /// The generations of rules that admitted the connection at the port that sends this packet,
    /// and at the one that receives it.
    pub judged: (u16, u16),
    receiver: u32,
    state: State,
}

impl Admitted {
    /// The number of the port that receives the packet, if it is known.
    #[must_use]
    pub fn receiver(&self) -> Option<u16> {
        (self.receiver != UNKNOWN).then_some(self.receiver as u16)
    }
}

/// A connection, to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its first packet.
    pub tuple: Tuple,
    /// The number of the port that sent the first packet.
    pub from: u16,
    /// The number of the port that answers; `None` if no port has.
    pub to: Option<u16>,
    /// Its state.
    pub state: State,
    /// Seconds until it is forgotten.
    pub expires_in: u32,
}

/// The connections of a switch.
#[derive(Debug)]
pub struct Connections<M> {
    memory: M,
    index: Index,
    fragments: Fragments,
    quota: usize,
    /// Where the search for expired entries goes on.
    sweep: u32,
    /// New connections that found no room.
    pub refused: u64,
    /// Unanswered connections that made room for others.
    pub evicted: u64,
}

impl<M: Deref<Target = [AtomicU64]>> Connections<M> {
    /// The connections in `memory`, which are none if it is zero or of another version. `key` is a
    /// random number. Entries beyond the memory's end don't exist.
    #[must_use]
    pub fn open(memory: M, quota: Quota, key: u64) -> Self {
        let words: &[AtomicU64] = &memory;
        let capacity = words.len().saturating_sub(HEADER_WORDS) / ENTRY_WORDS;
        if !Header::of(words).is_ours() {
            words.iter().for_each(|word| word.store(0, std::sync::atomic::Ordering::Relaxed));
            Header::of(words).mark();
        }
        let index = Index::new(capacity, key);
        let fragments = Fragments::new(key);
        let mut new =
            Self { memory, index, fragments, quota: quota.0, sweep: 0, refused: 0, evicted: 0 };
        for entry in 0..capacity as u32 {
            new.adopt(entry);
        }
        new
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn entry(&self, entry: u32) -> Entry<'_> {
        Entry::of(&self.memory, entry)
    }

    /// Takes over an entry that an earlier process has left.
    fn adopt(&mut self, number: u32) {
        let entry = self.entry(number);
        let Some(state) = entry.state() else { return self.index.give_back(number) };
        let (tuple, from) = (entry.tuple(), entry.ends().0);
        if self.index.insert(&tuple, number, from.port()).is_none() {
            self.entry(number).clear();
            return self.index.give_back(number);
        }
        if !state.is_answered() {
            self.index.append(number, from.port());
        }
    }

    /// Finds the connection of a packet that comes from port `from` and goes to port `to`, if that
    /// is known, at `now` (seconds).
    #[must_use]
    #[inline]
    pub fn find(&self, tuple: &Tuple, from: End, to: Option<End>, now: u32) -> Option<Admitted> {
        self.index.candidates(tuple).find_map(|number| {
            let entry = self.entry(number);
            let own = entry.tuple();
            let state = entry.state().filter(|_| own.is_same(tuple) && entry.expires() > now)?;
            let (initiator, responder) = entry.ends();
            let forward = match own.is_loop() {
                true => initiator == from,
                false => (own.from, own.ports) == (tuple.from, tuple.ports),
            };
            let (sender, receiver) =
                if forward { (initiator, responder) } else { (responder, initiator) };
            let fits = |own: End, asked: End| own == asked || own.0 == UNKNOWN;
            if !fits(sender, from) || to.is_some_and(|to| !fits(receiver, to)) {
                return None;
            }
            let judged = entry.judged();
            let judged = if forward { judged } else { (judged.1, judged.0) };
            let state = if tuple.related { state } else { state.next(tuple, forward)? };
            let (related, receiver) = (tuple.related, receiver.0);
            Some(Admitted { entry: number, forward, related, judged, receiver, state })
        })
    }

    /// Notes that a packet of the connection passes from `from` to `to`, judged by rules of
    /// generation `judged`, at `now` (seconds). True if this changes more than when the connection
    /// expires: then other packets of it must be [found](Self::find) again.
    pub fn pass(
        &mut self,
        admitted: &Admitted,
        from: End,
        to: Option<End>,
        judged: u16,
        now: u32,
    ) -> bool {
        let entry = self.entry(admitted.entry);
        let before = (entry.ends(), entry.judged(), entry.state());
        let (mut initiator, mut responder) = before.0;
        if let Some(to) = to {
            if admitted.forward {
                (initiator, responder) =
                    (from, if responder.0 == UNKNOWN { to } else { responder });
            } else if responder.0 == UNKNOWN {
                responder = from;
            }
            if !admitted.related && before.1 != (judged, judged) {
                entry.set_judged((judged, judged));
            }
        }
        if before.0 != (initiator, responder) {
            entry.set_ends((initiator, responder));
        }
        if !admitted.related {
            let protocol = entry.tuple().protocol;
            entry.set_state(admitted.state, now.saturating_add(admitted.state.seconds(protocol)));
            let answered = before.2.is_some_and(|before| !before.is_answered());
            if answered && admitted.state.is_answered() {
                self.index.remove_from_list(admitted.entry, initiator.port());
            }
        }
        let entry = self.entry(admitted.entry);
        before != (entry.ends(), entry.judged(), entry.state())
    }

    /// Adds the connection that a packet from `from` to `to` begins. False if there is no room: the
    /// port has used up its quota with answered connections, or the table is full of those.
    pub fn begin(
        &mut self,
        tuple: &Tuple,
        from: End,
        to: Option<End>,
        judged: u16,
        now: u32,
    ) -> bool {
        let Some(state) = State::first(tuple) else { return true };
        let port = from.port();
        if self.index.count(port) >= self.quota && !self.evict(port) {
            self.refused += 1;
            return false;
        }
        // The same ends begin it again. Other ports may use the same addresses beside it.
        let stale = self.index.candidates(tuple).find(|number| {
            let entry = self.entry(*number);
            let (initiator, responder) = entry.ends();
            entry.tuple().is_same(tuple) && (initiator == from || responder == from)
        });
        stale.into_iter().for_each(|stale| self.forget(stale));
        let room = |table: &mut Self| table.index.take();
        let number = room(self).or_else(|| {
            let evicted =
                self.evict(port) || self.index.crowded().is_some_and(|other| self.evict(other));
            evicted.then(|| room(self)).flatten()
        });
        let Some(number) = number else {
            self.refused += 1;
            return false;
        };
        if self.index.insert(tuple, number, port).is_none() {
            self.index.give_back(number);
            self.refused += 1;
            return false;
        }
        self.index.append(number, port);
        let expires = now.saturating_add(state.seconds(tuple.protocol));
        let ends = (from, to.unwrap_or(End(UNKNOWN)));
        self.entry(number).write(tuple, ends, (judged, judged), state, expires);
        true
    }

    /// Removes the oldest connection of a port that was never answered.
    fn evict(&mut self, port: u16) -> bool {
        let Some(oldest) = self.index.oldest(port) else { return false };
        self.forget(oldest);
        self.evicted += 1;
        true
    }

    /// Ends a connection that rules deny by now.
    pub fn end(&mut self, admitted: &Admitted) {
        self.forget(admitted.entry);
    }

    fn forget(&mut self, number: u32) {
        let entry = self.entry(number);
        let Some(state) = entry.state() else { return };
        let (tuple, port) = (entry.tuple(), entry.ends().0.port());
        entry.clear();
        if !state.is_answered() {
            self.index.remove_from_list(number, port);
        }
        self.index.remove(&tuple, number, port);
        self.index.give_back(number);
    }

    /// Forgets what has expired among the next `most` entries.
    pub fn sweep(&mut self, now: u32, most: usize) {
        let capacity = self.index.capacity();
        for _ in 0..most.min(capacity as usize) {
            self.sweep = if self.sweep + 1 < capacity { self.sweep + 1 } else { 0 };
            let entry = self.entry(self.sweep);
            if entry.state().is_some() && entry.expires() <= now {
                self.forget(self.sweep);
            }
        }
    }

    /// Forgets the connections of a port that is gone.
    pub fn forget_port(&mut self, port: u16) {
        for number in 0..if self.is_empty() { 0 } else { self.index.capacity() } {
            let entry = self.entry(number);
            let (from, to) = entry.ends();
            if entry.state().is_some()
                && (from.port() == port || to.port() == port && to.0 != UNKNOWN)
            {
                self.forget(number);
            }
        }
    }

    /// Notes the first fragment of a packet, which was admitted from `from` to `to`.
    pub fn note_fragment(
        &mut self,
        packet: &crate::Packet<'_>,
        from: End,
        to: Option<End>,
        now: u32,
    ) {
        self.fragments.note(packet, from.0, to.map_or(UNKNOWN, |to| to.0), now);
    }

    /// True if the first fragment of a later one's packet was admitted between these ports.
    #[must_use]
    pub fn has_fragment(
        &self,
        packet: &crate::Packet<'_>,
        from: End,
        to: Option<End>,
        now: u32,
    ) -> bool {
        self.fragments.has(packet, from.0, to.map(|to| to.0), now)
    }

    /// All connections at `now`, up to `most`.
    pub fn list(&self, now: u32, most: usize) -> impl Iterator<Item = Connection> + '_ {
        let all = (0..self.index.capacity()).map(|number| self.entry(number));
        let lasting = all.filter(move |entry| entry.state().is_some() && entry.expires() > now);
        lasting.take(most).filter_map(move |entry| {
            let (from, to) = entry.ends();
            Some(Connection {
                tuple: entry.tuple(),
                from: from.port(),
                to: (to.0 != UNKNOWN).then(|| to.port()),
                state: entry.state()?,
                expires_in: entry.expires().saturating_sub(now),
            })
        })
    }
}

/// Mixes `word` into `hash` (a folded multiplication, as in wyhash).
#[inline(always)]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let product =
        u128::from(hash ^ 0x9e37_79b9_7f4a_7c15) * u128::from(word ^ 0xe703_7ed1_a0b4_28db);
    (product >> 64) as u64 ^ product as u64
}
