//! Capture files: pcap and pcapng read for replay, pcapng written.

use std::borrow::Cow;
use std::io::{BufReader, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use pcap_file::{DataLink, PcapError, TsResolution};

/// A capture that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be opened or read.
    #[error("Cannot read the capture")]
    Read(#[from] std::io::Error),
    /// Neither pcap nor pcapng, or broken; says after how many frames.
    #[error("Not a pcap or pcapng capture, or broken after {frames} frames: {reason}")]
    Format {
        /// Frames that were read before.
        frames: usize,
        /// What is wrong.
        reason: String,
    },
    /// Not Ethernet.
    #[error("The capture is of link type {0:?}; only Ethernet can be sent")]
    LinkType(DataLink),
    /// No frame in it.
    #[error("The capture has no frames")]
    Empty,
}

/// The longest frame that is replayed, in bytes.
const MAX_FRAME: usize = 65_535;

/// The frames of a capture, in memory.
#[derive(Debug, Default)]
pub struct Capture {
    bytes: Vec<u8>,
    frames: Vec<(Duration, Range<usize>)>,
    /// Frames left out: the capture has only their beginning, or they are no Ethernet frames or
    /// longer than 65,535 bytes.
    pub left_out: usize,
}

impl Capture {
    /// Reads a whole file.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        Self::read(std::fs::File::open(path)?)
    }

    /// Reads all there is, in either format.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn read(from: impl Read) -> Result<Self, CaptureError> {
        let mut from = BufReader::new(from);
        let mut magic = [0; 4];
        from.read_exact(&mut magic).map_err(|_| CaptureError::Empty)?;
        let from = magic.chain(from);
        let mut capture = Self::default();
        // The section header block's type reads the same in both byte orders.
        if magic == [0x0a, 0x0d, 0x0d, 0x0a] {
            capture.read_pcapng(from)?;
        } else {
            capture.read_pcap(from)?;
        }
        if capture.frames.is_empty() { Err(CaptureError::Empty) } else { Ok(capture) }
    }

    /// How many frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// True without frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frame `i`: when it was captured, after the first one, and its bytes.
    #[must_use]
    pub fn frame(&self, i: usize) -> (Duration, &[u8]) {
        let ((first, _), (at, range)) = (&self.frames[0], &self.frames[i]);
        (at.saturating_sub(*first), &self.bytes[range.clone()])
    }

    /// From the first frame to the last.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.len().checked_sub(1).map_or(Duration::ZERO, |last| self.frame(last).0)
    }

    fn broken(&self, error: &PcapError) -> CaptureError {
        let reason = match error {
            PcapError::IoError(source) => source.to_string(),
            other => other.to_string(),
        };
        CaptureError::Format { frames: self.frames.len(), reason }
    }

    fn push(&mut self, at: Duration, original_len: u32, frame: &[u8]) {
        let whole = frame.len() as u64 >= u64::from(original_len);
        if !whole || !(frame::ETHERNET_HEADER..=MAX_FRAME).contains(&frame.len()) {
            self.left_out += 1;
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.frames.push((at, start..self.bytes.len()));
    }

    fn read_pcap(&mut self, from: impl Read) -> Result<(), CaptureError> {
        let mut reader = PcapReader::new(from).map_err(|e| self.broken(&e))?;
        let header = reader.header();
        if header.datalink != DataLink::ETHERNET {
            return Err(CaptureError::LinkType(header.datalink));
        }
        let unit = match header.ts_resolution {
            TsResolution::MicroSecond => 1000,
            TsResolution::NanoSecond => 1,
        };
        while let Some(packet) = reader.next_raw_packet() {
            let packet = packet.map_err(|e| self.broken(&e))?;
            let nanos = u64::from(packet.ts_frac) * unit;
            let at = Duration::from_secs(packet.ts_sec.into()) + Duration::from_nanos(nanos);
            self.push(at, packet.orig_len, &packet.data);
        }
        Ok(())
    }

    fn read_pcapng(&mut self, from: impl Read) -> Result<(), CaptureError> {
        let mut reader = PcapNgReader::new(from).map_err(|e| self.broken(&e))?;
        // What one unit of time is, by interface of the section.
        let mut interfaces = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.map_err(|e| self.broken(&e))? {
                Block::SectionHeader(_) => interfaces.clear(),
                Block::InterfaceDescription(interface) => {
                    if interface.linktype != DataLink::ETHERNET {
                        return Err(CaptureError::LinkType(interface.linktype));
                    }
                    interfaces.push(Resolution::of(&interface));
                }
                Block::EnhancedPacket(packet) => {
                    let Some(resolution) = interfaces.get(packet.interface_id as usize) else {
                        let e = PcapError::InvalidInterfaceId(packet.interface_id);
                        return Err(self.broken(&e));
                    };
                    // The reader takes every number for nanoseconds.
                    let at = resolution.time(packet.timestamp.as_nanos() as u64);
                    self.push(at, packet.original_len, &packet.data);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// What a pcapng timestamp counts (`if_tsresol`): a power of 10 or 2 of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resolution(u8);

impl Resolution {
    fn of(interface: &InterfaceDescriptionBlock<'_>) -> Self {
        let option = interface.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        Self(option.unwrap_or(6))
    }

    fn time(self, units: u64) -> Duration {
        let exponent = u32::from(self.0 & 0x7f);
        let base: u128 = if self.0 & 0x80 == 0 { 10 } else { 2 };
        let per_second = base.checked_pow(exponent).unwrap_or(u128::MAX);
        let (units, second) = (u128::from(units), 1_000_000_000u128);
        let nanos = units % per_second * second.min(u128::MAX / per_second) / per_second;
        Duration::from_secs((units / per_second) as u64) + Duration::from_nanos(nanos as u64)
    }
}

/// Which way a captured frame went, seen from the owner of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The port received it.
    Received,
    /// The port sent it.
    Sent,
}

/// Writes a pcapng file with nanosecond times, one interface.
pub struct CaptureWriter<W: Write> {
    writer: PcapNgWriter<W>,
    snaplen: usize,
}

impl<W: Write> CaptureWriter<W> {
    /// Starts a file: what port it is of, and how many bytes of each frame are kept.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(to: W, port: &str, snaplen: u32) -> std::io::Result<Self> {
        let mut writer = PcapNgWriter::new(to).map_err(into_io)?;
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, snaplen);
        interface.options = vec![
            InterfaceDescriptionOption::IfName(Cow::Owned(port.to_owned())),
            InterfaceDescriptionOption::IfTsResol(9),
        ];
        writer.write_pcapng_block(interface).map_err(into_io)?;
        Ok(Self { writer, snaplen: snaplen as usize })
    }

    /// Writes a frame of `len` bytes whose first ones are `bytes`, captured at `at` since 1970.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(
        &mut self,
        at: Duration,
        direction: Direction,
        len: usize,
        bytes: &[u8],
    ) -> std::io::Result<()> {
        // Bits 0 and 1 of epb_flags: 01 inbound, 10 outbound.
        let flags = match direction {
            Direction::Received => 1,
            Direction::Sent => 2,
        };
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: at,
            original_len: len as u32,
            data: Cow::Borrowed(&bytes[..bytes.len().min(self.snaplen)]),
            options: vec![EnhancedPacketOption::Flags(flags)],
        };
        self.writer.write_pcapng_block(packet).map(drop).map_err(into_io)
    }

    /// Hands what was written on to its reader.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.writer.get_mut().flush()
    }
}

