//! sFlow version 5 datagrams (sflow.org, "sFlow Version 5", July 2004), as far as a switch writes
//! them.
//!
//! Everything is in XDR: words of 32 bits, the highest byte first; opaque bytes are padded to whole
//! words.

use std::net::IpAddr;

use fabric::Fate;
use port::DropReason;

/// Bytes of the longest datagram: it fits an Ethernet frame with room for tunnels (section 4: at
/// most the path's MTU).
pub const LONGEST: usize = 1400;
/// Bytes of the frame check sequence. A frame in memory has none, so it is counted and reported as
/// stripped.
const FCS: u32 = 4;

/// Data formats of enterprise 0.
const FLOW_SAMPLE: u32 = 1;
const COUNTERS_SAMPLE: u32 = 2;
const RAW_PACKET_HEADER: u32 = 1;
const GENERIC_INTERFACE_COUNTERS: u32 = 1;
const PORT_NAME: u32 = 1005;
const ETHERNET: u32 = 1;
/// `ethernetCsmacd` of IANA's interface types.
const ETHERNET_INTERFACE: u32 = 6;
/// The value of a counter that is not kept.
const UNKNOWN: u32 = u32::MAX;

/// A datagram under construction.
#[derive(Debug)]
pub struct Datagram {
    bytes: Vec<u8>,
    /// The offset of the number of samples.
    count_at: usize,
    samples: u32,
}

/// A frame that was sampled.
#[derive(Clone, Copy, Debug)]
pub struct FlowSample<'a> {
    /// Sequence number among the samples of this interface.
    pub sequence: u32,
    /// The interface that the frame came from.
    pub source: u32,
    /// The sampling rate: one frame in this many is sampled.
    pub rate: u32,
    /// Frames from this interface that could have been sampled.
    pub pool: u32,
    /// Samples that were lost.
    pub drops: u32,
    /// The outcome of the frame, encoded by [`output`].
    pub output: u32,
    /// Bytes of the frame.
    pub len: u32,
    /// The frame's first bytes.
    pub head: &'a [u8],
}

/// The counters of an interface.
#[derive(Clone, Copy, Debug)]
pub struct CountersSample<'a> {
    /// Sequence number among the samples of this interface.
    pub sequence: u32,
    /// The interface.
    pub interface: u32,
    /// Its name.
    pub name: &'a str,
    /// The interface passes frames.
    pub up: bool,
    /// What the port sent into the switch: bytes, frames, dropped, malformed.
    pub received: [u64; 4],
    /// What the switch delivered to the port: bytes, frames, dropped.
    pub sent: [u64; 3],
}

/// Encodes where a frame went, for a flow sample: `interface` for a port.
pub fn output(fate: Fate, interface: impl Fn(u16) -> u32) -> u32 {
    match fate {
        Fate::To(port) => interface(port),
        // Several interfaces; their number is unknown.
        Fate::Flooded => 2 << 30,
        Fate::Dropped(reason, _) => 1 << 30 | code(reason),
    }
}

/// sFlow's code for a drop reason (section 5.3, `reason`).
fn code(reason: DropReason) -> u32 {
    match reason {
        DropReason::Protected
        | DropReason::PortSecurity
        | DropReason::Vlan
        | DropReason::ArpSpoof
        | DropReason::NdSpoof
        | DropReason::DhcpServer
        | DropReason::RouterAdvert
        | DropReason::HiddenHeaders
        | DropReason::LinkLocal
        | DropReason::Denied
        | DropReason::Filtered => 258,
        DropReason::Full | DropReason::StallTimeout => 259,
        DropReason::RateLimit | DropReason::FloodLimit => 261,
        DropReason::TooLong => 262,
        _ => 256,
    }
}

impl Datagram {
    /// Makes an empty datagram of agent `agent` and its sub-agent `sub_agent`.
    #[must_use]
    pub fn new(agent: IpAddr, sub_agent: u32, sequence: u32, uptime_ms: u32) -> Self {
        let mut new = Self { bytes: Vec::with_capacity(LONGEST), count_at: 0, samples: 0 };
        new.word(5);
        match agent {
            IpAddr::V4(ip) => {
                new.word(1);
                new.bytes.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                new.word(2);
                new.bytes.extend(ip.octets());
            }
        }
        new.words(&[sub_agent, sequence, uptime_ms]);
        new.count_at = new.bytes.len();
        new.word(0);
        new
    }

