//! Commands that ask for values: `get`, `gets`, `gat`, `gats`.
//!
//! Clients ask for a thousand keys in one line. A line that is longer than others may be is read
//! key by key, so it needs no memory.

use tcp::{Bytes, Nanos};

use super::{BAD, BAD_TIME, ERROR, Kv, MAX_KEY, MAX_QUEUED, Out, Session, number};

/// A line that asks for keys.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The answers have the items' versions.
    versions: bool,
    /// The items' new expiry.
    until: Option<u64>,
    /// The rest of the line is skipped, because a key is too long.
    bad: bool,
}

impl Kv {
    /// Answers `get` and its kin.
    pub(super) fn read<'l>(
        &mut self,
        name: &[u8],
        mut words: impl Iterator<Item = &'l [u8]> + Clone,
        out: &mut Out<'_, '_>,
    ) {
        let keys = match self.keys(name, &mut words, out.now()) {
            Ok(keys) => keys,
            Err(answer) => return out.line(answer),
        };
        if keys.until.is_none() && words.clone().next().is_none() {
            return out.line(ERROR);
        }
        if words.clone().any(|key| key.len() > MAX_KEY) {
            return out.line(BAD);
        }
        words.for_each(|key| self.show(key, keys, out));
        out.line("END\r\n");
    }

    fn keys<'l>(
        &self,
        name: &[u8],
        words: &mut impl Iterator<Item = &'l [u8]>,
        now: Nanos,
    ) -> Result<Keys, &'static str> {
        let mut keys = Keys { versions: name.ends_with(b"s"), until: None, bad: false };
        if name.starts_with(b"gat") {
            let time = number(Some(words.next().ok_or(ERROR)?)).ok_or(BAD_TIME)?;
            keys.until = Some(self.until(time, now));
        }
        Ok(keys)
    }

    /// Sends an item, if there is one.
    fn show(&mut self, key: &[u8], keys: Keys, out: &mut Out<'_, '_>) {
        let seconds = self.seconds(out.now());
        let found = self.items.find(key, seconds).map(|item| {
            (item.fetched, item.last) = (true, seconds);
            item.until = keys.until.unwrap_or(item.until);
            (item.value.clone(), item.flags, item.version)
        });
        self.counts.touched(keys.until.is_some(), found.is_some());
        let Some((value, flags, version)) = found else {
            self.hits.1 += 1;
            return;
        };
        self.hits.0 += 1;
        show(key, &value, flags, keys.versions.then_some(version), out);
    }

    /// Begins a line that is longer than others may be, if it asks for keys. Returns how many bytes
    /// of it were taken.
    pub(super) fn begin_keys(
        &mut self,
        session: &mut Session,
        line: &[u8],
        out: &mut Out<'_, '_>,
    ) -> Option<usize> {
        let is_name = |name: &&[u8]| [&b"get"[..], b"gets", b"gat", b"gats"].contains(name);
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let name = words.next().filter(is_name)?;
        self.commands += 1;
        self.flush_if_due(out.now());
        let mut first = None;
        let keys = self.keys(name, &mut words.inspect(|word| first = Some(*word)), out.now());
        let end = first.unwrap_or(name).as_ptr_range().end;
        session.keys = Some(keys.unwrap_or_else(|answer| {
            out.line(answer);
            Keys { versions: false, until: None, bad: true }
        }));
        Some(end as usize - line.as_ptr() as usize)
    }

    /// Takes whole keys of a long line. Returns how many bytes were taken; 0 if a key is not whole.
    pub(super) fn take_keys(
        &mut self,
        session: &mut Session,
        line: &[u8],
        out: &mut Out<'_, '_>,
    ) -> usize {
        let Some(keys) = &mut session.keys else { return 0 };
        let mut at = 0;
        while out.queued() < MAX_QUEUED {
            at += line[at..].iter().take_while(|byte| **byte == b' ').count();
            let rest = &line[at..];
            let end = rest.iter().position(|byte| matches!(byte, b' ' | b'\n'));
            let key = &rest[..end.unwrap_or(rest.len())];
            let key = key.strip_suffix(b"\r").unwrap_or(key);
            if key.len() > MAX_KEY && !keys.bad {
                keys.bad = true;
                out.line(BAD);
            }
            let Some(end) = end else {
                // The rest of a key that is skipped need not be kept.
                return if keys.bad { line.len() } else { at };
            };
            if !key.is_empty() && !keys.bad {
                self.show(key, *keys, out);
            }
            at += end;
            if rest[end] == b'\n' {
                out.line(if keys.bad { "" } else { "END\r\n" });
                session.keys = None;
                return at + 1;
            }
        }
        at
    }
}

fn show(key: &[u8], value: &Bytes, flags: u32, version: Option<u64>, out: &mut Out<'_, '_>) {
    out.text(b"VALUE ");
    out.text(key);
    let version = version.map_or(String::new(), |version| format!(" {version}"));
    out.line(&format!(" {flags} {}{version}\r\n", value.len()));
    out.value(value);
}
