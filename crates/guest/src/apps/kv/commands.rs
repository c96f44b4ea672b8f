//! Commands that change items, or ask about the cache.

use tcp::Nanos;

use super::items::New;
use super::{
    BAD, BAD_DELTA, BAD_TIME, ERROR, How, Kv, MAX_KEY, MAX_VALUE, NO_NUMBER, Out, Reply, Session,
    Store, TOO_LARGE, Write, number,
};

const DELETE_USAGE: &str =
    "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const NOT_FOUND: &str = "NOT_FOUND\r\n";
/// The version of memcached whose protocol this is. Clients refuse a major number of 0.
pub(super) const VERSION: &str = concat!("1.6.18-toklat-", env!("CARGO_PKG_VERSION"));

impl Kv {
    /// Answers a command.
    pub(super) fn command<'l>(
        &mut self,
        session: &mut Session,
        name: &[u8],
        words: impl Iterator<Item = &'l [u8]> + Clone,
        out: &mut Out<'_, '_>,
    ) {
        let how = match name {
            b"get" | b"gets" | b"gat" | b"gats" => return self.read(name, words, out),
            b"set" | b"cas" => How::Set,
            b"add" => How::Add,
            b"replace" => How::Replace,
            b"append" => How::Append,
            b"prepend" => How::Prepend,
            b"mg" | b"ms" | b"md" | b"ma" | b"mn" | b"me" => {
                return self.meta(session, name, words, out);
            }
            b"quit" => {
                session.done = true;
                return out.finish();
            }
            _ => {
                let words: Vec<&[u8]> = words.take(8).collect();
                let answer = self.simple(name, &words, out.now());
                let quiet = words.last() == Some(&&b"noreply"[..]) && answer != ERROR;
                return out.line(if quiet { "" } else { &answer });
            }
        };
        let words: Vec<&[u8]> = words.take(8).collect();
        match self.store(how, name == b"cas", &words, out.now()) {
            Ok(store) => session.store = Some(store),
            Err(answer) => out.line(answer),
        }
    }

    /// Carries out a command that is answered by one line.
    fn simple(&mut self, name: &[u8], words: &[&[u8]], now: Nanos) -> String {
        let key = words.first().copied().unwrap_or_default();
        if matches!(name, b"delete" | b"incr" | b"decr" | b"touch") && key.len() > MAX_KEY {
            return BAD.into();
        }
        match (name, words) {
            (b"delete", [_] | [_, b"0" | b"noreply"] | [_, b"0", b"noreply"]) => {
                let found = self.find(key, now).is_some() && self.items.remove(key);
                self.counts.deleted(found);
                if found { "DELETED\r\n".into() } else { NOT_FOUND.into() }
            }
            (b"delete", [_, _, ..]) => DELETE_USAGE.into(),
            (b"incr" | b"decr", [_, by, ..]) => self.count(key, by, name == b"incr", now),
            (b"touch", [_, time, ..]) => {
                let Some(time) = number(Some(time)) else { return BAD_TIME.into() };
                let until = self.until(time, now);
                let found = self.find(key, now).map(|item| item.until = until).is_some();
                self.counts.touched(true, found);
                if found { "TOUCHED\r\n".into() } else { NOT_FOUND.into() }
            }
            (b"flush_all", [] | [b"noreply"]) => self.flush_all(0, now),
            (b"flush_all", [time, ..]) => match number(Some(time)) {
                Some(time) => self.flush_all(time, now),
                None => BAD_TIME.into(),
            },
            (b"version", _) => format!("VERSION {VERSION}\r\n"),
            (b"verbosity", [_, ..]) => "OK\r\n".into(),
            (b"stats", _) => self.stats(key, now),
            _ => ERROR.into(),
        }
    }

    /// Removes all that is there now, or at a later time.
    fn flush_all(&mut self, delay: i64, now: Nanos) -> String {
        self.counts.flushed();
        let at = if delay > 0 { self.until(delay, now) } else { 0 };
        self.flush = Some(at);
        self.flush_if_due(now);
        "OK\r\n".into()
    }

    fn count(&mut self, key: &[u8], by: &[u8], up: bool, now: Nanos) -> String {
        let Some(by) = number::<u64>(Some(by)) else { return BAD_DELTA.into() };
        let counted = self.change_number(key, by, up, now);
        self.counts.counted(up, counted.is_ok());
        counted.map_or_else(str::to_owned, |value| format!("{value}\r\n"))
    }

    /// Adds to the number in an item, or subtracts from it; returns the new one.
    pub(super) fn change_number(
        &mut self,
        key: &[u8],
        by: u64,
        up: bool,
        now: Nanos,
    ) -> Result<u64, &'static str> {
        let Some(item) = self.find(key, now) else { return Err(NOT_FOUND) };
        let (flags, until, old) = (item.flags, item.until, item.value.clone());
        let (stale, won) = (item.stale, item.won);
        let value = number::<u64>(Some(old.trim_ascii_end())).ok_or(NO_NUMBER)?;
        let value = if up { value.wrapping_add(by) } else { value.saturating_sub(by) };
        // A shorter number is padded to the length of the one before, as memcached does.
        let text = format!("{value:<width$}", width = old.len());
        drop(old);
        let new = New { value: text.into(), flags, until, stale, won };
        let seconds = self.seconds(now);
        self.items.put(key, new, seconds).ok_or(super::NO_MEMORY)?;
        Ok(value)
    }

    /// Reads a command that is followed by a value: key, flags, expiry, length, for `cas` the
    /// version, and `noreply`.
    fn store(
        &self,
        how: How,
        is_cas: bool,
        words: &[&[u8]],
        now: Nanos,
    ) -> Result<Store, &'static str> {
        let needed = if is_cas { 5 } else { 4 };
        let [key, flags, time, len, ..] = *words else { return Err(ERROR) };
        if !(needed..=needed + 1).contains(&words.len()) {
            return Err(ERROR);
        }
        let quiet = words.get(needed) == Some(&&b"noreply"[..]);
        let bad = if quiet { "" } else { BAD };
        let len: usize = number(Some(len)).ok_or(bad)?;
        let (flags, time) = (number::<u32>(Some(flags)), number::<i64>(Some(time)));
        let version = if is_cas { Some(number::<u64>(words.get(4).copied())) } else { None };
        let is_bad = key.len() > MAX_KEY || flags.is_none() || time.is_none();
        let is_bad = is_bad || version == Some(None);
        let write = Write {
            how,
            key: key.into(),
            flags: flags.unwrap_or(0),
            until: self.until(time.unwrap_or(0), now),
            version: version.flatten(),
            stale: false,
        };
        Ok(Store::new(write, Reply::Line { quiet }, len, is_bad.then_some(BAD)))
    }
}

impl Store {
    /// A value of this length is to come. A value that is refused is read all the same: otherwise
    /// its bytes would be taken for commands.
    pub(super) fn new(
        write: Write,
        reply: Reply,
        len: usize,
        refused: Option<&'static str>,
    ) -> Self {
        let is_large = len > MAX_VALUE;
        let refused = if is_large { refused.or(Some(TOO_LARGE)) } else { refused };
        Self { write, reply, left: len.saturating_add(2), number: 0, refused }
    }
}
