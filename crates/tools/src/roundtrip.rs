//! Round trips: requests on a schedule that does not wait for replies, and the statistics of the
//! replies.

use std::time::Duration;

use frame::{ETHERNET_HEADER, EtherType, Ethernet, Mac};
use hdrhistogram::Histogram;
use zerocopy::IntoBytes;

/// EtherType of requests and replies: IEEE's local experimental type 1 (IEEE 802, 9.2.4).
pub const ETHERTYPE: EtherType = EtherType(0x88b5);
/// The smallest payload: kind (2 bytes) and number (8 bytes), most significant byte first.
pub const MIN_PAYLOAD: usize = 10;
const REQUEST: u16 = 0x7071;
const REPLY: u16 = 0x7072;

/// Writes request number `number` over all of `frame`; false if it is too short.
pub fn write_request(to: Mac, from: Mac, number: u64, frame: &mut [u8]) -> bool {
    if frame.len() < ETHERNET_HEADER + MIN_PAYLOAD {
        return false;
    }
    let (header, payload) = frame.split_at_mut(ETHERNET_HEADER);
    header.copy_from_slice(Ethernet::new(to, from, ETHERTYPE).as_bytes());
    payload[..2].copy_from_slice(&REQUEST.to_be_bytes());
    payload[2..MIN_PAYLOAD].copy_from_slice(&number.to_be_bytes());
    true
}

/// Kind and number of a frame of this protocol.
fn parse(frame: &[u8]) -> Option<(u16, u64)> {
    let (header, payload) = Ethernet::parse(frame)?;
    let (kind, rest) = payload.split_first_chunk()?;
    let number = u64::from_be_bytes(*rest.first_chunk()?);
    (header.ethertype() == ETHERTYPE).then(|| (u16::from_be_bytes(*kind), number))
}

/// Makes the reply out of a request to `me`, in place; false if it is something else.
pub fn answer(me: Mac, frame: &mut [u8]) -> bool {
    let Some((REQUEST, _)) = parse(frame) else { return false };
    let Some((header, _)) = Ethernet::parse(frame) else { return false };
    let (to, from) = (header.destination(), header.source());
    if to != me {
        return false;
    }
    frame[..ETHERNET_HEADER].copy_from_slice(Ethernet::new(from, to, ETHERTYPE).as_bytes());
    frame[ETHERNET_HEADER..ETHERNET_HEADER + 2].copy_from_slice(&REPLY.to_be_bytes());
    true
}

/// The number of the request that `frame` is the reply to, if it is one to `me`.
#[must_use]
pub fn reply_number(me: Mac, frame: &[u8]) -> Option<u64> {
    let (header, _) = Ethernet::parse(frame)?;
    let (kind, number) = parse(frame)?;
    (kind == REPLY && header.destination() == me).then_some(number)
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Request i is due `i * interval` after the start, independent of other requests.
    Open {
        /// Nanoseconds from one request to the next.
        interval: u64,
    },
    /// The next request is sent when the last one was answered, or when its reply is given up.
    Closed,
}

/// Requests and what came back, with time passed in: nanoseconds of any clock.
///
/// A round trip is measured from when its request was *due*. If the sender or the switch was
/// delayed, all requests that were due meanwhile show the delay (no coordinated omission).
#[derive(Debug)]
pub struct RoundTrips {
    schedule: Schedule,
    start: u64,
    /// Requests sent.
    sent: u64,
    /// When the last request was sent (closed schedule).
    sent_at: u64,
    /// True while a reply is awaited (closed schedule).
    waiting: bool,
    received: u64,
    unexpected: u64,
    /// One bit for each of the last requests: whether it was answered.
    answered: Box<[u64]>,
    times: Histogram<u64>,
}

/// The maximum number of outstanding requests. Beyond them the oldest is forgotten.
const OUTSTANDING: u64 = 1 << 16;
/// A closed schedule gives a reply up after this many nanoseconds.
const GIVE_UP: u64 = 1_000_000_000;

