//! A cache that speaks memcached's text protocol and its meta commands (memcached's
//! doc/protocol.txt).
//!
//! Long values are sent in place, without a copy. Memory is bounded, and one limit holds for items,
//! for values that arrive, and for values that answers still hold. Approximately the least recently
//! used items are evicted first (second chance).
//!
//! Two answers differ from memcached's on purpose. The value of a refused command is read, if the
//! command says how long it is: memcached takes its bytes for commands. And flags have 32 bits.

mod commands;
mod items;
mod meta;
mod out;
mod reading;
mod stats;
mod unfinished;

use tcp::{Bytes, CloseReason, ConnId, Nanos};

use crate::app::{App, Io};
use items::{Item, Items, New};
use meta::Asked;
use out::Out;
use reading::Keys;
use stats::Counts;
use unfinished::{Added, Unfinished};

/// The maximum number of bytes of a key.
const MAX_KEY: usize = 250;
/// The maximum number of bytes of a value.
const MAX_VALUE: usize = 1 << 20;
/// Maximum length of a command line. Lines that ask for keys may be longer.
const MAX_LINE: usize = 8 << 10;
/// Expiry times up to this many seconds are relative to the present.
const MONTH: u64 = 30 * 24 * 3600;
/// Limit of the queued answers in bytes. Above it, no further command is read.
const MAX_QUEUED: usize = 1 << 20;
/// The first byte of a request of memcached's binary protocol, which is not spoken.
const BINARY: u8 = 0x80;

/// The cache.
#[derive(Debug)]
pub struct Kv {
    items: Items,
    unfinished: Unfinished,
    /// When everything that is there is to be removed, in seconds since 1970.
    flush: Option<u64>,
    /// Time of day at which the guest's clock was 0, in seconds since 1970.
    epoch: u64,
    /// When the first connection came.
    started: Option<u64>,
    counts: Counts,
    /// How many commands were answered.
    pub commands: u64,
    /// Requested keys that were found, and not found.
    pub hits: (u64, u64),
}

/// The state of a connection.
#[derive(Debug, Default)]
pub struct Session {
    store: Option<Store>,
    /// A long line that asks for keys.
    keys: Option<Keys>,
    done: bool,
}

/// A value that is being received, and what is to be done with it.
#[derive(Debug)]
struct Store {
    write: Write,
    reply: Reply,
    /// Bytes that are still to come, with the line end.
    left: usize,
    /// The number of what has arrived; 0 if the value is to come in one piece or is refused.
    number: u64,
    /// The answer after the value was read, if it cannot be stored.
    refused: Option<&'static str>,
}

/// A change of an item.
#[derive(Debug)]
struct Write {
    how: How,
    key: Box<[u8]>,
    flags: u32,
    until: u64,
    /// The version that the item must have.
    version: Option<u64>,
    /// An older version is stored all the same, as a stale value.
    stale: bool,
}

/// How a stored value is answered.
#[derive(Debug)]
enum Reply {
    /// By a line, unless the client wants none.
    Line { quiet: bool },
    /// By a meta command's codes.
    Meta(Asked),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
}

/// What has become of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Yes,
    No,
    Exists,
    NotFound,
    TooLarge,
    NoMemory,
}

const ERROR: &str = "ERROR\r\n";
const BAD: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_TIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";
const NO_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
const LONG: &str = "CLIENT_ERROR line too long\r\n";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object\r\n";

fn number<T: std::str::FromStr>(word: Option<&[u8]>) -> Option<T> {
    std::str::from_utf8(word?).ok()?.parse().ok()
}

impl Kv {
    /// Makes a cache of `most` bytes. `epoch` is the time of day at which the guest's clock was 0,
    /// in seconds.
    #[must_use]
    pub fn new(most: usize, epoch: u64) -> Self {
        Self {
            items: Items::new(most),
            unfinished: Unfinished::default(),
            flush: None,
            epoch,
            started: None,
            counts: Counts::default(),
            commands: 0,
            hits: (0, 0),
        }
    }

