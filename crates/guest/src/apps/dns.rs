//! A DNS responder (RFC 1035): the addresses of some names, answered authoritatively over UDP and
//! TCP, with EDNS (RFC 6891).
//!
//! The zones are the last labels of the names: with `web.example`, names that end in `example` are
//! there or not, and others are refused.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use tcp::{Bytes, Nanos};

use crate::app::{App, Io};
use crate::nic::Nic;
use crate::stack::Stack;
use crate::udp::UdpId;

/// The port of name servers.
pub const PORT: u16 = 53;
/// Bytes of a header.
const HEADER: usize = 12;
/// Maximum length of a name (RFC 1035, 2.3.4).
const NAME: usize = 255;
/// Maximum length of an answer over UDP to a client without EDNS (RFC 1035, 4.2.1), and to others:
/// it fits a packet on any path.
const MOST: usize = 512;
const MOST_EDNS: usize = 1232;
/// Maximum length of a question over TCP.
const MAX_QUERY: usize = 4 << 10;
/// Limit of the queued answers in bytes. Above it, no further question is read.
const MAX_QUEUED: usize = 64 << 10;
/// Numbers of classes and types of records.
const IN: u16 = 1;
const A: u16 = 1;
const SOA: u16 = 6;
const AAAA: u16 = 28;
const OPT: u16 = 41;
const TRANSFERS: std::ops::RangeInclusive<u16> = 249..=254;
const ANY: u16 = 255;
/// Codes of answers. The last one is of EDNS, and has bits elsewhere.
const FORMAT_ERROR: u8 = 1;
const NO_NAME: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;
const REFUSED: u8 = 5;
const BAD_VERSION: u8 = 16;

/// Names and their addresses.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    names: HashMap<Vec<u8>, Vec<IpAddr>>,
    /// Names above others, which exist though they have no records (RFC 8020).
    above: HashSet<Vec<u8>>,
    ttl: u32,
}

/// What carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Udp,
    Tcp,
}

/// The question in a query.
struct Question<'q> {
    /// Name, type and class, in the query's own bytes.
    bytes: &'q [u8],
    /// The name in lower case: lengths and labels, without the root.
    name: Vec<u8>,
    kind: u16,
    class: u16,
}

/// What a client says by EDNS: the longest datagram that it takes, and its version.
#[derive(Clone, Copy, Debug)]
struct Edns {
    longest: u16,
    version: u8,
}

/// The places of the labels of a name, from the second on.
fn parents(name: &[u8]) -> impl Iterator<Item = usize> {
    let next = |at: usize| Some(at + 1 + usize::from(*name.get(at)?));
    std::iter::successors(next(0), move |at| next(*at)).take_while(|at| *at < name.len())
}

/// The zone of a name: its last label.
fn apex(name: &[u8]) -> usize {
    parents(name).last().unwrap_or(0)
}

impl Zone {
    /// Makes a zone without names. Resolvers may cache its answers for `ttl` seconds.
    #[must_use]
    pub fn new(ttl: u32) -> Self {
        Self { ttl, ..Self::default() }
    }

    /// Adds an address of a name, such as `web.example`. Returns false for an invalid name.
    pub fn add(&mut self, name: &str, address: IpAddr) -> bool {
        let mut wire = Vec::new();
        for label in name.trim_end_matches('.').split('.') {
            if !(1..=63).contains(&label.len()) {
                return false;
            }
            wire.push(label.len() as u8);
            wire.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
        if wire.len() >= NAME {
            return false;
        }
        self.above.extend(parents(&wire).map(|at| wire[at..].to_vec()));
        self.names.entry(wire).or_default().push(address);
        true
    }

    /// Answers a query in a datagram; `None` for a message that is not a query.
    #[must_use]
    pub fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.answer_over(Carrier::Udp, query)
    }

    /// Answers a query in a stream, without its length; `None` for a message that is not a query.
    #[must_use]
    pub fn answer_stream(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.answer_over(Carrier::Tcp, query)
    }

