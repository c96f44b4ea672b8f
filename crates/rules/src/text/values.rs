//! The values in rules: hosts, ports, rates, flags, types.

use frame::tcp_flags;

use super::{Problem, TextError, Word, Words};
use crate::rule::{Hosts, Prefix, Rate};

/// The most addresses, ports or types in one list.
const LIST: usize = 256;
/// The names of ports: those that users write most.
const SERVICES: &[(&str, u16)] = &[
    ("ftp", 21),
    ("ssh", 22),
    ("smtp", 25),
    ("dns", 53),
    ("domain", 53),
    ("http", 80),
    ("ntp", 123),
    ("imap", 143),
    ("snmp", 161),
    ("ldap", 389),
    ("https", 443),
];
const FLAGS: &[(&str, u8)] = &[
    ("fin", tcp_flags::FIN),
    ("syn", tcp_flags::SYN),
    ("rst", tcp_flags::RST),
    ("psh", tcp_flags::PSH),
    ("ack", tcp_flags::ACK),
    ("urg", 0x20),
];
const ICMP: &[(&str, u8)] = &[
    ("echo-reply", 0),
    ("unreachable", 3),
    ("redirect", 5),
    ("echo-request", 8),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
];

/// The parts of a list between commas.
fn parts<'w>(
    words: &Words<'_>,
    word: &'w Word<'_>,
) -> Result<impl Iterator<Item = Word<'w>>, TextError> {
    if word.text.split(',').count() > LIST {
        return Err(words.error(word, Problem::Invalid("a list has at most 256 parts")));
    }
    let mut column = word.column;
    Ok(word.text.split(',').map(move |text| {
        let part = Word { text, column, quoted: false };
        column += text.chars().count() + 1;
        part
    }))
}

/// `any`, `me`, or a list of prefixes, `table:NAME` and `group:NAME`.
pub(crate) fn hosts(words: &Words<'_>, word: &Word<'_>) -> Result<Hosts, TextError> {
    let mut hosts = Hosts::default();
    if word.text == "any" {
        return Ok(hosts);
    }
    for part in parts(words, word)? {
        let text = part.text;
        if text == "me" {
            hosts.me = true;
        } else if let Some(name) = text.strip_prefix("table:") {
            hosts.tables.push(self::name(words, &part, name)?);
        } else if let Some(name) = text.strip_prefix("group:") {
            hosts.groups.push(self::name(words, &part, name)?);
        } else if let Ok(prefix) = text.parse::<Prefix>() {
            hosts.prefixes.push(prefix);
        } else {
            let what = "an address, `any`, `me`, `table:NAME` or `group:NAME`";
            return Err(words.unknown(&part, what, &["any", "me", "table:", "group:"]));
        }
    }
    Ok(hosts)
}

fn name(words: &Words<'_>, part: &Word<'_>, name: &str) -> Result<String, TextError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
        let why = "a name has 1 to 63 letters, digits, `_`, `-` and `.`";
        return Err(words.error(part, Problem::Invalid(why)));
    }
    Ok(name.into())
}

/// A whole number from `least` to `most`, decimal or with `0x`.
pub(crate) fn number(
    words: &Words<'_>,
    word: &Word<'_>,
    (least, most): (u64, u64),
    what: &'static str,
) -> Result<u64, TextError> {
    let value = match word.text.strip_prefix("0x") {
        Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u64::from_str_radix(hex, 16).ok()
        }
        Some(_) => None,
        None if word.text.bytes().all(|b| b.is_ascii_digit()) => word.text.parse().ok(),
        None => None,
    };
    match value {
        Some(value) if (least..=most).contains(&value) => Ok(value),
        Some(_) => Err(words.error(word, Problem::Invalid("the number is out of range"))),
        None => Err(words.error(word, Problem::Expected(what))),
    }
}

/// Numbers and ranges, `80,1000-2000`.
pub(crate) fn ranges(
    words: &Words<'_>,
    word: &Word<'_>,
    most: u64,
    what: &'static str,
    named: impl Fn(&str) -> Option<u64>,
) -> Result<Vec<(u64, u64)>, TextError> {
    let mut list = Vec::new();
    for part in parts(words, word)? {
        let one = |text: &str| {
            let word = Word { text, column: part.column, quoted: false };
            named(text).map_or_else(|| number(words, &word, (0, most), what), Ok)
        };
        let range = match part.text.split_once('-').filter(|_| named(part.text).is_none()) {
            Some((first, last)) => (one(first)?, one(last)?),
            None => one(part.text).map(|value| (value, value))?,
        };
        if range.0 > range.1 {
            return Err(words.error(&part, Problem::Invalid("the range ends before it begins")));
        }
        list.push(range);
    }
    Ok(list)
}

