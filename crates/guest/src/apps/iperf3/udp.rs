//! The streams of a test over UDP: the greeting that opens each, the numbers in its datagrams, and
//! what their receiver counts.

use std::collections::HashMap;
use std::net::SocketAddr;

use tcp::Nanos;

use super::Report;
use super::wire::{Results, StreamResult, Udp, number};
use crate::nic::Nic;
use crate::stack::Stack;
use crate::udp::{UdpError, UdpId};

/// What a client says first on a stream (`UDP_CONNECT_MSG`), and what it said before iperf3 3.7.
const GREETINGS: [u32; 2] = [0x3637_3839, 123_456_789];
/// What a server answers to each.
const ANSWERS: [u32; 2] = [0x3938_3736, 987_654_321];

/// Bytes of a datagram's header with a counter of 32 and of 64 bits.
const HEADER: [usize; 2] = [12, 16];
/// Datagrams that a stream sends in a turn, at most.
const BURST: usize = 64;
/// How long a sender waits for a free slot.
const PATIENCE: u64 = 20 * Nanos::MICRO;
/// Bytes that may wait in the socket between two turns.
pub const RECEIVE: usize = 1 << 20;

/// The bytes that open a stream.
pub fn greeting() -> [u8; 4] {
    GREETINGS[0].to_ne_bytes()
}

/// The answer to a greeting, in the order of bytes of the host that has sent it. `None` if it is
/// none.
pub fn answer(greeting: &[u8]) -> Option<[u8; 4]> {
    let bytes: [u8; 4] = greeting.try_into().ok()?;
    let at = |number: u32| GREETINGS.iter().position(|known| *known == number);
    let little = at(u32::from_le_bytes(bytes)).map(|i| ANSWERS[i].to_le_bytes());
    little.or_else(|| at(u32::from_be_bytes(bytes)).map(|i| ANSWERS[i].to_be_bytes()))
}

/// Whether this is a server's answer to a greeting.
pub fn is_answer(bytes: &[u8]) -> bool {
    let number = bytes.try_into().map(u32::from_ne_bytes);
    number.is_ok_and(|number| ANSWERS.contains(&number))
}

/// What the receiver of a stream has counted, as iperf3 does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Bytes of datagrams.
    pub bytes: u64,
    /// The highest number of a datagram: how many were sent, as far as is known.
    pub packets: u64,
    /// Datagrams that did not come.
    pub lost: u64,
    /// Datagrams that came after one with a higher number.
    pub reordered: u64,
    /// The jitter in seconds (RFC 1889, 6.3.1).
    pub jitter: f64,
    /// How much later than its time stamp the last one came, by clocks that differ.
    transit: Option<f64>,
}

impl Counted {
    /// Counts a datagram. One that is too short for its header counts for nothing.
    pub fn datagram(&mut self, data: &[u8], wide: bool, now: Nanos) {
        let Some((head, rest)) = data.split_first_chunk::<12>() else { return };
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let number = match (wide, rest.first_chunk::<4>()) {
            (false, _) => u64::from(word(8)),
            (true, Some(low)) => u64::from(word(8)) << 32 | u64::from(u32::from_be_bytes(*low)),
            (true, None) => return,
        };
        self.bytes += data.len() as u64;
        if number > self.packets {
            self.lost = self.lost.saturating_add(number - 1 - self.packets);
            self.packets = number;
        } else {
            self.reordered += 1;
            // It was counted as lost.
            self.lost = self.lost.saturating_sub(1);
        }
        let sent = f64::from(word(0)) + f64::from(word(4)) * 1e-6;
        let transit = now.0 as f64 / Nanos::SECOND as f64 - sent;
        let differs = (transit - self.transit.unwrap_or(transit)).abs();
        self.jitter += (differs - self.jitter) / 16.0;
        self.transit = Some(transit);
    }
}

/// A stream.
#[derive(Clone, Debug)]
struct Stream {
    socket: UdpId,
    peer: SocketAddr,
    sends: bool,
    counted: Counted,
}