    fn answer_over(&self, carrier: Carrier, query: &[u8]) -> Option<Vec<u8>> {
        let header = query.first_chunk::<HEADER>()?;
        let opcode = header[2] >> 3 & 15;
        if header[2] & 0x80 != 0 {
            return None;
        }
        let recursion = header[2] & 1;
        let mut answer = vec![header[0], header[1], 0x80 | opcode << 3 | recursion, 0];
        answer.extend([0; 8]);
        if opcode != 0 {
            answer[3] = NOT_IMPLEMENTED;
            return Some(answer);
        }
        let Some((question, edns)) = read(header, &query[HEADER..]) else {
            answer[3] = FORMAT_ERROR;
            return Some(answer);
        };
        answer[5] = 1;
        answer.extend(question.bytes);
        let longest = match (carrier, edns) {
            (Carrier::Tcp, _) => usize::from(u16::MAX),
            (_, Some(edns)) => usize::from(edns.longest).clamp(MOST, MOST_EDNS),
            _ => MOST,
        };
        let room = longest - if edns.is_some() { OPTION } else { 0 };
        let mut code = 0;
        match edns {
            Some(Edns { version: 1.., .. }) => code = BAD_VERSION,
            _ => self.resolve(&mut answer, &question, room),
        }
        if edns.is_some() {
            answer[11] = 1;
            answer.push(0);
            answer.extend([OPT, MOST_EDNS as u16].into_iter().flat_map(u16::to_be_bytes));
            answer.extend([code >> 4, 0, 0, 0, 0, 0]);
        }
        Some(answer)
    }

    /// Answers a question that is understood. The answer gets at most this long.
    fn resolve(&self, answer: &mut Vec<u8>, question: &Question<'_>, longest: usize) {
        let Question { name, kind, class, .. } = question;
        let found = self.names.get(name);
        let zone = &name[apex(name)..];
        let is_ours = self.above.contains(zone) || self.names.contains_key(zone);
        if *class != IN || TRANSFERS.contains(kind) || !is_ours {
            answer[3] = REFUSED;
            return;
        }
        // Authoritative.
        answer[2] |= 4;
        let before = answer.len();
        if let Some(addresses) = found {
            self.add_addresses(answer, *kind, addresses, longest);
        }
        if matches!(*kind, SOA | ANY) && zone == name {
            self.add_authority(answer, question, longest);
            answer[7] += u8::from(answer.len() > before);
        } else if answer[7] == 0 && answer[2] & 2 == 0 {
            let exists = found.is_some() || self.above.contains(name);
            answer[3] = if exists { 0 } else { NO_NAME };
            // So that resolvers can cache that there is nothing (RFC 2308, 3).
            self.add_authority(answer, question, longest);
            answer[9] = u8::from(answer.len() > before);
        }
    }

    fn add_addresses(&self, answer: &mut Vec<u8>, kind: u16, addresses: &[IpAddr], longest: usize) {
        let mut count = 0u16;
        for address in addresses {
            let (of, bytes) = match address {
                IpAddr::V4(v4) => (A, v4.octets().to_vec()),
                IpAddr::V6(v6) => (AAAA, v6.octets().to_vec()),
            };
            if kind != of && kind != ANY {
                continue;
            }
            if answer.len() + 12 + bytes.len() > longest {
                // Truncated.
                answer[2] |= 2;
                break;
            }
            self.add_record(answer, HEADER, of, &bytes);
            count += 1;
        }
        answer[6..8].copy_from_slice(&count.to_be_bytes());
    }

    /// Adds a record whose name stands at `at` in the message.
    fn add_record(&self, answer: &mut Vec<u8>, at: usize, kind: u16, data: &[u8]) {
        answer.extend((0xc000 | at as u16).to_be_bytes());
        answer.extend(kind.to_be_bytes());
        answer.extend(IN.to_be_bytes());
        answer.extend(self.ttl.to_be_bytes());
        answer.extend((data.len() as u16).to_be_bytes());
        answer.extend(data);
    }

