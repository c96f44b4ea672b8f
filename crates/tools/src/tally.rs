//! A sink's checks of received frames.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use frame::{Layers, Network, Probe, ProbeError};

/// Late frames can be told from duplicates if they are at most this far behind the newest of their
/// stream.
const WINDOW: u64 = 4096;
/// The maximum number of streams that are followed.
const MAX_STREAMS: usize = 1 << 16;

/// The results of a sink's checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Findings {
    /// Received frames that are probes.
    pub probes: u64,
    /// Received frames that are not probes.
    pub foreign: u64,
    /// Streams.
    pub streams: u64,
    /// Probes missing between the first and the newest of their stream.
    pub lost: u64,
    /// Probes that were received more than once.
    pub duplicated: u64,
    /// Probes that came after a later one.
    pub reordered: u64,
    /// Probes more than 4,096 behind: too late to say whether they are duplicates.
    pub too_late: u64,
    /// Probes with a wrong byte.
    pub corrupt: u64,
    /// Probes of streams beyond the first 65,536, which are not tracked.
    pub not_followed: u64,
    /// Probes of all streams before the first one seen. They were sent before the sink started, or
    /// lost.
    pub before_first: u64,
}

impl Findings {
    /// Returns true if every probe since the first of its stream came once, in order and intact.
    #[must_use]
    pub fn is_flawless(&self) -> bool {
        let flaws = [self.lost, self.duplicated, self.reordered, self.too_late, self.corrupt];
        flaws.iter().all(|n| *n == 0)
    }
}

/// Follows streams of probes.
#[derive(Debug, Default)]
pub struct Tally {
    findings: Findings,
    streams: Vec<Stream>,
    index: HashMap<Key, usize>,
    /// The stream of the last probe. The next probe is likely of the same stream or the one after
    /// it.
    last: usize,
}

type Key = (Ipv4Addr, u16);

#[derive(Debug)]
struct Stream {
    key: Key,
    /// The first number seen.
    first: u64,
    /// The sequence number expected next.
    next: u64,
    /// Bit `s % WINDOW` is set if `s` came, for the `WINDOW` numbers before `next`.
    came: Box<[u64; WINDOW as usize / 64]>,
}

impl Tally {
    /// A tally that has checked nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The results so far.
    #[must_use]
    pub fn findings(&self) -> Findings {
        Findings { streams: self.streams.len() as u64, ..self.findings }
    }

    /// Checks a frame, all of its bytes.
    pub fn see(&mut self, frame: &[u8]) {
        let Some((source, payload)) = udp_payload(frame) else {
            self.findings.foreign += 1;
            return;
        };
        match Probe::verify(payload) {
            Ok(probe) => {
                self.findings.probes += 1;
                self.follow((source, probe.stream), probe.sequence);
            }
            Err(ProbeError::NotAProbe) => self.findings.foreign += 1,
            Err(ProbeError::Content { .. }) => {
                self.findings.probes += 1;
                self.findings.corrupt += 1;
                if let Ok(probe) = Probe::read(payload) {
                    self.follow((source, probe.stream), probe.sequence);
                }
            }
        }
    }

    fn follow(&mut self, key: Key, sequence: u64) {
        let Some(at) = self.find(key, sequence) else {
            self.findings.not_followed += 1;
            return;
        };
        self.last = at;
        self.streams[at].see(sequence, &mut self.findings);
    }

    /// The index of a stream; a new stream is added.
    fn find(&mut self, key: Key, sequence: u64) -> Option<usize> {
        let is = |at: usize| self.streams.get(at).is_some_and(|stream| stream.key == key);
        let following = if self.last + 1 < self.streams.len() { self.last + 1 } else { 0 };
        if let Some(at) = [self.last, following].into_iter().find(|at| is(*at)) {
            return Some(at);
        }
        if let Some(at) = self.index.get(&key) {
            return Some(*at);
        }
        if self.streams.len() == MAX_STREAMS {
            return None;
        }
        self.findings.before_first = self.findings.before_first.saturating_add(sequence);
        self.index.insert(key, self.streams.len());
        let came = Box::new([0; WINDOW as usize / 64]);
        self.streams.push(Stream { key, first: sequence, next: sequence, came });
        Some(self.streams.len() - 1)
    }
}

impl Stream {
    #[inline]
    fn see(&mut self, sequence: u64, findings: &mut Findings) {
        if sequence >= self.next {
            let gap = sequence - self.next;
            for missing in (0..gap.min(WINDOW)).map(|i| sequence - 1 - i) {
                self.clear(missing);
            }
            findings.lost = findings.lost.saturating_add(gap);
            self.next = sequence.saturating_add(1);
            self.mark(sequence);
        } else if self.next - sequence > WINDOW {
            findings.too_late += 1;
        } else if self.was_received(sequence) {
            findings.duplicated += 1;
        } else {
            self.mark(sequence);
            findings.reordered += 1;
            if sequence > self.first {
                findings.lost = findings.lost.saturating_sub(1);
            } else {
                findings.before_first = findings.before_first.saturating_sub(1);
            }
        }
    }

