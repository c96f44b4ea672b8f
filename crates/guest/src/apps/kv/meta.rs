//! Meta commands: `mg`, `ms`, `md`, `ma`, `mn`, `me`. Flags say what they do and answer.

use tcp::{Bytes, Nanos};

use super::items::{Item, New};
use super::{
    BAD, BAD_DELTA, ERROR, How, Kv, MAX_KEY, Out, Reply, Session, Store, Stored, Write, number,
};

const BAD_FLAG: &str = "CLIENT_ERROR invalid flag\r\n";
const TWICE: &str = "CLIENT_ERROR duplicate flag\r\n";
const BAD_KEY: &str = "CLIENT_ERROR error decoding key\r\n";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";
/// Flags that are known. Those that a command does not use are ignored.
const FLAGS: &[u8] = b"NTRDJCIFMbqkOvtcfhls";

/// The flags of a command: what it asks for, in the order of the answer.
#[derive(Debug, Default)]
pub struct Asked {
    flags: Vec<(u8, Box<[u8]>)>,
}

/// A key, as it is stored.
type Key = Box<[u8]>;

impl Asked {
    fn read<'l>(words: impl Iterator<Item = &'l [u8]>) -> Result<Self, &'static str> {
        let mut asked = Self::default();
        for word in words {
            let Some((flag, token)) = word.split_first() else { continue };
            if !FLAGS.contains(flag) {
                return Err(BAD_FLAG);
            }
            if asked.has(*flag) {
                return Err(TWICE);
            }
            asked.flags.push((*flag, token.into()));
        }
        Ok(asked)
    }

    fn has(&self, flag: u8) -> bool {
        self.flags.iter().any(|(other, _)| *other == flag)
    }

    fn is_quiet(&self) -> bool {
        self.has(b'q')
    }

    /// The number after a flag, if the flag is there.
    fn number<T: std::str::FromStr>(&self, flag: u8) -> Result<Option<T>, &'static str> {
        let found = self.flags.iter().find(|(other, _)| *other == flag);
        found.map(|(_, token)| number(Some(token)).ok_or(BAD_TOKEN)).transpose()
    }

    /// The letter after the flag `M`.
    fn mode(&self) -> u8 {
        let found = self.flags.iter().find(|(flag, _)| *flag == b'M');
        found.and_then(|(_, token)| token.first().copied()).unwrap_or(0)
    }

    /// The key of a command: as it is written, or from base64.
    fn key(&self, word: &[u8]) -> Result<Key, &'static str> {
        let key = match self.has(b'b') {
            true => decode(word).ok_or(BAD_KEY)?,
            false => word.to_vec(),
        };
        if key.is_empty() || key.len() > MAX_KEY { Err(BAD) } else { Ok(key.into()) }
    }

    /// Writes what the answer to a command says of an item, or of a key without one.
    fn answer(&self, code: &str, key: &[u8], item: Option<(&Item, u64)>) -> String {
        let mut text = code.to_owned();
        for (flag, token) in &self.flags {
            let field = match (flag, item) {
                (b'O', _) => String::from_utf8_lossy(token).into_owned(),
                (b'k', _) if self.has(b'b') => encode(key) + " b",
                (b'k', _) => String::from_utf8_lossy(key).into_owned(),
                (b'c', Some((item, _))) => item.version.to_string(),
                (b'f', Some((item, _))) => item.flags.to_string(),
                (b's', Some((item, _))) => item.value.len().to_string(),
                (b'h', Some((item, _))) => u8::from(item.fetched).to_string(),
                (b'l', Some((item, now))) => now.saturating_sub(item.last).to_string(),
                (b't', Some((Item { until: 0, .. }, _))) => "-1".into(),
                (b't', Some((item, now))) => item.until.saturating_sub(now).to_string(),
                _ => continue,
            };
            text.push(' ');
            text.push(char::from(*flag));
            text.push_str(&field);
        }
        text
    }
}

