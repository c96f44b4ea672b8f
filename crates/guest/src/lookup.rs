//! A DNS client (RFC 1035): looks up the IPv4 addresses of a name, without I/O.

use std::net::{Ipv4Addr, SocketAddrV4};

use tcp::Nanos;

/// Maximum length of a name on the wire (RFC 1035, 2.3.4).
const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 63;
/// The maximum number of records of an answer that are read.
const MAX_RECORDS: usize = 64;
/// The maximum number of pointers of a compressed name.
const MAX_POINTERS: usize = 16;
/// Time until a question is repeated; it doubles, up to the second time.
const REPEAT: u64 = Nanos::SECOND;
const MAX_REPEAT: u64 = 8 * Nanos::SECOND;
/// How long a server may be silent. Paused and migrating machines are, for a minute.
const PATIENCE: u64 = 100 * Nanos::SECOND;
const HEADER: usize = 12;
/// Type A, class IN.
const A: [u8; 4] = [0, 1, 0, 1];
/// Type CNAME, class IN.
const CNAME: [u8; 4] = [0, 5, 0, 1];

/// The reason why the lookup found no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// There is no such name, or it has no IPv4 address.
    #[error("The name does not exist, or has no IPv4 address")]
    NotFound,
    /// The server could not answer; the code is that of RFC 1035, 4.1.1.
    #[error("The name server cannot answer (code {0}); ask another one")]
    Refused(u8),
    /// The answer does not fit into a datagram.
    #[error("The answer is too long for a datagram; ask by TCP")]
    Truncated,
    /// No answer came.
    #[error("The name server does not answer")]
    TimedOut,
}

/// The next step of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this datagram to the server.
    Send(Vec<u8>),
    /// Wait until this time.
    Wait(Nanos),
    /// Give up: [`LookupError::TimedOut`].
    End,
}

/// A lookup. Its owner sends what [`poll`](Self::poll) says, from a UDP port of its own, and hands
/// in what arrives there.
#[derive(Clone, Debug)]
pub struct Lookup {
    server: SocketAddrV4,
    /// The name as it stands in a question.
    name: Vec<u8>,
    id: u16,
    wait: u64,
    due: Option<Nanos>,
    end: Nanos,
}

impl Lookup {
    /// Looks up `name` by `server`. `id` should be random, as the UDP port should: strangers who
    /// guess both can answer. `None` if this is no name.
    #[must_use]
    pub fn new(name: &str, server: SocketAddrV4, id: u16) -> Option<Self> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let mut wire = Vec::new();
        for label in name.split('.') {
            if label.is_empty() || label.len() > MAX_LABEL {
                return None;
            }
            wire.push(label.len() as u8);
            wire.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
        wire.push(0);
        let (wait, due, end) = (REPEAT, None, Nanos::NEVER);
        (wire.len() <= MAX_NAME).then_some(Self { server, name: wire, id, wait, due, end })
    }