    /// Adds the record that says how long there is nothing else (SOA), if it fits.
    fn add_authority(&self, answer: &mut Vec<u8>, question: &Question<'_>, longest: usize) {
        let at = HEADER + apex(&question.name);
        let zone = (0xc000 | at as u16).to_be_bytes();
        let times = [1, 3600, 600, 86_400, self.ttl].into_iter().flat_map(u32::to_be_bytes);
        let [server, mail] = [&b"\x02ns"[..], b"\x0ahostmaster"].map(|it| [it, &zone].concat());
        let data: Vec<u8> = server.into_iter().chain(mail).chain(times).collect();
        if answer.len() + 12 + data.len() <= longest {
            self.add_record(answer, at, SOA, &data);
        }
    }
}

/// Bytes of EDNS's record.
const OPTION: usize = 11;

/// Reads the question, and what follows it.
fn read<'q>(header: &[u8; HEADER], rest: &'q [u8]) -> Option<(Question<'q>, Option<Edns>)> {
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let question = Question::parse(rest).filter(|_| count(4) == 1)?;
    if count(6) != 0 || count(8) != 0 {
        return None;
    }
    let (mut records, mut edns) = (&rest[question.bytes.len()..], None);
    for _ in 0..count(10) {
        let end = name_len(records)?;
        let (fixed, after) = records.get(end..)?.split_first_chunk::<10>()?;
        let data = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        if u16::from_be_bytes([fixed[0], fixed[1]]) == OPT {
            let longest = u16::from_be_bytes([fixed[2], fixed[3]]);
            let is_second = edns.replace(Edns { longest, version: fixed[5] }).is_some();
            // There is one, and its name is the root (RFC 6891, 6.1.1).
            if is_second || end != 1 {
                return None;
            }
        }
        records = after.get(data..)?;
    }
    Some((question, edns))
}

/// The length of a name, which may end in a pointer.
fn name_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            192.. => return Some(at + 2),
            len => at += 1 + usize::from(len),
        }
    }
}

impl<'q> Question<'q> {
    fn parse(bytes: &'q [u8]) -> Option<Self> {
        let (mut at, mut name) = (0, Vec::new());
        loop {
            let len = usize::from(*bytes.get(at)?);
            if len == 0 {
                break;
            }
            // Questions have no compression (RFC 1035, 4.1.4).
            let label = bytes.get(at..at + 1 + len).filter(|_| len < 64)?;
            name.push(len as u8);
            name.extend(label[1..].iter().map(u8::to_ascii_lowercase));
            at += 1 + len;
            if at > NAME {
                return None;
            }
        }
        let rest = bytes.get(at + 1..at + 5)?;
        let number = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
        Some(Self { bytes: &bytes[..at + 5], name, kind: number(0), class: number(2) })
    }
}

/// A name server: connections are for answers that are too long for a datagram (RFC 7766).
#[derive(Clone, Debug, Default)]
pub struct Server {
    zone: Zone,
}

impl Server {
    /// Serves this zone.
    #[must_use]
    pub fn new(zone: Zone) -> Self {
        Self { zone }
    }

    /// Answers the datagrams of a socket.
    pub fn datagrams<N: Nic>(&self, stack: &mut Stack<N>, socket: UdpId, now: Nanos) {
        while let Some((from, query)) = stack.udp_receive(socket) {
            if let Some(answer) = self.zone.answer(&query) {
                // An answer that finds no room is dropped, as UDP allows.
                let _ = stack.udp_send(socket, from, &answer, now);
            }
        }
    }
}

impl App for Server {
    type Conn = ();

