//! Reports of the groups that the host listens to, for switches that forward groups to listeners
//! only: MLDv2 (RFC 3810), and MLDv1 (RFC 2710) while a querier speaks that.
//!
//! The host listens to whole groups, from any source. Its own reports are never suppressed by those
//! of others, which anybody can forge. A query sets a timer, so a flood of queries gets a few
//! reports a second.

use std::net::Ipv6Addr;

use frame::{Ipv6, Protocol};
use tcp::Nanos;
use zerocopy::IntoBytes;

use super::ALL_ROUTERS;
use super::message::{HOP_BY_HOP, HOP_LIMIT};

/// Types of messages (RFC 3810, 5; RFC 2710, 3).
pub(super) const QUERY: u8 = 130;
const REPORT_V1: u8 = 131;
const DONE_V1: u8 = 132;
const REPORT: u8 = 143;
/// Types of records (RFC 3810, 5.2.12).
const IS_EXCLUDE: u8 = 2;
const TO_INCLUDE: u8 = 3;
const TO_EXCLUDE: u8 = 4;

/// Routers that speak MLDv2 (RFC 3810, 5.2.14).
const REPORTS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// The maximum number of groups, those that were left included.
const MAX_GROUPS: usize = 16;
/// How often a change is reported (`Robustness Variable` of RFC 3810, 9.1).
const ROBUSTNESS: u8 = 2;
/// The longest time between reports of a change (`Unsolicited Report Interval`, 9.11).
const UNSOLICITED: u64 = Nanos::SECOND;
/// The least time between answers to queries.
const PAUSE: u64 = 100 * Nanos::MILLI;
/// How long MLDv1 is spoken after a query of it (`Older Version Querier Present Timeout`, 9.12).
const OLDER_QUERIER: u64 = (2 * 125 + 10) * Nanos::SECOND;

/// The bytes of a query of MLDv1, and the least bytes of one of MLDv2.
const QUERY_V1_LEN: usize = 24;
const QUERY_V2_LEN: usize = 28;

/// A general query, or one for a group (RFC 3810, 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    /// `None` for all groups.
    group: Option<Ipv6Addr>,
    /// Nanoseconds until the last answer may come.
    within: u64,
    v1: bool,
}

impl Query {
    /// Reads a query from its ICMPv6 message. `None` if no version has such a message.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (head, _) = message.split_first_chunk::<QUERY_V1_LEN>()?;
        let v1 = message.len() == QUERY_V1_LEN;
        if !v1 && message.len() < QUERY_V2_LEN {
            return None;
        }
        let code = u16::from_be_bytes([head[4], head[5]]);
        // RFC 3810, 5.1.3: a floating-point number from 32768 on.
        let (exponent, mantissa) = (code >> 12 & 7, u64::from(code & 0xfff) | 0x1000);
        let floating = code >= 0x8000 && !v1;
        let millis = if floating { mantissa << (exponent + 3) } else { code.into() };
        let group = Ipv6Addr::from(*head[8..].first_chunk::<16>()?);
        let group = (!group.is_unspecified()).then_some(group);
        let is_good = group.is_none_or(|group| group.is_multicast());
        is_good.then_some(Self { group, within: millis * Nanos::MILLI, v1 })
    }
}

/// A group of the host.
#[derive(Clone, Copy, Debug)]
struct Group {
    ip: Ipv6Addr,
    /// The host has left it.
    left: bool,
    /// How often its last change is still to be reported, and when next.
    reports: u8,
    change: Nanos,
    /// When an answer to a query is due.
    answer: Nanos,
}

impl Group {
    fn changed(&mut self, left: bool, now: Nanos) {
        (self.left, self.reports, self.change) = (left, ROBUSTNESS, now);
        if left {
            self.answer = Nanos::NEVER;
        }
    }

    /// What is due now: the type of its record.
    fn record(&self, now: Nanos) -> Option<u8> {
        match (self.left, self.reports > 0 && self.change <= now) {
            (true, true) => Some(TO_INCLUDE),
            (false, true) => Some(TO_EXCLUDE),
            (_, false) => (self.answer <= now).then_some(IS_EXCLUDE),
        }
    }

