//! A cache that speaks memcached's text protocol (memcached's doc/protocol.txt).
//!
//! Values are sent in place, without a copy. Memory is bounded: approximately the least recently
//! used items are evicted first (second chance).

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;

use tcp::{Bytes, Nanos};

use crate::app::{App, Io};

/// The maximum number of bytes of a key.
const MAX_KEY: usize = 250;
/// The maximum number of bytes of a value.
const MAX_VALUE: usize = 1 << 20;
/// Maximum length of a command line.
const MAX_LINE: usize = 8 << 10;
/// Memory that an item takes beyond key and value.
const OVERHEAD: usize = 96;
/// Expiry times up to this many seconds are relative to the present.
const MONTH: u64 = 30 * 24 * 3600;
/// Limit of the queued answers in bytes. Above it, no further command is read.
const MAX_QUEUED: usize = 1 << 20;

#[derive(Clone, Debug)]
struct Item {
    value: Bytes,
    flags: u32,
    /// Expiry in seconds since 1970; 0 for never.
    until: u64,
    version: u64,
    used: bool,
}

/// The cache.
#[derive(Debug)]
pub struct Kv {
    items: HashMap<Box<[u8]>, Item>,
    /// Keys and versions, oldest first. An entry whose version differs from the item's is stale.
    order: VecDeque<(Box<[u8]>, u64)>,
    bytes: usize,
    most: usize,
    version: u64,
    /// Time of day at which the guest's clock was 0, in seconds since 1970.
    epoch: u64,
    /// How many commands were answered.
    pub commands: u64,
    /// Requested keys that were found, and not found.
    pub hits: (u64, u64),
    /// Items that were evicted.
    pub evictions: u64,
}

/// The state of a connection.
#[derive(Debug, Default)]
pub struct Session {
    store: Option<Store>,
    done: bool,
}

/// A value that is being received.
#[derive(Debug)]
struct Store {
    how: How,
    key: Box<[u8]>,
    flags: u32,
    until: u64,
    /// Length of the value with its line end.
    len: usize,
    value: Vec<u8>,
    quiet: bool,
    /// The answer after the value was read, if it cannot be stored.
    refused: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas(u64),
}

const ERROR: &str = "ERROR\r\n";
const BAD: &str = "CLIENT_ERROR bad command line format\r\n";
const LONG: &str = "CLIENT_ERROR line too long\r\n";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

fn number<T: std::str::FromStr>(word: Option<&[u8]>) -> Option<T> {
    std::str::from_utf8(word?).ok()?.parse().ok()
}

impl Kv {
    /// Makes a cache of `most` bytes. `epoch` is the time of day at which the guest's clock was 0,
    /// in seconds.
    #[must_use]
    pub fn new(most: usize, epoch: u64) -> Self {
        Self {
            items: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            most,
            version: 0,
            epoch,
            commands: 0,
            hits: (0, 0),
            evictions: 0,
        }
    }

