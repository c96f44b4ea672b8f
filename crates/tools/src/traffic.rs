//! The frames that a generator makes.

use std::str::FromStr;

use frame::{IMIX, MIN_FRAME, Mac, Probe, UdpFrame, VLAN_TAG, VlanId};

/// The largest frame that is made: jumbo payload and headers.
pub const MAX_FRAME: usize = 9216 + frame::ETHERNET_HEADER + VLAN_TAG;
/// Bytes at the front of a frame that can differ between frames.
const HEAD: usize = UdpFrame::HEADERS + VLAN_TAG + Probe::LEN;

/// How long frames are, in bytes without their check sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All frames have the same length.
    Fixed(usize),
    /// Simple IMIX, [`frame::IMIX`].
    Imix,
    /// Lengths are evenly spread from the first number to the second.
    Range(usize, usize),
}

/// Invalid options; the error names the valid ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// A size that cannot be read.
    #[error("a size is bytes such as 64, a range such as 64-1514, or imix")]
    Size,
    /// A size out of range.
    #[error("frames are {least} to {MAX_FRAME} bytes long")]
    Length {
        /// The smallest possible length.
        least: usize,
    },
    /// More streams than stream numbers.
    #[error("there can be 1 to 65536 flows and addresses")]
    Streams,
}

impl FromStr for Sizes {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| TrafficError::Size);
        if text.eq_ignore_ascii_case("imix") {
            return Ok(Self::Imix);
        }
        match text.split_once('-') {
            Some((least, most)) => Ok(Self::Range(number(least)?, number(most)?)),
            None => number(text).map(Self::Fixed),
        }
    }
}

/// The settings of a generator of frames.
#[derive(Clone, Copy, Debug)]
pub struct TrafficConfig {
    /// The destination address.
    pub destination: Mac,
    /// The source address of the first stream.
    pub source: Mac,
    /// Their tag.
    pub vlan: Option<VlanId>,
    /// The lengths of the frames.
    pub sizes: Sizes,
    /// Number of flows (UDP source ports).
    pub flows: usize,
    /// Number of source addresses.
    pub macs: usize,
    /// Number of the first stream.
    pub stream: u16,
}

/// An endless sequence of frames: [`Probe`]s in UDP.
///
/// Streams take turns. There are as many as flows or source addresses, whichever are more, and each
/// counts its own sequence numbers.
#[derive(Debug)]
pub struct Traffic {
    /// The frame lengths that occur, and the headers of each.
    shapes: Vec<Shape>,
    order: Order,
    /// The source address and source port of each stream.
    streams: Vec<([u8; 6], [u8; 2])>,
    first_stream: u16,
    payload_at: usize,
    next_stream: usize,
    sequence: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Shape {
    len: usize,
    head: [u8; HEAD],
}

/// How the next frame's length is chosen.
#[derive(Debug)]
enum Order {
    One,
    Imix(usize),
    Random(u64),
}

impl Traffic {
    /// Makes a generator of such frames.
    ///
    /// # Errors
    /// [`TrafficError`] says which option is out of range.
    pub fn new(config: &TrafficConfig) -> Result<Self, TrafficError> {
        let least = MIN_FRAME + if config.vlan.is_some() { VLAN_TAG } else { 0 };
        let (lengths, order) = lengths(config.sizes, least);
        let in_range = |len: &usize| (least..=MAX_FRAME).contains(len);
        if lengths.is_empty() || !lengths.iter().all(in_range) {
            return Err(TrafficError::Length { least });
        }
        let count = config.flows.max(config.macs);
        if config.flows == 0 || config.macs == 0 || count > 1 << 16 {
            return Err(TrafficError::Streams);
        }
        let headers =
            UdpFrame { vlan: config.vlan, ..UdpFrame::between(config.source, config.destination) };
        let shape = |len: usize| shape(&headers, len).ok_or(TrafficError::Length { least });
        let port = |i: usize| headers.source_port.wrapping_add((i % config.flows) as u16);
        let stream =
            |i| (offset_mac(config.source, i % config.macs).octets(), port(i).to_be_bytes());
        Ok(Self {
            shapes: lengths.into_iter().map(shape).collect::<Result<_, _>>()?,
            order,
            streams: (0..count).map(stream).collect(),
            first_stream: config.stream,
            payload_at: headers.header_len(),
            next_stream: 0,
            sequence: 0,
            buffer: vec![0; MAX_FRAME],
        })
    }