impl Kv {
    pub(super) fn meta<'l>(
        &mut self,
        session: &mut Session,
        name: &[u8],
        mut words: impl Iterator<Item = &'l [u8]>,
        out: &mut Out<'_, '_>,
    ) {
        self.counts.meta();
        if name == b"mn" {
            return out.line("MN\r\n");
        }
        let Some(word) = words.next() else { return out.line(ERROR) };
        let done = match name {
            b"ms" => self.meta_set(word, words, out.now()).map(|store| session.store = Some(store)),
            _ => Asked::read(words).and_then(|asked| {
                let key = asked.key(word)?;
                match name {
                    b"mg" => self.meta_get(&asked, &key, out),
                    b"md" => self.meta_delete(&asked, &key, out),
                    b"ma" => self.meta_count(&asked, &key, out),
                    _ => {
                        self.meta_debug(&key, out);
                        Ok(())
                    }
                }
            }),
        };
        if let Err(answer) = done {
            out.line(answer);
        }
    }

    fn meta_get(
        &mut self,
        asked: &Asked,
        key: &[u8],
        out: &mut Out<'_, '_>,
    ) -> Result<(), &'static str> {
        let (now, seconds) = (out.now(), self.seconds(out.now()));
        let times = [b'N', b'T', b'R'].map(|flag| asked.number::<i64>(flag));
        let [vivify, touch, renew] = times;
        let (vivify, touch, renew) = (vivify?, touch?, renew?);
        let [until, soon] = [touch, renew].map(|time| time.map(|time| self.until(time, now)));
        let was_there = self.find(key, now).is_some();
        self.counts.touched(touch.is_some(), was_there);
        if let (false, Some(time)) = (was_there, vivify) {
            let until = self.until(time, now);
            let new = New { value: Bytes::new(), flags: 0, until, stale: false, won: false };
            self.items.put(key, new, seconds).ok_or(super::NO_MEMORY)?;
        }
        let Some(item) = self.items.find(key, seconds) else {
            self.hits.1 += 1;
            if !asked.is_quiet() {
                out.line(&(asked.answer("EN", key, None) + "\r\n"));
            }
            return Ok(());
        };
        item.until = until.unwrap_or(item.until);
        let ends_soon = soon.is_some_and(|soon| item.until != 0 && item.until < soon);
        let wins = !item.won && (!was_there || item.stale || ends_soon);
        let code = if asked.has(b'v') { format!("VA {}", item.value.len()) } else { "HD".into() };
        let mut text = asked.answer(&code, key, Some((item, seconds)));
        let marks = [(item.won, " Z"), (item.stale, " X"), (wins, " W")];
        marks.iter().filter(|(is_set, _)| *is_set).for_each(|(_, mark)| text.push_str(mark));
        item.won |= wins;
        (item.fetched, item.last) = (true, seconds);
        out.line(&(text + "\r\n"));
        if asked.has(b'v') {
            out.value(&item.value.clone());
        }
        match was_there {
            true => self.hits.0 += 1,
            false => self.hits.1 += 1,
        }
        Ok(())
    }

    /// Reads the rest of `ms`: the length, then flags. If the length can be read, so is the value.
    fn meta_set<'l>(
        &self,
        word: &[u8],
        mut words: impl Iterator<Item = &'l [u8]>,
        now: Nanos,
    ) -> Result<Store, &'static str> {
        let len: usize = number(words.next()).ok_or(BAD)?;
        let read =
            Asked::read(words).and_then(|asked| Ok((self.meta_write(&asked, word, now)?, asked)));
        Ok(match read {
            Ok((write, asked)) => Store::new(write, Reply::Meta(asked), len, None),
            Err(answer) => {
                let (how, key) = (How::Set, Key::default());
                let write = Write { how, key, flags: 0, until: 0, version: None, stale: false };
                Store::new(write, Reply::Line { quiet: false }, len, Some(answer))
            }
        })
    }

    fn meta_write(&self, asked: &Asked, word: &[u8], now: Nanos) -> Result<Write, &'static str> {
        let how = match asked.mode() {
            0 | b'S' | b's' => How::Set,
            b'E' | b'e' => How::Add,
            b'A' | b'a' => How::Append,
            b'P' | b'p' => How::Prepend,
            b'R' | b'r' => How::Replace,
            _ => return Err("CLIENT_ERROR invalid mode for ms M token\r\n"),
        };
        Ok(Write {
            how,
            key: asked.key(word)?,
            flags: asked.number(b'F')?.unwrap_or(0),
            until: self.until(asked.number(b'T')?.unwrap_or(0), now),
            version: asked.number(b'C')?,
            stale: asked.has(b'I'),
        })
    }

    /// Answers `ms`, whose value was read.
    pub(super) fn answer_meta_store(
        &mut self,
        asked: &Asked,
        key: &[u8],
        stored: Stored,
        out: &mut Out<'_, '_>,
    ) {
        let code = match stored {
            Stored::Yes if asked.is_quiet() => return,
            Stored::Yes => "HD",
            Stored::Exists => "EX",
            Stored::NotFound => "NF",
            _ => "NS",
        };
        let seconds = self.seconds(out.now());
        let item = self.items.find(key, seconds).filter(|_| stored == Stored::Yes);
        // The others are of no use to one who knows the value.
        let told = asked.flags.iter().filter(|(flag, _)| b"Okbc".contains(flag)).cloned();
        let told = Asked { flags: told.collect() };
        out.line(&(told.answer(code, key, item.map(|item| (&*item, seconds))) + "\r\n"));
    }

    fn meta_delete(
        &mut self,
        asked: &Asked,
        key: &[u8],
        out: &mut Out<'_, '_>,
    ) -> Result<(), &'static str> {
        let (now, version) = (out.now(), asked.number::<u64>(b'C')?);
        let until = asked.number(b'T')?.map(|time| self.until(time, now));
        let next = self.items.next_version();
        let found = self.find(key, now);
        let code = match found {
            None => "NF",
            Some(item) if version.is_some_and(|version| version != item.version) => "EX",
            Some(item) if asked.has(b'I') => {
                (item.stale, item.won, item.version) = (true, false, next);
                item.until = until.unwrap_or(item.until);
                "HD"
            }
            Some(_) => {
                self.items.remove(key);
                "HD"
            }
        };
        self.counts.deleted(code == "HD");
        // The answers that a quiet client wants are the unexpected ones.
        if !(asked.is_quiet() && code == "HD") {
            out.line(&(asked.answer(code, key, None) + "\r\n"));
        }
        Ok(())
    }

    fn meta_count(
        &mut self,
        asked: &Asked,
        key: &[u8],
        out: &mut Out<'_, '_>,
    ) -> Result<(), &'static str> {
        let (now, seconds) = (out.now(), self.seconds(out.now()));
        let up = match asked.mode() {
            0 | b'I' | b'i' | b'+' => true,
            b'D' | b'd' | b'-' => false,
            _ => return Err("CLIENT_ERROR invalid mode for ma M token\r\n"),
        };
        let by = asked.number(b'D').map_err(|_| BAD_DELTA)?.unwrap_or(1);
        let version = asked.number::<u64>(b'C')?;
        let [until, vivify] = [asked.number(b'T')?, asked.number(b'N')?];
        let [until, vivify] = [until, vivify].map(|time| time.map(|time| self.until(time, now)));
        let first: u64 = asked.number(b'J')?.unwrap_or(0);
        let there = self.find(key, now).map(|item| item.version);
        self.counts.counted(up, there.is_some());
        let code = match (there, vivify) {
            (None, None) => "NF",
            (Some(there), _) if version.is_some_and(|version| version != there) => "EX",
            (None, Some(until)) => {
                let value = first.to_string().into();
                let new = New { value, flags: 0, until, stale: false, won: false };
                self.items.put(key, new, seconds).ok_or(super::NO_MEMORY)?;
                "HD"
            }
            (Some(_), _) => {
                self.change_number(key, by, up, now)?;
                "HD"
            }
        };
        self.tell_count(asked, (code, key, until), seconds, out);
        Ok(())
    }

    /// Answers `ma`, which gives the item a new expiry.
    fn tell_count(
        &mut self,
        asked: &Asked,
        (code, key, until): (&str, &[u8], Option<u64>),
        seconds: u64,
        out: &mut Out<'_, '_>,
    ) {
        let Some(item) = self.items.find(key, seconds).filter(|_| code == "HD") else {
            return out.line(&(asked.answer(code, key, None) + "\r\n"));
        };
        item.until = until.unwrap_or(item.until);
        // Memcached shows the number without the padding that it stores.
        let value = Bytes::copy_from_slice(item.value.trim_ascii_end());
        let code = if asked.has(b'v') { format!("VA {}", value.len()) } else { code.to_owned() };
        if !asked.is_quiet() {
            out.line(&(asked.answer(&code, key, Some((item, seconds))) + "\r\n"));
        }
        if asked.has(b'v') && !asked.is_quiet() {
            out.value(&value);
        }
    }

    /// What is known of an item, for people.
    fn meta_debug(&mut self, key: &[u8], out: &mut Out<'_, '_>) {
        let seconds = self.seconds(out.now());
        let Some(item) = self.items.find(key, seconds) else { return out.line("EN\r\n") };
        let ends = match item.until {
            0 => "-1".into(),
            until => until.saturating_sub(seconds).to_string(),
        };
        let (last, fetched) = (seconds.saturating_sub(item.last), item.fetched);
        out.line(&format!(
            "ME {} exp={ends} la={last} cas={} fetch={} cls=1 size={}\r\n",
            String::from_utf8_lossy(key),
            item.version,
            if fetched { "yes" } else { "no" },
            item.value.len()
        ));
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 (RFC 4648, 4).
fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (chunks, []) = text.as_chunks::<4>() else { return None };
    let mut bytes = Vec::new();
    for (i, chunk) in chunks.iter().enumerate() {
        let padding = chunk.iter().rev().take_while(|byte| **byte == b'=').count();
        if padding > 2 || padding > 0 && i + 1 != chunks.len() {
            return None;
        }
        let digits = &chunk[..4 - padding];
        let word = digits.iter().try_fold(0u32, |word, digit| {
            let value = DIGITS.iter().position(|other| other == digit)?;
            Some(word << 6 | value as u32)
        })?;
        let word = (word << (6 * padding)).to_be_bytes();
        bytes.extend_from_slice(&word[1..4 - padding]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_base64_are_read_and_written() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("\0\0?>", "AAA/Pg==")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        for wrong in ["Zg=", "Zg", "Z===", "Zg==Zg==", "Z*==", "===="] {
            assert_eq!(decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