    /// Returns the number of items, and the bytes that they take.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        (self.items.len(), self.bytes)
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
        let item = self.items.get(key)?;
        if item.until != 0 && item.until <= seconds {
            self.remove(key);
            return None;
        }
        let item = self.items.get_mut(key)?;
        item.used = true;
        Some(item)
    }

    /// Removes an item. Its entry in `order` is dropped when it becomes the oldest.
    fn remove(&mut self, key: &[u8]) -> bool {
        let Some(item) = self.items.remove(key) else { return false };
        self.bytes -= OVERHEAD + key.len() + item.value.len();
        true
    }

    fn put(&mut self, key: Box<[u8]>, value: Bytes, flags: u32, until: u64) {
        self.remove(&key);
        let need = OVERHEAD + key.len() + value.len();
        while self.bytes + need > self.most {
            let Some((oldest, version)) = self.order.pop_front() else { return };
            let Some(item) = self.items.get_mut(&oldest).filter(|item| item.version == version)
            else {
                continue;
            };
            if std::mem::take(&mut item.used) {
                self.order.push_back((oldest, version));
            } else {
                self.remove(&oldest);
                self.evictions += 1;
            }
        }
        if self.order.len() > 2 * self.items.len() + 1024 {
            let items = &self.items;
            let lives = |key: &[u8], version: u64| {
                items.get(key).is_some_and(|item| item.version == version)
            };
            self.order.retain(|(key, version)| lives(key, *version));
        }
        self.version += 1;
        let item = Item { value, flags, until, version: self.version, used: false };
        self.bytes += need;
        self.order.push_back((key.clone(), self.version));
        self.items.insert(key, item);
    }

    /// Answers a command line, without its line end.
    fn command(&mut self, session: &mut Session, line: &[u8], io: &mut Io<'_>) {
        self.commands += 1;
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let Some(name) = words.next() else { return io.send(ERROR.into()) };
        let how = match name {
            b"get" => return self.get(words, false, io),
            b"gets" => return self.get(words, true, io),
            b"set" => How::Set,
            b"add" => How::Add,
            b"replace" => How::Replace,
            b"append" => How::Append,
            b"prepend" => How::Prepend,
            b"cas" => How::Cas(0),
            b"quit" => {
                session.done = true;
                return io.finish();
            }
            _ => {
                let words: Vec<&[u8]> = words.take(8).collect();
                let quiet = words.last() == Some(&&b"noreply"[..]);
                let answer = self.simple(name, &words, io.now());
                if !quiet && !answer.is_empty() {
                    io.send(answer.into());
                }
                return;
            }
        };
        match self.store(how, words, io.now()) {
            Ok(store) => session.store = Some(store),
            Err(answer) => io.send(answer.into()),
        }
    }

    fn get<'l>(&mut self, keys: impl Iterator<Item = &'l [u8]>, cas: bool, io: &mut Io<'_>) {
        let mut none = true;
        for key in keys {
            none = false;
            let Some(item) = self.find(key, io.now()) else {
                self.hits.1 += 1;
                continue;
            };
            let (value, flags, version) = (item.value.clone(), item.flags, item.version);
            self.hits.0 += 1;
            let mut head = [b"VALUE ", key].concat();
            let more = if cas { format!(" {version}") } else { String::new() };
            head.extend(format!(" {flags} {}{more}\r\n", value.len()).bytes());
            io.send(head.into());
            io.send(value);
            io.send(Bytes::from_static(b"\r\n"));
        }
        io.send(Bytes::from_static(if none { ERROR.as_bytes() } else { b"END\r\n" }));
    }

    /// Carries out a command that is answered by one line; the answer is empty for `noreply`.
    fn simple(&mut self, name: &[u8], words: &[&[u8]], now: Nanos) -> String {
        let key = words.first().copied().unwrap_or_default();
        let known = || "NOT_FOUND\r\n".to_owned();
        match (name, words.len()) {
            (b"delete", 1..) => match self.find(key, now).is_some() && self.remove(key) {
                true => "DELETED\r\n".into(),
                false => known(),
            },
            (b"incr" | b"decr", 2..) => self.count(key, words[1], name == b"incr", now),
            (b"touch", 2..) => {
                let Some(time) = number(words.get(1).copied()) else { return BAD.into() };
                let until = self.until(time, now);
                let found = self.find(key, now).map(|item| item.until = until);
                found.map_or_else(known, |()| "TOUCHED\r\n".into())
            }
            (b"flush_all", _) => {
                (self.bytes, self.version) = (0, self.version + 1);
                self.items.clear();
                self.order.clear();
                "OK\r\n".into()
            }
            (b"version", _) => concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\n").into(),
            (b"verbosity", _) => "OK\r\n".into(),
            (b"stats", 0) => self.stats(),
            (b"delete" | b"incr" | b"decr" | b"touch", _) => BAD.into(),
            _ => ERROR.into(),
        }
    }

    fn stats(&self) -> String {
        let mut text = String::new();
        let stats = [
            ("curr_items", self.items.len() as u64),
            ("bytes", self.bytes as u64),
            ("limit_maxbytes", self.most as u64),
            ("get_hits", self.hits.0),
            ("get_misses", self.hits.1),
            ("evictions", self.evictions),
        ];
        for (name, value) in stats {
            let _ = write!(text, "STAT {name} {value}\r\n");
        }
        text + "END\r\n"
    }

    fn count(&mut self, key: &[u8], by: &[u8], up: bool, now: Nanos) -> String {
        let Some(by) = number::<u64>(Some(by)) else {
            return "CLIENT_ERROR invalid numeric delta argument\r\n".into();
        };
        let Some(item) = self.find(key, now) else { return "NOT_FOUND\r\n".into() };
        let (flags, until) = (item.flags, item.until);
        let Some(value) = number::<u64>(Some(&item.value)) else {
            return "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".into();
        };
        let value = if up { value.wrapping_add(by) } else { value.saturating_sub(by) };
        self.put(key.into(), value.to_string().into(), flags, until);
        format!("{value}\r\n")
    }

    /// Parses a command that is followed by a value.
    fn store<'l>(
        &self,
        how: How,
        mut words: impl Iterator<Item = &'l [u8]>,
        now: Nanos,
    ) -> Result<Store, &'static str> {
        let key = words.next().ok_or(ERROR)?;
        let flags = number(words.next()).ok_or(BAD)?;
        let time = number(words.next()).ok_or(BAD)?;
        let len: usize = number(words.next()).ok_or(BAD)?;
        let how = match how {
            How::Cas(_) => How::Cas(number(words.next()).ok_or(BAD)?),
            how => how,
        };
        let quiet = words.next() == Some(b"noreply");
        let refused = (len > MAX_VALUE).then_some(TOO_LARGE);
        let refused = if key.len() > MAX_KEY { Some(BAD) } else { refused };
        // A refused value is read all the same. Otherwise its bytes would be taken for commands.
        let (until, len) = (self.until(time, now), len.saturating_add(2));
        Ok(Store { how, key: key.into(), flags, until, len, value: Vec::new(), quiet, refused })
    }

    /// Takes bytes of a value; returns their number.
    fn take_value(&mut self, session: &mut Session, data: &[u8], io: &mut Io<'_>) -> usize {
        let Some(store) = &mut session.store else { return 0 };
        let taken = store.len.min(data.len());
        store.len -= taken;
        if store.refused.is_none() {
            store.value.extend_from_slice(&data[..taken]);
        }
        if store.len == 0
            && let Some(store) = session.store.take()
        {
            let quiet = store.quiet;
            let answer = self.finish_store(store, io.now());
            if !quiet {
                io.send(Bytes::from_static(answer.as_bytes()));
            }
        }
        taken
    }

    fn finish_store(&mut self, store: Store, now: Nanos) -> &'static str {
        let Store { how, key, mut flags, mut until, mut value, refused, .. } = store;
        if let Some(answer) = refused {
            // The old value is outdated, so it must not stay.
            self.remove(&key);
            return answer;
        }
        if !value.ends_with(b"\r\n") {
            return BAD_CHUNK;
        }
        value.truncate(value.len() - 2);
        let mut value = Bytes::from(value);
        let old = self.find(&key, now).cloned();
        match (how, old) {
            (How::Set, _) | (How::Add, None) | (How::Replace, Some(_)) => {}
            (How::Cas(_), None) => return "NOT_FOUND\r\n",
            (How::Cas(version), Some(old)) if old.version == version => {}
            (How::Cas(_), Some(_)) => return "EXISTS\r\n",
            (How::Append | How::Prepend, Some(old)) => {
                if old.value.len() + value.len() > MAX_VALUE {
                    return TOO_LARGE;
                }
                (flags, until) = (old.flags, old.until);
                let parts = [&old.value[..], &value[..]];
                let [first, second] = if how == How::Append { parts } else { [parts[1], parts[0]] };
                value = [first, second].concat().into();
            }
            _ => return "NOT_STORED\r\n",
        }
        if OVERHEAD + key.len() + value.len() > self.most {
            return "SERVER_ERROR out of memory storing object\r\n";
        }
        self.put(key, value, flags, until);
        "STORED\r\n"
    }
}

impl App for Kv {
    type Conn = Session;

    fn accepted(&mut self, _: &mut Io<'_>) -> Session {
        Session::default()
    }

    fn data(&mut self, session: &mut Session, io: &mut Io<'_>, data: &[u8]) -> usize {
        let mut at = 0;
        while at < data.len() && !session.done && io.queued() < MAX_QUEUED {
            let rest = &data[at..];
            if session.store.is_some() {
                at += self.take_value(session, rest, io);
                continue;
            }
            let Some(end) = rest.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
                if rest.len() >= MAX_LINE {
                    io.send(LONG.into());
                    session.done = true;
                    io.finish();
                }
                break;
            };
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            self.command(session, line, io);
            at += end + 1;
        }
        if session.done { data.len() } else { at }
    }
}