impl RoundTrips {
    /// A schedule that starts at `start`.
    #[must_use]
    pub fn new(schedule: Schedule, start: u64) -> Self {
        Self {
            schedule,
            start,
            sent: 0,
            sent_at: start,
            waiting: false,
            received: 0,
            unexpected: 0,
            answered: vec![0; OUTSTANDING as usize / 64].into(),
            times: histogram(),
        }
    }

    /// When the next request is due.
    #[must_use]
    pub fn next_at(&self) -> u64 {
        match self.schedule {
            Schedule::Open { interval } => self.due(self.sent, interval),
            Schedule::Closed if self.waiting => self.sent_at.saturating_add(GIVE_UP),
            Schedule::Closed => self.sent_at,
        }
    }

    fn due(&self, number: u64, interval: u64) -> u64 {
        self.start.saturating_add(number.saturating_mul(interval))
    }

    /// The number of the request to send at `now`, if one is due. Tell [`sent`](Self::sent) once it
    /// is.
    #[must_use]
    pub fn request_due(&self, now: u64) -> Option<u64> {
        (self.next_at() <= now).then_some(self.sent)
    }

    /// The request that was due has been sent at `now`.
    pub fn sent(&mut self, now: u64) {
        let (word, bit) = place(self.sent);
        self.answered[word] &= !bit;
        self.sent += 1;
        self.sent_at = now;
        self.waiting = true;
    }

    /// The reply to request `number` came at `now`.
    pub fn reply(&mut self, number: u64, now: u64) {
        let (word, bit) = place(number);
        let known = number < self.sent && self.sent - number <= OUTSTANDING;
        if !known || self.answered[word] & bit != 0 {
            self.unexpected += 1;
            return;
        }
        self.answered[word] |= bit;
        let from = match self.schedule {
            Schedule::Open { interval } => self.due(number, interval),
            Schedule::Closed if number + 1 < self.sent => {
                self.unexpected += 1;
                return;
            }
            Schedule::Closed => self.sent_at,
        };
        if number + 1 == self.sent {
            self.waiting = false;
        }
        if self.schedule == Schedule::Closed {
            self.sent_at = now;
        }
        self.received += 1;
        // The histogram clamps the value, so recording cannot fail.
        self.times.saturating_record(now.saturating_sub(from));
    }

    /// Requests sent and replies received.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    /// Returns the results of the measurement.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let at = |quantile| self.times.value_at_quantile(quantile);
        Summary {
            sent: self.sent,
            received: self.received,
            lost: self.sent - self.received,
            unexpected: self.unexpected,
            min_ns: if self.times.is_empty() { 0 } else { self.times.min() },
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p99_9_ns: at(0.999),
            max_ns: self.times.max(),
        }
    }

    /// The median so far.
    #[must_use]
    pub fn median(&self) -> Duration {
        Duration::from_nanos(self.times.value_at_quantile(0.5))
    }
}

/// From 1 ns to 100 s, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).unwrap_or_else(|_| unreachable!())
}

fn place(number: u64) -> (usize, u64) {
    ((number % OUTSTANDING / 64) as usize, 1 << (number % 64))
}