/// Ports by number or name.
pub(crate) fn port_ranges(
    words: &Words<'_>,
    word: &Word<'_>,
) -> Result<Vec<(u16, u16)>, TextError> {
    let named = |text: &str| {
        let found = SERVICES.iter().find(|(name, _)| *name == text);
        found.map(|(_, port)| u64::from(*port))
    };
    let ranges = ranges(words, word, 65_535, "a port or a range of ports", named)?;
    Ok(ranges.iter().map(|(first, last)| (*first as u16, *last as u16)).collect())
}

/// TCP flags, `syn,!ack`: those that are looked at, and those of them that are set.
pub(crate) fn flags(words: &Words<'_>, word: &Word<'_>) -> Result<(u8, u8), TextError> {
    let names = FLAGS.map_names();
    let (mut mask, mut set) = (0, 0);
    for part in parts(words, word)? {
        let bare = part.text.strip_prefix('!').unwrap_or(part.text);
        let Some((_, bit)) = FLAGS.iter().find(|(name, _)| *name == bare) else {
            let bare = Word { text: bare, ..part };
            return Err(words.unknown(&bare, "a flag of TCP", &names));
        };
        if mask & bit != 0 {
            return Err(words.error(&part, Problem::Twice));
        }
        mask |= bit;
        set |= if bare == part.text { *bit } else { 0 };
    }
    Ok((mask, set))
}

/// Types of ICMP messages by number or, those of ICMP, by name.
pub(crate) fn icmp_types(words: &Words<'_>, word: &Word<'_>) -> Result<Vec<u8>, TextError> {
    let names = ICMP.map_names();
    let mut types = Vec::new();
    for part in parts(words, word)? {
        let named = ICMP.iter().find(|(name, _)| *name == part.text).map(|(_, kind)| *kind);
        let kind = match named {
            Some(kind) => kind,
            None if part.text.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                return Err(words.unknown(&part, "a type of ICMP message", &names));
            }
            None => number(words, &part, (0, 255), "a type of ICMP message")? as u8,
        };
        types.push(kind);
    }
    Ok(types)
}

/// A rate: `100pps`, `10Mb/s`.
pub(crate) fn rate(words: &Words<'_>, word: &Word<'_>) -> Result<Rate, TextError> {
    const UNITS: &[(&str, u64)] =
        &[("Gb/s", 1_000_000_000), ("Mb/s", 1_000_000), ("kb/s", 1000), ("b/s", 1)];
    const FRAMES: &[(&str, u64)] = &[("Mpps", 1_000_000), ("kpps", 1000), ("pps", 1)];
    let value = |units: &[(&str, u64)]| {
        units.iter().find_map(|(unit, factor)| {
            let digits = word.text.strip_suffix(unit)?;
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let value = digits.parse::<u64>().ok().filter(|_| plain)?.checked_mul(*factor)?;
            (1..=1_000_000_000_000).contains(&value).then_some(value)
        })
    };
    let rate = value(FRAMES).map(Rate::Frames).or_else(|| value(UNITS).map(Rate::Bits));
    rate.ok_or_else(|| words.error(word, Problem::Expected("a rate such as `100pps` or `10Mb/s`")))
}

/// A share, `0.25` or `25%`, out of 2^32. All of it is no share: the rule needs none.
pub(crate) fn share(words: &Words<'_>, word: &Word<'_>) -> Result<u32, TextError> {
    let what = "a share such as `0.25` or `25%`";
    let (text, whole) = match word.text.strip_suffix('%') {
        Some(text) => (text, 100.0),
        None => (word.text, 1.0),
    };
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && !text.is_empty();
    let share = text.parse::<f64>().ok().filter(|_| plain).map(|value| value / whole);
    match share {
        Some(share) if share > 0.0 && share < 1.0 => Ok((share * 4_294_967_296.0) as u32),
        Some(_) => {
            Err(words.error(word, Problem::Invalid("a share is more than 0 and less than 1")))
        }
        None => Err(words.error(word, Problem::Expected(what))),
    }
}

/// The names in a table of values.
trait Names {
    fn map_names(&self) -> Vec<&'static str>;
}

impl Names for [(&'static str, u8)] {
    fn map_names(&self) -> Vec<&'static str> {
        self.iter().map(|(name, _)| *name).collect()
    }
}