/// The streams of a test that has begun to open them, in order.
#[derive(Debug)]
pub struct Streams {
    settings: Udp,
    all: Vec<Stream>,
    /// Streams by their ends.
    by_ends: HashMap<(UdpId, SocketAddr), usize>,
    datagram: Vec<u8>,
    /// The stream that sends first in the next turn.
    first: usize,
}

impl Streams {
    /// No streams, for datagrams of `len` bytes.
    pub fn new(settings: Udp, len: usize) -> Self {
        let datagram = vec![0x5a; len.max(HEADER[1])];
        Self { settings, all: Vec::new(), by_ends: HashMap::new(), datagram, first: 0 }
    }

    /// Adds a stream. False if these ends have one.
    pub fn add(&mut self, socket: UdpId, peer: SocketAddr, sends: bool) -> bool {
        let is_new = self.by_ends.insert((socket, peer), self.all.len()).is_none();
        if is_new {
            self.all.push(Stream { socket, peer, sends, counted: Counted::default() });
        }
        is_new
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn has(&self, socket: UdpId, peer: SocketAddr) -> bool {
        self.by_ends.contains_key(&(socket, peer))
    }

    /// Counts a datagram that came. False if it is of no stream that receives.
    pub fn count(&mut self, socket: UdpId, peer: SocketAddr, data: &[u8], now: Nanos) -> bool {
        let index = self.by_ends.get(&(socket, peer));
        let stream = index.and_then(|index| self.all.get_mut(*index)).filter(|s| !s.sends);
        stream.map(|s| s.counted.datagram(data, self.settings.wide, now)).is_some()
    }

    /// Sends what is due since `began`. Returns when more is due.
    pub fn send<N: Nic>(
        &mut self,
        stack: &mut Stack<N>,
        began: Nanos,
        now: Nanos,
    ) -> Option<Nanos> {
        let len = self.datagram.len();
        let (mut next, n) = (None, self.all.len());
        for index in (self.first..n).chain(0..self.first.min(n)) {
            let stream = &mut self.all[index];
            if !stream.sends {
                continue;
            }
            let mut due = began;
            for sent in 0.. {
                due = due_at(stream.counted.bytes, self.settings.rate, began);
                if due > now || sent == BURST {
                    break;
                }
                write_header(
                    &mut self.datagram,
                    self.settings.wide,
                    stream.counted.packets + 1,
                    now,
                );
                match stack.udp_send(stream.socket, stream.peer, &self.datagram, now) {
                    Err(UdpError::Full) => {
                        self.first = index;
                        return Some(now + PATIENCE);
                    }
                    // It is lost, as one is that no router carries on.
                    Ok(()) | Err(_) => {
                        stream.counted.packets += 1;
                        stream.counted.bytes += len as u64;
                    }
                }
            }
            next = next.into_iter().chain([due.max(now)]).min();
        }
        self.first = (self.first + 1) % n.max(1);
        next
    }

    /// What this end says of its streams after a test.
    pub fn all_results(&self) -> Vec<StreamResult> {
        let of = |(index, stream): (usize, &Stream)| {
            let Counted { bytes, packets, lost, jitter, .. } = stream.counted;
            StreamResult { id: number(index), bytes, packets, lost, jitter }
        };
        self.all.iter().enumerate().map(of).collect()
    }

    /// The report of a test of this many seconds.
    pub fn report(&self, seconds: f64, peer: Results) -> Report {
        let (sent, received): (Vec<&Stream>, _) = self.all.iter().partition(|stream| stream.sends);
        let sum = |streams: &[&Stream]| streams.iter().map(|stream| stream.counted.bytes).sum();
        Report {
            seconds,
            sent: sum(&sent),
            received: sum(&received),
            datagrams: received.iter().map(|stream| stream.counted).collect(),
            peer,
        }
    }
}

/// When the datagram after so many bytes is due.
fn due_at(bytes: u64, rate: u64, began: Nanos) -> Nanos {
    let bits = u128::from(bytes) * 8 * u128::from(Nanos::SECOND);
    let after = bits.checked_div(u128::from(rate)).unwrap_or(0);
    Nanos(began.0.saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
}

fn write_header(datagram: &mut [u8], wide: bool, number: u64, now: Nanos) {
    let seconds = (now.0 / Nanos::SECOND) as u32;
    let micros = (now.0 % Nanos::SECOND / Nanos::MICRO) as u32;
    let (low, high) = (number as u32, (number >> 32) as u32);
    let words =
        if wide { [seconds, micros, high, low] } else { [seconds, micros, low, 0x5a5a_5a5a] };
    for (place, word) in datagram.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(number: u64, sent_us: u32, wide: bool) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        write_header(&mut bytes, wide, number, Nanos(u64::from(sent_us) * Nanos::MICRO));
        bytes
    }

    #[test]
    fn greetings_are_answered_in_the_order_of_bytes_of_their_sender() {
        assert_eq!(answer(b"9876"), Some(*b"6789"));
        assert_eq!(answer(b"6789"), Some(*b"9876"));
        let old = [123_456_789u32, 987_654_321];
        assert_eq!(answer(&old[0].to_le_bytes()), Some(old[1].to_le_bytes()));
        assert_eq!(answer(&old[0].to_be_bytes()), Some(old[1].to_be_bytes()));
        for wrong in [&b""[..], b"987", b"98765", b"0000"] {
            assert_eq!(answer(wrong), None);
        }
        assert!(is_answer(&answer(&greeting()).unwrap()));
        assert!(is_answer(&old[1].to_ne_bytes()) && !is_answer(&greeting()) && !is_answer(b"6"));
    }

    #[test]
    fn losses_and_late_datagrams_are_counted_as_iperf3_counts_them() {
        for wide in [false, true] {
            let mut counted = Counted::default();
            for number in [1, 2, 5, 3, 6, 6] {
                counted.datagram(&datagram(number, 0, wide), wide, Nanos(0));
            }
            let Counted { bytes, packets, lost, reordered, .. } = counted;
            assert_eq!((bytes, packets, lost, reordered), (600, 6, 0, 2));
            counted.datagram(&datagram(9, 0, wide), wide, Nanos(0));
            assert_eq!((counted.packets, counted.lost), (9, 2));
        }
        let mut counted = Counted::default();
        (0..16).for_each(|len| counted.datagram(&vec![1; len], true, Nanos(0)));
        assert_eq!(counted, Counted::default());
        // A sender may claim what it likes.
        for number in [u64::MAX, 1, u64::MAX] {
            counted.datagram(&datagram(number, u32::MAX, true), true, Nanos(0));
        }
        assert!(counted.lost > 1 << 62 && counted.jitter.is_finite());
    }

    #[test]
    fn jitter_is_that_of_rfc_1889() {
        let mut counted = Counted::default();
        let at = |ms: u64| Nanos((ms + 5000) * Nanos::MILLI);
        counted.datagram(&datagram(1, 0, false), false, at(0));
        assert_eq!(counted.jitter, 0.0);
        counted.datagram(&datagram(2, 10_000, false), false, at(26));
        assert!((counted.jitter - 0.001).abs() < 1e-9);
        counted.datagram(&datagram(3, 20_000, false), false, at(20));
        assert!((counted.jitter - (0.001 + 0.015 / 16.0)).abs() < 1e-9);
    }

    #[test]
    fn a_rate_says_when_each_datagram_is_due() {
        let began = Nanos(Nanos::SECOND);
        assert_eq!(due_at(0, 1000, began), began);
        assert_eq!(due_at(125, 1000, began), began + Nanos::SECOND);
        assert_eq!(due_at(u64::MAX, 0, began), began);
        assert_eq!(due_at(u64::MAX, 1, began), Nanos(u64::MAX));
    }
}