    fn accepted(&mut self, _: &mut Io<'_>) {}

    fn data(&mut self, (): &mut (), io: &mut Io<'_>, data: &[u8]) -> usize {
        let mut rest = data;
        while let Some((len, after)) = rest.split_first_chunk::<2>()
            && io.queued() < MAX_QUEUED
        {
            let len = usize::from(u16::from_be_bytes(*len));
            if len > MAX_QUERY {
                io.abort();
                return data.len();
            }
            let Some((query, after)) = after.split_at_checked(len) else { break };
            let Some(answer) = self.zone.answer_stream(query) else {
                io.abort();
                return data.len();
            };
            let len = (answer.len() as u16).to_be_bytes();
            io.send(Bytes::from([&len[..], &answer].concat()));
            rest = after;
        }
        data.len() - rest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(label.len() as u8);
            query.extend(label.bytes());
        }
        query.push(0);
        query.extend(kind.to_be_bytes());
        query.extend(IN.to_be_bytes());
        query
    }

    fn zone() -> Zone {
        let mut zone = Zone::new(60);
        assert!(zone.add("web.example", IpAddr::from([10, 0, 0, 2])));
        assert!(zone.add("Web.Example.", "fd00::2".parse().unwrap()));
        assert!(!zone.add("a..b", IpAddr::from([10, 0, 0, 3])));
        zone
    }

    #[test]
    fn a_name_has_its_addresses_whatever_its_case() {
        let zone = zone();
        let answer = zone.answer(&query("WEB.example", A)).unwrap();
        assert_eq!(answer[..8], [7, 9, 0x85, 0, 0, 1, 0, 1]);
        assert_eq!(answer[answer.len() - 4..], [10, 0, 0, 2]);
        let answer = zone.answer(&query("web.example", AAAA)).unwrap();
        assert_eq!((answer[7], answer[answer.len() - 1]), (1, 2));
        assert_eq!(zone.answer(&query("web.example", ANY)).unwrap()[7], 2);
        assert_eq!(zone.answer(&query("web.example", 15)).unwrap()[3..8], [0, 0, 1, 0, 0]);
        assert_eq!(zone.answer(&query("none.example", A)).unwrap()[3], 3);
    }

    /// A query with an OPT record of this payload size and version.
    fn with_edns(name: &str, kind: u16, longest: u16, version: u8) -> Vec<u8> {
        let mut query = query(name, kind);
        query[11] = 1;
        query.push(0);
        query.extend(OPT.to_be_bytes());
        query.extend(longest.to_be_bytes());
        query.extend([0, version, 0, 0, 0, 0]);
        query
    }

    #[test]
    fn negative_answers_are_right_and_can_be_cached() {
        let mut zone = zone();
        zone.add("a.b.example", IpAddr::from([10, 0, 0, 4]));
        // Code, answers, authorities.
        for (name, kind, wanted) in [
            ("web.example", A, (0, 1, 0)),
            ("web.example", 15, (0, 0, 1)),
            ("none.example", A, (NO_NAME, 0, 1)),
            ("x.web.example", A, (NO_NAME, 0, 1)),
            // Above names there is something, though not this (RFC 8020).
            ("b.example", A, (0, 0, 1)),
            ("example", A, (0, 0, 1)),
            ("example", SOA, (0, 1, 0)),
            ("b.example", SOA, (0, 0, 1)),
            ("other", A, (REFUSED, 0, 0)),
            ("web.example.com", A, (REFUSED, 0, 0)),
            ("example", 252, (REFUSED, 0, 0)),
        ] {
            let answer = zone.answer(&query(name, kind)).unwrap();
            assert_eq!((answer[3], answer[7], answer[9]), wanted, "{name} {kind}");
            assert_eq!(answer[2] & 4 != 0, wanted.0 != REFUSED, "{name}: authoritative");
            if wanted.2 == 1 || kind == SOA && wanted.1 == 1 {
                assert_eq!(answer[answer.len() - 4..], 60u32.to_be_bytes(), "{name}: cached for");
                let at = HEADER + query(name, kind).len() - HEADER;
                let owner = usize::from(answer[at + 1]);
                assert_eq!(answer[owner..owner + 9], *b"\x07example\0", "{name}: the zone");
            }
        }
    }