    /// Makes the next frame, sent at `time` (ns): the bytes to write to the front of its buffer,
    /// and its length. With `whole` these are all bytes; otherwise headers and probe, and the rest
    /// of the buffer stays as it is.
    #[inline]
    pub fn next(&mut self, time: u64, whole: bool) -> (&[u8], usize) {
        let shape = &self.shapes[self.order.next(self.shapes.len())];
        self.buffer[..HEAD].copy_from_slice(&shape.head);
        let stream = self.first_stream.wrapping_add(self.next_stream as u16);
        let probe = Probe { stream, sequence: self.sequence, time, filled: false };
        if self.streams.len() > 1 {
            let (source, port) = self.streams[self.next_stream];
            self.buffer[6..12].copy_from_slice(&source);
            self.buffer[self.payload_at - 8..self.payload_at - 6].copy_from_slice(&port);
        }
        self.next_stream += 1;
        if self.next_stream == self.streams.len() {
            (self.next_stream, self.sequence) = (0, self.sequence + 1);
        }
        let end = if whole { shape.len } else { self.payload_at + Probe::LEN };
        let payload = &mut self.buffer[self.payload_at..end];
        let _ = if whole { probe.write(payload) } else { probe.write_head(payload) };
        (&self.buffer[..end], shape.len)
    }

    /// Bytes of the longest frame.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.shapes.iter().map(|shape| shape.len).max().unwrap_or(0)
    }

    /// The source addresses, each once.
    pub fn sources(&self) -> impl Iterator<Item = Mac> {
        let first = self.streams[0].0;
        let again = self.streams[1..].iter().position(|stream| stream.0 == first);
        let count = again.map_or(self.streams.len(), |at| at + 1);
        self.streams[..count].iter().map(|stream| Mac::new(stream.0))
    }
}

impl Order {
    #[inline]
    fn next(&mut self, shapes: usize) -> usize {
        match self {
            Self::One => 0,
            Self::Imix(at) => {
                *at = if *at + 1 == shapes { 0 } else { *at + 1 };
                *at
            }
            Self::Random(state) => {
                // Knuth's MMIX generator; its high half is good enough to choose lengths.
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (((*state >> 32) * shapes as u64) >> 32) as usize
            }
        }
    }
}

/// The lengths that occur, and in what order.
fn lengths(sizes: Sizes, least: usize) -> (Vec<usize>, Order) {
    match sizes {
        Sizes::Fixed(len) => (vec![len], Order::One),
        Sizes::Imix => (IMIX.iter().map(|len| (*len).max(least)).collect(), Order::Imix(0)),
        Sizes::Range(first, last) => {
            ((first..=last.min(MAX_FRAME + 1)).collect(), Order::Random(1))
        }
    }
}

/// The headers of a frame of `len` bytes.
fn shape(headers: &UdpFrame, len: usize) -> Option<Shape> {
    let mut frame = vec![0; len.max(HEAD)];
    headers.write(&mut frame[..len])?;
    let head = *frame.first_chunk()?;
    Some(Shape { len, head })
}