    /// Returns true if the datagram has no samples.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Adds a sample of a frame. If there is no room, adds nothing and returns false.
    pub fn add_flow(&mut self, sample: &FlowSample<'_>) -> bool {
        self.add(FLOW_SAMPLE, |to| {
            let FlowSample { sequence, source, rate, pool, drops, output, len, head } = *sample;
            to.words(&[sequence, source, rate, pool, drops, source, output, 1]);
            to.sized(RAW_PACKET_HEADER, |to| {
                to.words(&[ETHERNET, len.saturating_add(FCS), FCS]);
                to.opaque(head);
            });
        })
    }

    /// Adds the counters of an interface. If there is no room, adds nothing and returns false.
    pub fn add_counters(&mut self, sample: &CountersSample<'_>) -> bool {
        self.add(COUNTERS_SAMPLE, |to| {
            let CountersSample { sequence, interface, name, up, received, sent } = *sample;
            to.words(&[sequence, interface, 2]);
            to.sized(GENERIC_INTERFACE_COUNTERS, |to| {
                let [bytes, frames, dropped, faults] = received;
                to.words(&[interface, ETHERNET_INTERFACE]);
                // Speed unknown; full duplex; administratively up, and the operational state.
                to.words(&[0, 0, 1, if up { 3 } else { 1 }]);
                to.long(bytes);
                to.words(&[frames as u32, UNKNOWN, UNKNOWN, dropped as u32, faults as u32]);
                let [bytes, frames, dropped] = sent;
                // The counter of frames of unknown protocols, which is always 0.
                to.word(0);
                to.long(bytes);
                to.words(&[frames as u32, UNKNOWN, UNKNOWN, dropped as u32, 0]);
                // Not promiscuous.
                to.word(0);
            });
            to.sized(PORT_NAME, |to| to.opaque(name.as_bytes()));
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[self.count_at..][..4].copy_from_slice(&self.samples.to_be_bytes());
        self.bytes
    }

    fn add(&mut self, format: u32, write: impl FnOnce(&mut Self)) -> bool {
        let before = self.bytes.len();
        self.sized(format, write);
        let fits = self.bytes.len() <= LONGEST;
        if fits {
            self.samples += 1;
        } else {
            self.bytes.truncate(before);
        }
        fits
    }

    /// A structure of this format, after its length.
    fn sized(&mut self, format: u32, write: impl FnOnce(&mut Self)) {
        self.words(&[format, 0]);
        let begin = self.bytes.len();
        write(self);
        let len = (self.bytes.len() - begin) as u32;
        self.bytes[begin - 4..begin].copy_from_slice(&len.to_be_bytes());
    }

    fn opaque(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u32);
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.word(*word));
    }

    fn word(&mut self, word: u32) {
        self.bytes.extend(word.to_be_bytes());
    }

    fn long(&mut self, long: u64) {
        self.bytes.extend(long.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_whole_words_and_no_longer_than_the_longest() {
        let head: Vec<u8> = (0..128).collect();
        let mut datagram = Datagram::new("192.0.2.1".parse().unwrap(), 3, 7, 1000);
        let mut samples = 0;
        let room = |datagram: &mut Datagram, n: usize| {
            let flow = FlowSample {
                sequence: n as u32,
                source: 1,
                rate: 100,
                pool: 1,
                drops: 0,
                output: output(Fate::Flooded, u32::from),
                len: 60,
                head: &head[..n % 129],
            };
            datagram.add_flow(&flow)
        };
        while room(&mut datagram, 123 + samples) {
            samples += 1;
        }
        let bytes = datagram.finish();
        assert!(samples > 4 && bytes.len() <= LONGEST && bytes.len().is_multiple_of(4));
        assert_eq!(bytes[..12], [0, 0, 0, 5, 0, 0, 0, 1, 192, 0, 2, 1]);
        assert_eq!(bytes[24..28], (samples as u32).to_be_bytes());
    }

    #[test]
    fn fates_have_the_forms_of_the_specification() {
        let number = |port: u16| u32::from(port) + 1;
        assert_eq!(output(Fate::To(4), number), 5);
        assert_eq!(output(Fate::Flooded, number), 0x8000_0000);
        assert_eq!(output(Fate::Dropped(DropReason::Vlan, None), number), 0x4000_0102);
    }
}