    /// Returns what to do next.
    pub fn poll(&mut self, now: Nanos) -> Step {
        match self.due {
            Some(due) if now < due => return Step::Wait(due),
            Some(_) if now >= self.end => return Step::End,
            Some(_) => {}
            None => self.end = now + PATIENCE,
        }
        self.due = Some((now + self.wait).min(self.end));
        self.wait = (2 * self.wait).min(MAX_REPEAT);
        // A question that asks for recursion.
        let mut query = [&self.id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
        query.extend_from_slice(&self.name);
        query.extend_from_slice(&A);
        Step::Send(query)
    }

    /// Takes a datagram. `None` if it is no answer to this question: it may be a stranger's.
    #[must_use]
    pub fn answer(
        &self,
        from: SocketAddrV4,
        datagram: &[u8],
    ) -> Option<Result<Vec<Ipv4Addr>, LookupError>> {
        let (header, _) = datagram.split_first_chunk::<HEADER>()?;
        let [id @ .., flags, codes, 0, 1, _, _, _, _, _, _] = *header else { return None };
        let (question, at) = expand(datagram, HEADER)?;
        let is_ours = from == self.server
            && id == self.id.to_be_bytes()
            && flags & 0xf8 == 0x80
            && question == self.name
            && datagram.get(at..at + 4)? == A;
        if !is_ours {
            return None;
        }
        match codes & 0xf {
            0 => {}
            3 => return Some(Err(LookupError::NotFound)),
            code => return Some(Err(LookupError::Refused(code))),
        }
        let records = usize::from(u16::from_be_bytes([header[6], header[7]]));
        let addresses = self.addresses(datagram, at + 4, records.min(MAX_RECORDS));
        Some(match addresses.is_empty() {
            false => Ok(addresses),
            true if flags & 2 != 0 => Err(LookupError::Truncated),
            true => Err(LookupError::NotFound),
        })
    }

    /// The addresses of the name, and of what it is an alias of. Ends at the first broken record.
    fn addresses(&self, datagram: &[u8], mut at: usize, records: usize) -> Vec<Ipv4Addr> {
        let (mut target, mut addresses) = (self.name.clone(), Vec::new());
        for _ in 0..records {
            let Some((owner, fixed)) = expand(datagram, at) else { break };
            // Type and class, time to live, length.
            let Some(head) = datagram.get(fixed..fixed + 10) else { break };
            let data = fixed + 10;
            at = data + usize::from(u16::from_be_bytes([head[8], head[9]]));
            let Some(bytes) = datagram.get(data..at) else { break };
            if owner != target {
                continue;
            }
            if head[..4] == A
                && let Ok(octets) = <[u8; 4]>::try_from(bytes)
            {
                addresses.push(Ipv4Addr::from(octets));
            } else if head[..4] == CNAME
                && let Some((alias, _)) = expand(datagram, data)
            {
                target = alias;
            }
        }
        addresses
    }
}

/// Reads a name, which may be compressed (RFC 1035, 4.1.4). Returns it in lower case, and where the
/// next field begins.
fn expand(datagram: &[u8], mut at: usize) -> Option<(Vec<u8>, usize)> {
    let (mut name, mut next, mut pointers) = (Vec::new(), None, 0);
    loop {
        let len = *datagram.get(at)?;
        match len {
            0 => {
                name.push(0);
                return Some((name, next.unwrap_or(at + 1)));
            }
            1..=63 => {
                let label = datagram.get(at..=at + usize::from(len))?;
                name.push(len);
                name.extend(label[1..].iter().map(u8::to_ascii_lowercase));
                at += label.len();
            }
            192.. if pointers < MAX_POINTERS => {
                next = next.or(Some(at + 2));
                at = usize::from(len & 0x3f) << 8 | usize::from(*datagram.get(at + 1)?);
                pointers += 1;
            }
            _ => return None,
        }
        if name.len() >= MAX_NAME {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::dns::Zone;

    const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 53);

    fn lookup(name: &str) -> Lookup {
        Lookup::new(name, SERVER, 0x1234).unwrap()
    }

    fn query(lookup: &mut Lookup) -> Vec<u8> {
        match lookup.poll(Nanos(0)) {
            Step::Send(query) => query,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn a_server_of_our_own_answers() {
        let mut zone = Zone::new(60);
        let address = Ipv4Addr::new(10, 0, 0, 7);
        assert!(zone.add("web.example", address.into()));
        let mut found = lookup("Web.Example.");
        let answer = zone.answer(&query(&mut found)).unwrap();
        assert_eq!(found.answer(SERVER, &answer), Some(Ok(vec![address])));
        let mut missing = lookup("no.example");
        let answer = zone.answer(&query(&mut missing)).unwrap();
        assert_eq!(missing.answer(SERVER, &answer), Some(Err(LookupError::NotFound)));
        assert_eq!(found.answer(SERVER, &answer), None, "the answer to another question");
    }

    /// An answer with an alias: the question, `records` records.
    fn answer(records: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = query(&mut lookup("a.b"));
        (bytes[2], bytes[3], bytes[7]) = (0x81, 0x80, records);
        bytes.extend_from_slice(rest);
        bytes
    }

    #[test]
    fn aliases_are_followed_and_addresses_of_other_names_are_not_taken() {
        // a.b is an alias of c.b; d.b and c.b have addresses.
        let records = [
            &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 4, 1, b'C', 0xc0, 14][..],
            &[1, b'd', 0xc0, 14, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 6, 6, 6, 6],
            &[1, b'c', 0xc0, 14, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 1, 2, 3, 4],
        ];
        let found = lookup("a.b").answer(SERVER, &answer(3, &records.concat()));
        assert_eq!(found, Some(Ok(vec![Ipv4Addr::new(1, 2, 3, 4)])));
    }

    #[test]
    fn strangers_and_broken_answers_are_not_believed() {
        let good = answer(1, &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 1, 2, 3, 4]);
        let stranger = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 53);
        let asked = lookup("a.b");
        assert!(asked.answer(SERVER, &good).unwrap().is_ok());
        assert_eq!(asked.answer(stranger, &good), None);
        assert_eq!(Lookup { id: 1, ..asked.clone() }.answer(SERVER, &good), None);
        // A name that points to itself, a record that is cut short, and any flipped byte.
        assert_eq!(asked.answer(SERVER, &answer(1, &[0xc0, 21])), Some(Err(LookupError::NotFound)));
        for len in 0..good.len() {
            let _ = asked.answer(SERVER, &good[..len]);
            for value in [0, 1, 63, 64, 192, 255] {
                let mut broken = good.clone();
                broken[len] = value;
                let _ = asked.answer(SERVER, &broken);
            }
        }
        assert!(Lookup::new("a..b", SERVER, 1).is_none());
        assert!(Lookup::new(&"a.".repeat(200), SERVER, 1).is_none());
    }

    #[test]
    fn a_silent_server_is_asked_for_a_hundred_seconds() {
        let (mut lookup, mut now, mut asked) = (lookup("a.b"), Nanos(0), 0);
        loop {
            match lookup.poll(now) {
                Step::Send(_) => asked += 1,
                Step::Wait(until) => now = until,
                Step::End => break,
            }
        }
        assert_eq!((asked, now), (15, Nanos(100 * Nanos::SECOND)));
    }
}