    #[test]
    fn edns_is_answered_and_later_versions_are_told_so() {
        let mut zone = zone();
        (0..40).for_each(|i| assert!(zone.add("many.example", IpAddr::from([10, 1, 0, i]))));
        let of = |query: &[u8]| zone.answer(query).unwrap();
        let answer = of(&with_edns("web.example", A, 4096, 0));
        assert_eq!((answer[3], answer[7], answer[11]), (0, 1, 1));
        assert_eq!(answer[answer.len() - OPTION..], [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        // Version 1 is not there: extended code 16 (RFC 6891, 6.1.3).
        let answer = of(&with_edns("web.example", A, 4096, 1));
        assert_eq!((answer[3] & 15, answer[7], answer[11]), (0, 0, 1));
        assert_eq!(answer[answer.len() - 6..], [1, 0, 0, 0, 0, 0]);
        // 40 addresses take 672 bytes: too long without EDNS, or for this client.
        for (query, whole) in [
            (query("many.example", A), false),
            (with_edns("many.example", A, 600, 0), false),
            (with_edns("many.example", A, 100, 0), false),
            (with_edns("many.example", A, 1232, 0), true),
        ] {
            let answer = of(&query);
            assert_eq!((answer[2] & 2 == 0, answer[7] == 40), (whole, whole), "{query:?}");
            assert!(answer.len() <= 1232);
            let whole = zone.answer_stream(&query).unwrap();
            assert_eq!((whole[2] & 2, whole[7]), (0, 40), "TCP has room");
        }
        // Two OPT records, one cut short, and one that is not at the root.
        let good = with_edns("web.example", A, 4096, 0);
        let mut twice = [&good[..], &good[good.len() - OPTION..]].concat();
        twice[11] = 2;
        let mut named = good.clone();
        named.splice(good.len() - OPTION..=good.len() - OPTION, [1, b'x', 0]);
        for wrong in [&twice[..], &named, &good[..good.len() - 1]] {
            assert_eq!(of(wrong)[3], FORMAT_ERROR, "{wrong:?}");
        }
    }

    #[test]
    fn questions_in_a_stream_are_answered_in_order() {
        let framed = |query: &[u8]| [&(query.len() as u16).to_be_bytes()[..], query].concat();
        let queries = [query("web.example", A), query("none.example", A)].map(|it| framed(&it));
        let stream = queries.concat();
        let whole = crate::fuzz::converse(&mut Server::new(zone()), &stream, &[]);
        for cuts in [&[0u8][..], &[5, 30]] {
            assert_eq!(crate::fuzz::converse(&mut Server::new(zone()), &stream, cuts), whole);
        }
        let first = usize::from(u16::from_be_bytes([whole[0], whole[1]]));
        assert_eq!(whole[2..2 + first], zone().answer(&query("web.example", A)).unwrap());
        assert_eq!(whole[2 + first + 2 + 3], NO_NAME);
        for nonsense in [&framed(&[0x80; 12])[..], &[0xff; 100], &framed(b"x")] {
            assert_eq!(crate::fuzz::converse(&mut Server::new(zone()), nonsense, &[]), b"");
        }
    }

    #[test]
    fn what_is_no_query_is_refused_or_gets_nothing() {
        let zone = zone();
        let mut response = query("web.example", A);
        response[2] |= 0x80;
        assert_eq!(zone.answer(&response), None);
        let mut update = query("web.example", A);
        update[2] = 5 << 3;
        assert_eq!(zone.answer(&update).unwrap()[3], 4);
        assert_eq!(zone.answer(&query("web.example", A)[..20]).unwrap()[3], 1);
        assert_eq!(zone.answer(&[0; 11]), None);
    }

    proptest! {
        #[test]
        fn no_answer_is_longer_than_a_datagram(query in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Some(answer) = zone().answer(&query) {
                prop_assert!(answer.len() <= MOST_EDNS && answer[2] & 0x80 != 0);
            }
        }
    }
}