    fn was_received(&self, sequence: u64) -> bool {
        self.came[(sequence % WINDOW / 64) as usize] & 1 << (sequence % 64) != 0
    }

    fn mark(&mut self, sequence: u64) {
        self.came[(sequence % WINDOW / 64) as usize] |= 1 << (sequence % 64);
    }

    fn clear(&mut self, sequence: u64) {
        self.came[(sequence % WINDOW / 64) as usize] &= !(1 << (sequence % 64));
    }
}

/// The source address and payload of a UDP datagram in IPv4.
#[inline]
fn udp_payload(frame: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
    let layers = Layers::of(frame)?;
    match (layers.network, layers.transport) {
        (Network::Ipv4(ip), frame::Transport::Udp(_)) => Some((ip.source(), layers.payload)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frame::{Mac, UdpFrame};
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn probe_frame(source: u32, stream: u16, sequence: u64) -> Vec<u8> {
        let mut frame = vec![0; 100];
        let at = UdpFrame::between(Mac::local(source), Mac::local(2)).write(&mut frame).unwrap();
        Probe { stream, sequence, time: 0, filled: true }.write(&mut frame[at..]);
        frame
    }

    /// The results for probes of one stream with these numbers.
    fn after(numbers: impl IntoIterator<Item = u64>) -> Findings {
        let mut tally = Tally::new();
        numbers.into_iter().for_each(|n| tally.see(&probe_frame(1, 0, n)));
        tally.findings()
    }

    #[test]
    fn an_undisturbed_stream_is_flawless() {
        let findings = after(0..10_000);
        assert!(findings.is_flawless());
        assert_eq!((findings.probes, findings.streams, findings.before_first), (10_000, 1, 0));
    }

    #[test]
    fn a_dropped_frame_is_lost() {
        let findings = after((0..100).filter(|n| *n != 50));
        assert_eq!((findings.lost, findings.is_flawless()), (1, false));
        assert_eq!(after([0, 1_000_000]).lost, 999_999);
    }

    #[test]
    fn a_repeated_frame_is_a_duplicate() {
        let findings = after([0, 1, 2, 2, 3]);
        assert_eq!((findings.duplicated, findings.lost, findings.is_flawless()), (1, 0, false));
    }

    #[test]
    fn a_late_frame_is_reordered_and_not_lost() {
        let findings = after([0, 1, 3, 4, 2, 5]);
        assert_eq!((findings.reordered, findings.lost, findings.is_flawless()), (1, 0, false));
        let findings = after([0, 3, 2, 2]);
        assert_eq!((findings.reordered, findings.lost, findings.duplicated), (1, 1, 1));
    }

    #[test]
    fn frames_from_long_ago_are_too_late_to_judge() {
        let findings = after((0..10_000).chain([1]));
        assert_eq!((findings.too_late, findings.duplicated), (1, 0));
    }

    #[test]
    fn what_came_before_the_sink_is_not_lost() {
        let findings = after(500..600);
        assert_eq!((findings.lost, findings.before_first), (0, 500));
        let findings = after([500, 502, 499]);
        assert_eq!((findings.lost, findings.before_first), (1, 499));
    }

    #[test]
    fn a_changed_byte_is_corrupt() {
        let mut tally = Tally::new();
        let mut frame = probe_frame(1, 0, 0);
        frame[99] ^= 1;
        tally.see(&frame);
        assert_eq!(tally.findings().corrupt, 1);
        frame[50] ^= 1;
        tally.see(&frame);
        assert_eq!(tally.findings().foreign, 1, "a broken probe head is not a probe");
    }

    #[test]
    fn streams_are_followed_apart() {
        let mut tally = Tally::new();
        for sequence in 0..100 {
            for (source, stream) in [(1, 0), (1, 1), (2, 0), (2, 7)] {
                tally.see(&probe_frame(source, stream, sequence));
            }
        }
        assert!(tally.findings().is_flawless());
        assert_eq!(tally.findings().streams, 4);
        tally.see(&[0; 60]);
        tally.see(&[]);
        assert_eq!(tally.findings().foreign, 2);
    }

    proptest! {
        /// Within the window, the tally agrees with a set that remembers all numbers.
        #[test]
        fn agrees_with_an_oracle(numbers in proptest::collection::vec(0u64..WINDOW, 1..300)) {
            let findings = after(std::iter::once(0).chain(numbers.iter().copied()));
            let (mut seen, mut newest) = (HashSet::from([0]), 0);
            let (mut duplicated, mut reordered) = (0, 0);
            for n in numbers {
                if !seen.insert(n) {
                    duplicated += 1;
                } else if n < newest {
                    reordered += 1;
                }
                newest = newest.max(n);
            }
            let lost = newest + 1 - seen.len() as u64;
            prop_assert_eq!(
                (findings.duplicated, findings.reordered, findings.lost),
                (duplicated, reordered, lost)
            );
        }

        #[test]
        fn takes_any_bytes(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
            Tally::new().see(&frame);
        }
    }
}