    /// Notes that a message about it was sent. The next one is due at `next`.
    fn told(&mut self, next: Nanos, now: Nanos) {
        if self.reports > 0 && self.change <= now {
            (self.reports, self.change) = (self.reports - 1, next);
        }
        if self.answer <= now {
            self.answer = Nanos::NEVER;
        }
    }

    fn due(&self) -> Nanos {
        if self.reports > 0 { self.change.min(self.answer) } else { self.answer }
    }
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The records of a report: the type, and the group.
    Report(Vec<(u8, Ipv6Addr)>),
    /// A report of MLDv1.
    Listens(Ipv6Addr),
    /// The end of listening in MLDv1.
    Done(Ipv6Addr),
}

impl Told {
    /// The packet with this message, from a link-local address or from none (RFC 3590).
    pub fn packet(&self, from: Ipv6Addr) -> Vec<u8> {
        let (to, mut message) = match self {
            Self::Report(records) => {
                let mut message = vec![REPORT, 0, 0, 0, 0, 0, 0, records.len() as u8];
                for (kind, group) in records {
                    message.extend([*kind, 0, 0, 0]);
                    message.extend(group.octets());
                }
                (REPORTS, message)
            }
            Self::Listens(group) => (*group, message_v1(REPORT_V1, *group)),
            Self::Done(group) => (ALL_ROUTERS, message_v1(DONE_V1, *group)),
        };
        // A hop-by-hop header with a router alert for MLD (RFC 2711), and two bytes of padding.
        let alert = [Protocol::ICMPV6.0, 0, ROUTER_ALERT, 2, 0, 0, 1, 0];
        let len = alert.len() + message.len();
        let ip = Ipv6::new(from, to, Protocol(HOP_BY_HOP), len as u16);
        let sum = frame::checksum::Sum::new();
        let sum = sum.with_pseudo_header(ip.addresses(), Protocol::ICMPV6, message.len() as u32);
        let sum = sum.with(&message).checksum();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut packet = ip.as_bytes().to_vec();
        packet[HOP_LIMIT] = 1;
        [packet, alert.to_vec(), message].concat()
    }

    /// The group to which the message goes.
    pub fn to(&self) -> Ipv6Addr {
        match self {
            Self::Report(_) => REPORTS,
            Self::Listens(group) => *group,
            Self::Done(_) => ALL_ROUTERS,
        }
    }
}

/// The option of a hop-by-hop header that routers look at (RFC 2711, 2).
pub(super) const ROUTER_ALERT: u8 = 5;

fn message_v1(kind: u8, group: Ipv6Addr) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat()
}

/// The groups of the host.
#[derive(Debug)]
pub(super) struct Groups {
    all: Vec<Group>,
    /// No answer before this time.
    quiet: Nanos,
    /// MLDv1 is spoken until then.
    v1_until: Nanos,
    random: u64,
}

