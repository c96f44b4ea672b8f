//! A DNS responder (RFC 1035): the addresses of some names, answered authoritatively over UDP.

use std::collections::HashMap;
use std::net::IpAddr;

/// Bytes of a header.
const HEADER: usize = 12;
/// Maximum length of a name (RFC 1035, 2.3.4).
const NAME: usize = 255;
/// Maximum length of an answer over UDP (RFC 1035, 4.2.1).
const MOST: usize = 512;
/// Numbers of classes and types of records.
const IN: u16 = 1;
const A: u16 = 1;
const AAAA: u16 = 28;
const ANY: u16 = 255;

/// Names and their addresses.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    names: HashMap<Vec<u8>, Vec<IpAddr>>,
    ttl: u32,
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

impl Zone {
    /// Makes a zone without names. Resolvers may cache its answers for `ttl` seconds.
    #[must_use]
    pub fn new(ttl: u32) -> Self {
        Self { names: HashMap::new(), ttl }
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
        self.names.entry(wire).or_default().push(address);
        true
    }

    /// Answers a query; `None` for a message that is not a query.
    #[must_use]
    pub fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        let header = query.first_chunk::<HEADER>()?;
        let opcode = header[2] >> 3 & 15;
        if header[2] & 0x80 != 0 {
            return None;
        }
        let questions = u16::from_be_bytes([header[4], header[5]]);
        let question = Question::parse(&query[HEADER..]).filter(|_| questions == 1);
        let recursion = header[2] & 1;
        let mut answer = vec![header[0], header[1], 0x84 | opcode << 3 | recursion, 0];
        answer.extend([0; 8]);
        let Some(question) = question.filter(|_| opcode == 0) else {
            // The answer's code: format error, or not implemented.
            answer[3] = if opcode == 0 { 1 } else { 4 };
            return Some(answer);
        };
        answer[5] = 1;
        answer.extend(question.bytes);
        match self.names.get(&question.name) {
            // The answer's code for another class: refused.
            _ if question.class != IN => answer[3] = 5,
            None => answer[3] = 3,
            Some(addresses) => self.add_records(&mut answer, question.kind, addresses),
        }
        Some(answer)
    }

    fn add_records(&self, answer: &mut Vec<u8>, kind: u16, addresses: &[IpAddr]) {
        let mut count = 0u16;
        for address in addresses {
            let (of, bytes) = match address {
                IpAddr::V4(v4) => (A, v4.octets().to_vec()),
                IpAddr::V6(v6) => (AAAA, v6.octets().to_vec()),
            };
            if kind != of && kind != ANY {
                continue;
            }
            if answer.len() + 12 + bytes.len() > MOST {
                // Truncated.
                answer[2] |= 2;
                break;
            }
            // The record's name points to that in the question.
            answer.extend([0xc0, HEADER as u8]);
            answer.extend(of.to_be_bytes());
            answer.extend(IN.to_be_bytes());
            answer.extend(self.ttl.to_be_bytes());
            answer.extend((bytes.len() as u16).to_be_bytes());
            answer.extend(bytes);
            count += 1;
        }
        answer[6..8].copy_from_slice(&count.to_be_bytes());
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
                prop_assert!(answer.len() <= MOST && answer[2] & 0x80 != 0);
            }
        }
    }
}