/// A summary of round trips. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// Requests sent.
    pub sent: u64,
    /// Requests that were answered.
    pub received: u64,
    /// Requests without a reply.
    pub lost: u64,
    /// Replies that came twice, or that answer no request.
    pub unexpected: u64,
    /// The fastest.
    pub min_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// 90 % of the round trips took at most this many nanoseconds.
    pub p90_ns: u64,
    /// 99 % of the round trips took at most this many nanoseconds.
    pub p99_ns: u64,
    /// 99.9 % of the round trips took at most this many nanoseconds.
    pub p99_9_ns: u64,
    /// The slowest.
    pub max_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn a_request_is_answered_with_its_number() {
        let (a, b) = (Mac::local(1), Mac::local(2));
        let mut frame = [0xaa; 24];
        assert!(write_request(b, a, 77, &mut frame));
        assert_eq!(reply_number(a, &frame), None, "a request is not a reply");
        assert!(!answer(a, &mut frame), "not for others");
        assert!(answer(b, &mut frame));
        assert!(!answer(b, &mut frame), "a reply is no request");
        assert_eq!((reply_number(a, &frame), reply_number(b, &frame)), (Some(77), None));
        assert!(!write_request(b, a, 0, &mut [0; 23]));
        for len in 0..24 {
            assert!(!answer(b, &mut frame[..len]));
            assert_eq!(reply_number(a, &frame[..len]), None);
        }
    }

    /// Sends what is due each microsecond up to `until`; each reply takes `trip`, but nothing moves
    /// from `stall` on for `stalled` ns: neither sender nor switch.
    fn simulate(schedule: Schedule, until: u64, trip: u64, stall: u64, stalled: u64) -> Summary {
        let mut trips = RoundTrips::new(schedule, 0);
        let mut flying = std::collections::VecDeque::new();
        let mut now = 0;
        while now < until {
            if now == stall {
                now += stalled;
            }
            while flying.front().is_some_and(|(at, _)| *at <= now) {
                let (_, number) = flying.pop_front().unwrap();
                trips.reply(number, now);
            }
            while let Some(number) = trips.request_due(now) {
                trips.sent(now);
                flying.push_back((now + trip, number));
            }
            now += US;
        }
        for (at, number) in flying {
            trips.reply(number, at);
        }
        trips.summary()
    }

    #[test]
    fn undisturbed_round_trips_take_what_they_take() {
        let open = Schedule::Open { interval: 10 * US };
        let summary = simulate(open, 10_000 * US, 3 * US, u64::MAX, 0);
        assert_eq!((summary.sent, summary.lost), (1000, 0));
        let near = |ns: u64| (2990..3010).contains(&ns);
        assert!(near(summary.p50_ns) && near(summary.max_ns), "{summary:?}");
    }

    /// One stall of 1 ms in 10 ms: a tenth of all requests were due while it lasted, so the 99th
    /// percentile is close to it. A closed loop sends one request in that time and sees nothing.
    #[test]
    fn a_stall_delays_all_requests_that_were_due_meanwhile() {
        let open = Schedule::Open { interval: 10 * US };
        let stalled = simulate(open, 10_000 * US, 3 * US, 5000 * US, 1000 * US);
        assert!(stalled.p99_ns > 850 * US, "{stalled:?}");
        assert!(stalled.p50_ns < 4 * US, "{stalled:?}");
        let closed = simulate(Schedule::Closed, 10_000 * US, 3 * US, 5000 * US, 1000 * US);
        assert!(closed.p99_ns < 4 * US && closed.max_ns >= 990 * US, "{closed:?}");
    }

    #[test]
    fn requests_without_reply_are_lost_and_stray_replies_are_not_counted() {
        let mut trips = RoundTrips::new(Schedule::Open { interval: 10 }, 0);
        for now in [0, 10, 20] {
            assert!(trips.request_due(now).is_some() && trips.request_due(now + 9).is_some());
            trips.sent(now);
        }
        trips.reply(1, 25);
        trips.reply(1, 26);
        trips.reply(3, 27);
        trips.reply(u64::MAX, 28);
        let summary = trips.summary();
        assert_eq!((summary.sent, summary.received, summary.lost), (3, 1, 2));
        assert_eq!((summary.unexpected, summary.p50_ns), (3, 15));
    }

    #[test]
    fn a_closed_loop_waits_and_then_gives_up() {
        let mut trips = RoundTrips::new(Schedule::Closed, 100);
        assert_eq!(trips.request_due(100), Some(0));
        trips.sent(100);
        assert_eq!(trips.request_due(GIVE_UP), None);
        assert_eq!(trips.request_due(100 + GIVE_UP), Some(1));
        trips.sent(100 + GIVE_UP);
        trips.reply(0, 101 + GIVE_UP);
        assert_eq!(trips.request_due(102 + GIVE_UP), None, "the old reply ends no new wait");
        trips.reply(1, 105 + GIVE_UP);
        let summary = trips.summary();
        assert_eq!((summary.received, summary.unexpected, summary.max_ns), (1, 1, 5));
    }
}