/// The address `n` after `mac`, counting its last four octets.
fn offset_mac(mac: Mac, n: usize) -> Mac {
    let [a, b, rest @ ..] = mac.octets();
    let [c, d, e, f] = u32::from_be_bytes(rest).wrapping_add(n as u32).to_be_bytes();
    Mac::new([a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;
    use frame::{Layers, Network, Transport};
    use std::collections::{BTreeMap, BTreeSet};

    fn config() -> TrafficConfig {
        TrafficConfig {
            destination: Mac::local(2),
            source: Mac::local(0x10000),
            vlan: None,
            sizes: Sizes::Fixed(60),
            flows: 1,
            macs: 1,
            stream: 7,
        }
    }

    fn make(config: &TrafficConfig, n: usize) -> Vec<Vec<u8>> {
        let mut traffic = Traffic::new(config).unwrap();
        (0..n).map(|_| traffic.next(0, true).0.to_vec()).collect()
    }

    fn payload(frame: &[u8]) -> Probe {
        let layers = Layers::of(frame).unwrap();
        assert!(matches!(layers.network, Network::Ipv4(_)));
        assert!(matches!(layers.transport, Transport::Udp(_)));
        Probe::verify(layers.payload).unwrap()
    }

    #[test]
    fn every_frame_is_whole_and_numbered() {
        for sizes in ["60", "61", "1514", "imix", "60-200"] {
            let sizes = sizes.parse().unwrap();
            let frames = make(&TrafficConfig { sizes, ..config() }, 100);
            for (i, frame) in frames.iter().enumerate() {
                let probe = payload(frame);
                assert_eq!((probe.stream, probe.sequence), (7, i as u64), "{sizes:?}");
            }
        }
    }

    #[test]
    fn streams_take_turns_with_their_own_ports_and_addresses() {
        let mut seen = BTreeMap::<u16, (BTreeSet<Mac>, BTreeSet<u16>, Vec<u64>)>::new();
        for frame in make(&TrafficConfig { flows: 6, macs: 3, ..config() }, 60) {
            let layers = Layers::of(&frame).unwrap();
            let Transport::Udp(udp) = layers.transport else { panic!("not UDP") };
            let probe = payload(&frame);
            let of_stream = seen.entry(probe.stream).or_default();
            of_stream.0.insert(layers.ethernet.source());
            of_stream.1.insert(udp.source());
            of_stream.2.push(probe.sequence);
        }
        assert_eq!(seen.len(), 6);
        let macs: BTreeSet<_> = seen.values().flat_map(|s| s.0.iter()).collect();
        let ports: BTreeSet<_> = seen.values().flat_map(|s| s.1.iter()).collect();
        assert_eq!((macs.len(), ports.len()), (3, 6));
        for (macs, ports, sequence) in seen.values() {
            assert_eq!((macs.len(), ports.len()), (1, 1));
            assert_eq!(*sequence, (0..10).collect::<Vec<_>>());
        }
        let traffic = Traffic::new(&TrafficConfig { flows: 6, macs: 3, ..config() }).unwrap();
        assert_eq!(traffic.sources().count(), 3);
    }

    #[test]
    fn sizes_are_as_asked() {
        let count = |sizes, n| {
            let frames = make(&TrafficConfig { sizes, ..config() }, n);
            frames.iter().fold(BTreeMap::<usize, usize>::new(), |mut count, frame| {
                *count.entry(frame.len()).or_default() += 1;
                count
            })
        };
        assert_eq!(count(Sizes::Imix, 120), BTreeMap::from([(60, 70), (590, 40), (1514, 10)]));
        let range = count(Sizes::Range(100, 109), 1000);
        assert_eq!(range.keys().copied().collect::<Vec<_>>(), (100..110).collect::<Vec<_>>());
        assert!(range.values().all(|n| (50..150).contains(n)), "{range:?}");
    }

    #[test]
    fn only_headers_are_written_if_the_rest_is_not_touched() {
        let mut traffic =
            Traffic::new(&TrafficConfig { sizes: Sizes::Fixed(1514), ..config() }).unwrap();
        let (bytes, len) = traffic.next(5, false);
        assert_eq!((bytes.len(), len), (60, 1514));
        let probe = Probe::read(&bytes[UdpFrame::HEADERS..]).unwrap();
        assert!(!probe.filled && probe.time == 5);
    }

    #[test]
    fn tagged_frames_have_room_for_their_tag() {
        let tagged = TrafficConfig { vlan: VlanId::new(9), ..config() };
        assert_eq!(Traffic::new(&tagged).err(), Some(TrafficError::Length { least: 64 }));
        let frames = make(&TrafficConfig { sizes: Sizes::Fixed(64), ..tagged }, 2);
        assert_eq!(payload(&frames[1]).sequence, 1);
        let frames = make(&TrafficConfig { sizes: Sizes::Imix, ..tagged }, 12);
        assert_eq!(frames.iter().filter(|f| f.len() == 64).count(), 7);
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        for sizes in [Sizes::Fixed(59), Sizes::Fixed(MAX_FRAME + 1), Sizes::Range(100, 99)] {
            assert!(Traffic::new(&TrafficConfig { sizes, ..config() }).is_err(), "{sizes:?}");
        }
        let huge = Sizes::Range(60, usize::MAX);
        assert!(Traffic::new(&TrafficConfig { sizes: huge, ..config() }).is_err());
        for (flows, macs) in [(0, 1), (1, 0), (65_537, 1)] {
            assert!(Traffic::new(&TrafficConfig { flows, macs, ..config() }).is_err());
        }
        for bad in ["", "x", "64-", "-64", "1-2-3"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }
}