    /// Returns the number of items, and the bytes that they take.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        self.items.usage()
    }

    /// Returns the bytes that count towards the limit: of items, of values that have not arrived
    /// whole, and of values that answers hold.
    #[must_use]
    pub fn held(&self) -> usize {
        self.items.held()
    }

    /// Returns how many items were evicted.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.items.ends.evictions
    }

    fn seconds(&self, now: Nanos) -> u64 {
        self.epoch + now.0 / Nanos::SECOND
    }

    /// Returns the expiry of an item with this time. A negative time has expired already.
    fn until(&self, time: i64, now: Nanos) -> u64 {
        match u64::try_from(time) {
            Err(_) => 1,
            Ok(0) => 0,
            Ok(time) if time <= MONTH => self.seconds(now) + time,
            Ok(time) => time,
        }
    }

    fn find(&mut self, key: &[u8], now: Nanos) -> Option<&mut Item> {
        let seconds = self.seconds(now);
        self.items.find(key, seconds)
    }

    /// Removes everything, if the time for that has come.
    fn flush_if_due(&mut self, now: Nanos) {
        if self.flush.is_some_and(|at| at <= self.seconds(now)) {
            self.flush = None;
            self.items.clear();
        }
    }

    /// Takes bytes of a value; returns their number.
    fn take_value(&mut self, session: &mut Session, data: &[u8], out: &mut Out<'_, '_>) -> usize {
        let Some(store) = &mut session.store else { return 0 };
        let taken = store.left.min(data.len());
        let piece = &data[..taken];
        let is_whole = taken == store.left && store.number == 0;
        match store.receive(piece, is_whole, out.id(), &mut self.unfinished, &mut self.items) {
            Added::Yes => {}
            Added::NoRoom => {
                self.unfinished.take(store.number, &mut self.items);
                (store.number, store.refused) = (0, Some(NO_MEMORY));
            }
            Added::Gone => {
                session.done = true;
                out.abort();
                return data.len();
            }
        }
        store.left -= taken;
        if store.left == 0
            && let Some(store) = session.store.take()
        {
            let value = match store.number {
                0 if store.refused.is_some() => Vec::new(),
                0 => piece.to_vec(),
                number => self.unfinished.take(number, &mut self.items),
            };
            self.finish_store(store, value, out);
        }
        taken
    }

    /// Answers a command whose value was read.
    fn finish_store(&mut self, store: Store, mut value: Vec<u8>, out: &mut Out<'_, '_>) {
        let Store { write, reply, refused, .. } = store;
        let quiet = matches!(reply, Reply::Line { quiet: true });
        if let Some(answer) = refused {
            if [TOO_LARGE, NO_MEMORY].contains(&answer) {
                // The old value is outdated, so it must not stay.
                self.items.remove(&write.key);
            }
            return out.line(if quiet { "" } else { answer });
        }
        if !value.ends_with(b"\r\n") {
            return out.line(if quiet { "" } else { BAD_CHUNK });
        }
        value.truncate(value.len() - 2);
        let (key, is_versioned) = (write.key.clone(), write.version.is_some());
        let stored = self.write(write, value.into(), out.now());
        self.counts.stored(stored, is_versioned);
        match (reply, stored) {
            (Reply::Line { quiet: true }, _) => {}
            (_, Stored::TooLarge) => out.line(TOO_LARGE),
            (_, Stored::NoMemory) => out.line(NO_MEMORY),
            (Reply::Meta(asked), _) => self.answer_meta_store(&asked, &key, stored, out),
            (_, Stored::Yes) => out.line("STORED\r\n"),
            (_, Stored::No) => out.line("NOT_STORED\r\n"),
            (_, Stored::Exists) => out.line("EXISTS\r\n"),
            (_, Stored::NotFound) => out.line("NOT_FOUND\r\n"),
        }
    }

    /// Stores a value, if the item's state allows it.
    fn write(&mut self, write: Write, mut value: Bytes, now: Nanos) -> Stored {
        let Write { how, key, mut flags, mut until, version, stale } = write;
        let old = self.find(&key, now).cloned();
        let mut new_is_stale = false;
        match (version, &old) {
            (None, _) => {}
            (Some(_), None) => return Stored::NotFound,
            (Some(version), Some(old)) if old.version == version => {}
            (Some(version), Some(old)) if stale && version < old.version => new_is_stale = true,
            (Some(_), Some(_)) => return Stored::Exists,
        }
        match (how, &old) {
            (How::Set, _) | (How::Add, None) | (How::Replace, Some(_)) => {}
            (How::Append | How::Prepend, Some(old)) => {
                if old.value.len() + value.len() > MAX_VALUE {
                    return Stored::TooLarge;
                }
                (flags, until) = (old.flags, old.until);
                let parts = [&old.value[..], &value[..]];
                let [first, second] = if how == How::Append { parts } else { [parts[1], parts[0]] };
                value = [first, second].concat().into();
            }
            _ => return Stored::No,
        }
        let won = new_is_stale && old.as_ref().is_some_and(|old| old.won);
        // An answer may hold the old value, and counts then.
        drop(old);
        let new = New { value, flags, until, stale: new_is_stale, won };
        let seconds = self.seconds(now);
        match self.items.fits(&key, &new.value) {
            true if self.items.put(&key, new, seconds).is_some() => Stored::Yes,
            _ => Stored::NoMemory,
        }
    }

    /// Answers a line, without its line end.
    fn line(&mut self, session: &mut Session, line: &[u8], out: &mut Out<'_, '_>) {
        self.commands += 1;
        self.flush_if_due(out.now());
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        match words.next() {
            None => out.line(ERROR),
            Some(name) => self.command(session, name, words, out),
        }
    }
}