impl Groups {
    /// No groups. Delays follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { all: Vec::new(), quiet: Nanos(0), v1_until: Nanos(0), random: seed }
    }

    /// A delay of up to `most` (splitmix64). Nothing depends on whether others can guess it.
    fn delay(&mut self, most: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % (most + 1)
    }

    /// Takes the groups that the host listens to, and notes what has changed.
    pub fn set(&mut self, wanted: impl Iterator<Item = Ipv6Addr> + Clone, now: Nanos) {
        for group in &mut self.all {
            let left = wanted.clone().all(|ip| ip != group.ip);
            if left != group.left {
                group.changed(left, now);
            }
        }
        for ip in wanted {
            if self.all.iter().any(|group| group.ip == ip) {
                continue;
            }
            if self.all.len() >= MAX_GROUPS {
                let left = self.all.iter().position(|group| group.left);
                self.all.swap_remove(left.unwrap_or(0));
            }
            let answer = Nanos::NEVER;
            self.all.push(Group { ip, left: false, reports: ROBUSTNESS, change: now, answer });
        }
    }

    /// Reports all groups as if they were new: the host has an address to report from now (RFC
    /// 3590, 4).
    pub fn repeat(&mut self, now: Nanos) {
        for group in self.all.iter_mut().filter(|group| !group.left) {
            group.changed(false, now);
        }
    }

    /// Takes a query. The answer is due after a delay, in which further queries change nothing.
    pub fn asked(&mut self, query: &Query, now: Nanos) {
        if query.v1 {
            self.v1_until = now + OLDER_QUERIER;
        }
        let due = (now + self.delay(query.within)).max(self.quiet);
        let asked = |group: &&mut Group| query.group.is_none_or(|ip| ip == group.ip);
        for group in self.all.iter_mut().filter(|group| !group.left).filter(asked) {
            group.answer = group.answer.min(due);
        }
    }

    /// Returns the next message that is due.
    pub fn next(&mut self, now: Nanos) -> Option<Told> {
        if now < self.due() {
            return None;
        }
        let next = now + 1 + self.delay(UNSOLICITED - 1);
        self.quiet = now + PAUSE;
        let told = match now < self.v1_until {
            true => self.next_v1(next, now)?,
            false => {
                let due = |group: &Group| group.record(now).map(|kind| (kind, group.ip));
                let records = self.all.iter().filter_map(due).collect();
                self.all.iter_mut().for_each(|group| group.told(next, now));
                Told::Report(records)
            }
        };
        self.all.retain(|group| !group.left || group.reports > 0);
        Some(told)
    }

    /// The next message of MLDv1, which is about one group.
    fn next_v1(&mut self, next: Nanos, now: Nanos) -> Option<Told> {
        let group = self.all.iter_mut().find(|group| group.due() <= now)?;
        group.told(next, now);
        if group.left {
            // The end of listening is said once (RFC 2710, 4).
            group.reports = 0;
            return Some(Told::Done(group.ip));
        }
        Some(Told::Listens(group.ip))
    }

    /// Returns when [`next`](Self::next) next has a message.
    pub fn due(&self) -> Nanos {
        self.all.iter().map(Group::due).min().unwrap_or(Nanos::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos(100 * Nanos::SECOND);

    fn group(number: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, number)
    }

    fn listening(to: &[u16]) -> Groups {
        let mut groups = Groups::new(1);
        groups.set(to.iter().map(|number| group(*number)), START);
        groups
    }

    /// Everything that is said until `end`: the time, and the records or the message.
    fn said(groups: &mut Groups, end: Nanos) -> Vec<(Nanos, Vec<(u8, Ipv6Addr)>)> {
        let mut all = Vec::new();
        while groups.due() <= end {
            let now = groups.due();
            let told = match groups.next(now).unwrap() {
                Told::Report(records) => records,
                Told::Listens(ip) => vec![(REPORT_V1, ip)],
                Told::Done(ip) => vec![(DONE_V1, ip)],
            };
            all.push((now, told));
        }
        all
    }

    fn query(group: Option<Ipv6Addr>, code: u16, v1: bool) -> Query {
        let mut message = vec![QUERY, 0, 0, 0];
        message.extend(code.to_be_bytes());
        message.extend([0; 2]);
        message.extend(group.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
        message.extend(if v1 { &[][..] } else { &[2, 125, 0, 0] });
        Query::parse(&message).unwrap()
    }

    #[test]
    fn a_change_is_reported_twice_within_a_second_and_then_never() {
        let mut groups = listening(&[1, 2]);
        let both = [(TO_EXCLUDE, group(1)), (TO_EXCLUDE, group(2))];
        let all = said(&mut groups, START + 1000 * Nanos::SECOND);
        assert!(
            matches!(&all[..], [(START, first), (_, second)] if *first == both && *second == both)
        );
        assert!(all[1].0 > START && all[1].0 <= START + UNSOLICITED);
        let later = START + 2000 * Nanos::SECOND;
        groups.set([group(2), group(3)].into_iter(), later);
        let change = [(TO_INCLUDE, group(1)), (TO_EXCLUDE, group(3))];
        let all = said(&mut groups, later + 1000 * Nanos::SECOND);
        assert!(
            matches!(&all[..], [(_, first), (_, second)] if *first == change && *second == change)
        );
        assert_eq!((groups.all.len(), groups.due()), (2, Nanos::NEVER));
    }

    #[test]
    fn a_query_is_answered_in_time_for_all_groups_or_for_one() {
        let mut groups = listening(&[1, 2]);
        let later = START + 10 * Nanos::SECOND;
        said(&mut groups, later);
        groups.asked(&query(None, 1000, false), later);
        let all = said(&mut groups, later + Nanos::SECOND);
        let both = vec![(IS_EXCLUDE, group(1)), (IS_EXCLUDE, group(2))];
        assert_eq!(all.iter().map(|(_, records)| records.clone()).collect::<Vec<_>>(), [both]);
        groups.asked(&query(Some(group(2)), 0, false), later + Nanos::SECOND);
        groups.asked(&query(Some(group(9)), 0, false), later + Nanos::SECOND);
        let all = said(&mut groups, later + 2 * Nanos::SECOND);
        assert_eq!(all, [(later + Nanos::SECOND, vec![(IS_EXCLUDE, group(2))])]);
    }

    #[test]
    fn a_flood_of_queries_gets_ten_answers_a_second() {
        let mut groups = listening(&[1]);
        let mut now = START + 10 * Nanos::SECOND;
        said(&mut groups, now);
        let (end, mut answers) = (now + Nanos::SECOND, 0);
        while now < end {
            groups.asked(&query(None, 0, false), now);
            answers += said(&mut groups, now).len();
            now = now + 10 * Nanos::MICRO;
        }
        assert!((9..=11).contains(&answers), "{answers}");
    }

    #[test]
    fn a_querier_of_version_1_gets_its_messages_until_it_is_gone() {
        let mut groups = listening(&[1, 2]);
        groups.asked(&query(None, 0, true), START);
        let first = said(&mut groups, START);
        assert_eq!(first, [1, 2].map(|number| (START, vec![(REPORT_V1, group(number))])));
        let again = said(&mut groups, START + 2 * UNSOLICITED);
        assert_eq!(again.len(), 2, "each change is reported twice: {again:?}");
        let later = START + 10 * Nanos::SECOND;
        groups.set([group(2)].into_iter(), later);
        assert_eq!(said(&mut groups, later + UNSOLICITED), [(later, vec![(DONE_V1, group(1))])]);
        let later = START + OLDER_QUERIER;
        groups.set([group(3)].into_iter(), later);
        let version_2 = vec![(TO_INCLUDE, group(2)), (TO_EXCLUDE, group(3))];
        assert_eq!(said(&mut groups, later), [(later, version_2)]);
    }

    #[test]
    fn groups_that_come_and_go_fill_a_bounded_table() {
        let mut groups = listening(&[]);
        for number in 0..1000 {
            groups.set([group(number)].into_iter(), START);
        }
        assert_eq!(groups.all.len(), MAX_GROUPS);
        assert!(groups.all.iter().any(|group| !group.left && group.ip == self::group(999)));
        said(&mut groups, START + 10 * Nanos::SECOND);
        assert_eq!(groups.all.len(), 1);
    }

    #[test]
    fn queries_that_no_version_has_are_not_read() {
        assert_eq!(query(None, 0x7fff, false).within, 0x7fff * Nanos::MILLI);
        assert_eq!(query(None, 0x8000, false).within, 0x8000 * Nanos::MILLI);
        assert_eq!(query(None, 0xffff, false).within, (0x1fff << 10) * Nanos::MILLI);
        assert_eq!(query(None, 0xffff, true).within, 0xffff * Nanos::MILLI);
        let mut message = [0; 40];
        for len in 0..40 {
            assert_eq!(Query::parse(&message[..len]).is_some(), len == 24 || len >= 28, "{len}");
        }
        message[8] = 0xfe;
        assert_eq!(Query::parse(&message), None, "a host is no group");
    }
}