impl<W: Write> std::fmt::Debug for CaptureWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CaptureWriter({} bytes a frame)", self.snaplen)
    }
}

fn into_io(error: PcapError) -> std::io::Error {
    match error {
        PcapError::IoError(source) => source,
        other => std::io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
    use proptest::prelude::*;

    const START: Duration = Duration::from_secs(1_700_000_000);

    fn pcapng(frames: &[(u64, usize)]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = CaptureWriter::new(&mut file, "vale0:p1", 9000).unwrap();
        for (at, len) in frames {
            let at = START + Duration::from_nanos(*at);
            writer.write(at, Direction::Sent, *len, &vec![*len as u8; *len]).unwrap();
        }
        file
    }

    fn times(capture: &Capture) -> Vec<u64> {
        (0..capture.len()).map(|i| capture.frame(i).0.as_nanos() as u64).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let capture = Capture::read(&pcapng(&[(0, 60), (7, 61), (1_000_000_007, 1514)])[..]);
        let capture = capture.unwrap();
        assert_eq!(times(&capture), [0, 7, 1_000_000_007]);
        assert_eq!(capture.frame(1).1, [61; 61]);
        assert_eq!(capture.duration().as_nanos(), 1_000_000_007);
    }

    #[test]
    fn frames_cut_by_the_snap_length_are_marked_and_not_replayed() {
        let mut file = Vec::new();
        let mut writer = CaptureWriter::new(&mut file, "x", 64).unwrap();
        writer.write(START, Direction::Received, 1514, &[1; 1514]).unwrap();
        writer.write(START, Direction::Received, 60, &[1; 60]).unwrap();
        let capture = Capture::read(&file[..]).unwrap();
        assert_eq!((capture.len(), capture.left_out), (1, 1));
    }

    #[test]
    fn a_classic_file_is_read_in_both_resolutions() {
        for (ts_resolution, second) in
            [(TsResolution::MicroSecond, 5000), (TsResolution::NanoSecond, 5432)]
        {
            let mut file = Vec::new();
            let header = PcapHeader { ts_resolution, ..PcapHeader::default() };
            let mut writer = PcapWriter::with_header(&mut file, header).unwrap();
            for at in [0, 5432] {
                let at = START + Duration::from_nanos(at);
                writer.write_packet(&PcapPacket::new(at, 60, &[3; 60])).unwrap();
            }
            assert_eq!(times(&Capture::read(&file[..]).unwrap()), [0, second]);
        }
    }

    #[test]
    fn times_are_read_in_the_interface_s_resolution() {
        assert_eq!(Resolution(6).time(1_500_000), Duration::from_millis(1500));
        assert_eq!(Resolution(9).time(1), Duration::from_nanos(1));
        assert_eq!(Resolution(0).time(3), Duration::from_secs(3));
        assert_eq!(Resolution(0x80 | 10).time(512), Duration::from_millis(500));
        for resolution in 0..=255 {
            let _ = Resolution(resolution).time(u64::MAX);
        }
    }

    #[test]
    fn broken_files_are_refused_with_a_reason() {
        assert!(matches!(Capture::read(&b""[..]), Err(CaptureError::Empty)));
        assert!(matches!(Capture::read(&b"hello world"[..]), Err(CaptureError::Format { .. })));
        let mut file = pcapng(&[(0, 60), (1, 60)]);
        file.truncate(file.len() - 10);
        let error = Capture::read(&file[..]).unwrap_err();
        assert!(matches!(error, CaptureError::Format { frames: 1, .. }), "{error}");
        assert!(matches!(Capture::read(&pcapng(&[])[..]), Err(CaptureError::Empty)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_are_read_or_refused(
            classic in any::<bool>(),
            noise in proptest::collection::vec(any::<u8>(), 0..100),
            at in 0usize..400,
        ) {
            let mut file = pcapng(&[(0, 60), (1, 60), (2, 61)]);
            if classic {
                file = b"\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0\0\0\0\0\xff\xff\0\0\x01\0\0\0".into();
            }
            let at = at.min(file.len());
            file.splice(at.., noise);
            let _ = Capture::read(&file[..]);
        }
    }
}