impl Store {
    /// Keeps a piece of the value, or makes room for a value that is here in one piece.
    fn receive(
        &mut self,
        piece: &[u8],
        is_whole: bool,
        id: ConnId,
        unfinished: &mut Unfinished,
        items: &mut Items,
    ) -> Added {
        if self.refused.is_some() {
            return Added::Yes;
        }
        if is_whole {
            let has_room = unfinished.pass(piece.len(), items);
            return if has_room { Added::Yes } else { Added::NoRoom };
        }
        if self.number == 0 {
            self.number = unfinished.begin(id);
        }
        unfinished.add(self.number, piece, self.left, items)
    }
}

impl App for Kv {
    type Conn = Session;

    fn accepted(&mut self, io: &mut Io<'_>) -> Session {
        let seconds = self.seconds(io.now());
        self.started.get_or_insert(seconds);
        self.counts.connected();
        Session::default()
    }

    fn data(&mut self, session: &mut Session, io: &mut Io<'_>, data: &[u8]) -> usize {
        let (mut at, mut out) = (0, Out::new(io));
        while at < data.len() && !session.done && out.queued() < MAX_QUEUED {
            let rest = &data[at..];
            if session.store.is_some() {
                at += self.take_value(session, rest, &mut out);
                continue;
            }
            if session.keys.is_some() {
                match self.take_keys(session, rest, &mut out) {
                    0 => break,
                    taken => at += taken,
                }
                continue;
            }
            if rest[0] == BINARY {
                session.done = true;
                out.finish();
                break;
            }
            let Some(end) = rest.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
                if rest.len() < MAX_LINE {
                    break;
                }
                match self.begin_keys(session, rest, &mut out) {
                    Some(taken) => at += taken,
                    None => {
                        out.line(LONG);
                        session.done = true;
                        out.finish();
                    }
                }
                continue;
            };
            self.line(session, &rest[..end], &mut out);
            at += end + 1;
        }
        let sent = out.flush();
        let taken = if session.done { data.len() } else { at };
        self.counts.moved(taken, sent);
        taken
    }

    fn wake(&mut self) -> Option<ConnId> {
        self.unfinished.next_gone()
    }

    fn woken(&mut self, session: &mut Session, io: &mut Io<'_>) {
        session.done = true;
        io.abort();
    }

    fn closed(&mut self, session: Session, _: Option<CloseReason>) {
        self.counts.disconnected();
        if let Some(store) = session.store {
            self.unfinished.take(store.number, &mut self.items);
        }
    }
}
