//! The frames of a pcap or pcapng file, in memory. The file's author is not trusted.
//!
//! pcap: draft-ietf-opsawg-pcap. pcapng: draft-ietf-opsawg-pcapng.

use std::time::Duration;

use pcap_file::pcap::PcapParser;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgParser};
use pcap_file::{DataLink, Endianness, TsResolution};

/// The size in bytes of the largest file that can be attached.
pub const MAX_FILE: usize = 256 << 20;
/// Bytes of the longest frame.
const MAX_FRAME: usize = 65_535;
/// The size in bytes of the largest packet block: a frame of the largest usual snap length, with
/// options.
const MAX_PACKET_BLOCK: usize = 1 << 20;
/// The maximum number of bytes of all section headers and interface descriptions together: a small
/// option takes much more memory when parsed.
const MAX_DESCRIPTIONS: usize = 1 << 20;

/// Block types (pcapng, section 11.1).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// The reason why a capture file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PcapError {
    /// The file cannot be read, written or inspected.
    #[error("Cannot use the capture file")]
    File(#[source] std::io::Error),
    /// The file is not a regular file, but a pipe or a terminal, for example.
    #[error("Not an ordinary file; for pipes use `toklat gen --pcap` and `toklat cap`")]
    NotAFile,
    /// More than [`MAX_FILE`] bytes.
    #[error(
        "The capture has more than {} MiB; use `toklat gen --pcap` for more",
        MAX_FILE >> 20
    )]
    TooLarge,
    /// The file is neither pcap nor pcapng, or is malformed.
    #[error("Not a pcap or pcapng capture, or broken after {frames} frames: {reason}")]
    Format {
        /// How many frames were read before the error.
        frames: usize,
        /// The mistake in the file.
        reason: String,
    },
    /// Not Ethernet.
    #[error("The capture is of link type {0:?}; only Ethernet can be sent")]
    LinkType(DataLink),
    /// The file holds no whole frame.
    #[error("The capture has no whole frames ({skipped} are cut short)")]
    Empty {
        /// The number of truncated frames.
        skipped: usize,
    },
}

/// The whole frames of a capture.
#[derive(Debug, Default)]
pub struct Recording {
    /// All frames, back to back.
    bytes: Vec<u8>,
    frames: Vec<Recorded>,
    /// When the first frame was captured, in nanoseconds since 1970.
    first: u64,
    skipped: usize,
}

/// One frame of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Nanoseconds since the first frame; never less than those of the previous frame.
    pub at: u64,
    /// Where the frame's bytes end and those of the next frame begin.
    pub end: usize,
}

impl Recording {
    /// Returns the number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// True without frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frame `i`, which must be below [`len`](Self::len): its time since the first frame, and its
    /// bytes. Times never decrease.
    #[must_use]
    pub fn frame(&self, i: usize) -> (Duration, &[u8]) {
        let start = i.checked_sub(1).map_or(0, |before| self.frames[before].end);
        let Recorded { at, end } = self.frames[i];
        (Duration::from_nanos(at), &self.bytes[start..end])
    }

    /// The number of frames that were skipped: truncated, without a time, too short for Ethernet,
    /// or longer than 65,535 bytes.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// The time from the first frame to the last.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.frames.last().map_or(0, |frame| frame.at))
    }

    /// The frames' bytes, back to back, and the end and the time of each frame.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<Recorded>) {
        (self.bytes, self.frames)
    }

    fn push(&mut self, at: u64, original_len: u32, frame: &[u8]) {
        let whole = frame.len() >= original_len as usize;
        if !whole || !(frame::ETHERNET_HEADER..=MAX_FRAME).contains(&frame.len()) {
            self.skipped += 1;
            return;
        }
        if self.frames.is_empty() {
            self.first = at;
        }
        let before = self.frames.last().map_or(0, |frame| frame.at);
        let at = at.saturating_sub(self.first).max(before);
        self.bytes.extend_from_slice(frame);
        self.frames.push(Recorded { at, end: self.bytes.len() });
    }

    fn broken(&self, reason: &dyn std::fmt::Display) -> PcapError {
        PcapError::Format { frames: self.frames.len(), reason: reason.to_string() }
    }

    fn read_pcap(&mut self, file: &[u8]) -> Result<(), PcapError> {
        let (mut rest, parser) = PcapParser::new(file).map_err(|e| self.broken(&e))?;
        let header = parser.header();
        if header.datalink != DataLink::ETHERNET {
            return Err(PcapError::LinkType(header.datalink));
        }
        let unit = match header.ts_resolution {
            TsResolution::MicroSecond => 1000,
            TsResolution::NanoSecond => 1,
        };
        while !rest.is_empty() {
            let (after, packet) = parser.next_raw_packet(rest).map_err(|e| self.broken(&e))?;
            let at = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * unit;
            self.push(at, packet.orig_len, &packet.data);
            rest = after;
        }
        Ok(())
    }

    fn read_pcapng(&mut self, file: &[u8]) -> Result<(), PcapError> {
        let mut descriptions = MAX_DESCRIPTIONS;
        self.admit(file, Endianness::Big, &mut descriptions)?;
        let (mut rest, mut parser) = PcapNgParser::new(file).map_err(|e| self.broken(&e))?;
        while !rest.is_empty() {
            let kind = self.admit(rest, parser.section().endianness, &mut descriptions)?;
            // Other blocks are skipped.
            rest = match kind {
                INTERFACE_DESCRIPTION | ENHANCED_PACKET => {
                    let (after, block) = parser.next_block(rest).map_err(|e| self.broken(&e))?;
                    self.take(&block, &parser)?;
                    after
                }
                kind => {
                    self.skipped += usize::from(matches!(kind, SIMPLE_PACKET | OBSOLETE_PACKET));
                    parser.next_raw_block(rest).map_err(|e| self.broken(&e))?.0
                }
            };
        }
        Ok(())
    }

    /// Returns the type of the block at the start of `rest`, if the block is small enough to parse.
    fn admit(
        &self,
        rest: &[u8],
        endianness: Endianness,
        descriptions: &mut usize,
    ) -> Result<u32, PcapError> {
        let word = |at: usize| rest.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        let [kind, len, magic] =
            [word(0), word(4), word(8)].map(|word: Option<[u8; 4]>| word.unwrap_or_default());
        let number = |bytes: [u8; 4], endianness| match endianness {
            Endianness::Big => u32::from_be_bytes(bytes),
            Endianness::Little => u32::from_le_bytes(bytes),
        };
        let kind = number(kind, endianness);
        let endianness = match kind {
            SECTION_HEADER if magic == [0x1a, 0x2b, 0x3c, 0x4d] => Endianness::Big,
            SECTION_HEADER => Endianness::Little,
            _ => endianness,
        };
        let len = number(len, endianness) as usize;
        match kind {
            SECTION_HEADER | INTERFACE_DESCRIPTION => {
                let left = descriptions.checked_sub(len);
                *descriptions = left.ok_or_else(|| self.broken(&"too many descriptions"))?;
            }
            ENHANCED_PACKET if len > MAX_PACKET_BLOCK => {
                return Err(self.broken(&"a packet of more than 1 MiB"));
            }
            _ => (),
        }
        Ok(kind)
    }

    fn take(&mut self, block: &Block<'_>, parser: &PcapNgParser) -> Result<(), PcapError> {
        match block {
            Block::InterfaceDescription(interface) if interface.linktype != DataLink::ETHERNET => {
                Err(PcapError::LinkType(interface.linktype))
            }
            Block::EnhancedPacket(packet) => {
                let Some(interface) = parser.packet_interface(packet) else {
                    return Err(self.broken(&format!("no interface {}", packet.interface_id)));
                };
                let resolution = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
                    _ => None,
                });
                // The parser takes all timestamps for nanoseconds.
                let units = packet.timestamp.as_nanos() as u64;
                let at = nanoseconds(units, resolution.unwrap_or(6));
                self.push(at, packet.original_len, &packet.data);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Converts `units` to nanoseconds by `if_tsresol`: a unit is a negative power of 10 of a second,
/// or with the highest bit set, of 2 (pcapng, section 4.2).
fn nanoseconds(units: u64, resolution: u8) -> u64 {
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let per_second = base.checked_pow(u32::from(resolution & 0x7f)).unwrap_or(u128::MAX);
    let time = u128::from(units) * 1_000_000_000 / per_second;
    u64::try_from(time).unwrap_or(u64::MAX)
}

/// Parses a pcap or pcapng file of Ethernet frames. Its memory is proportional to the file's size.
///
/// # Errors
/// [`PcapError`] if the file is malformed, not of Ethernet, or has no complete frame.
pub fn parse(file: &[u8]) -> Result<Recording, PcapError> {
    let mut recording = Recording::default();
    if file.starts_with(&SECTION_HEADER.to_be_bytes()) {
        recording.read_pcapng(file)?;
    } else {
        recording.read_pcap(file)?;
    }
    if recording.is_empty() {
        return Err(PcapError::Empty { skipped: recording.skipped });
    }
    Ok(recording)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
    use proptest::prelude::*;

    const START: Duration = Duration::from_secs(1_700_000_000);

    fn pcap(frames: &[(u64, usize)]) -> Vec<u8> {
        let header =
            PcapHeader { ts_resolution: TsResolution::NanoSecond, ..PcapHeader::default() };
        let mut file = Vec::new();
        let mut writer = PcapWriter::with_header(&mut file, header).unwrap();
        for (at, len) in frames {
            let at = START + Duration::from_nanos(*at);
            writer
                .write_packet(&PcapPacket::new(at, *len as u32, &vec![*len as u8; *len]))
                .unwrap();
        }
        file
    }

    fn pcapng(endianness: Endianness, resolution: Option<u8>, frames: &[(u64, usize)]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = PcapNgWriter::with_endianness(&mut file, endianness).unwrap();
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        interface.options.extend(resolution.map(InterfaceDescriptionOption::IfTsResol));
        writer.write_pcapng_block(interface).unwrap();
        for (ticks, len) in frames {
            let packet = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_nanos(*ticks),
                original_len: *len as u32,
                data: vec![*len as u8; *len].into(),
                options: Vec::new(),
            };
            writer.write_pcapng_block(packet).unwrap();
        }
        file
    }

    /// The times and lengths of the frames. Checks that each byte of a frame is its length.
    fn frames(file: &[u8]) -> Vec<(u64, usize)> {
        let recording = parse(file).unwrap();
        let frame = |i| {
            let (at, bytes) = recording.frame(i);
            assert!(bytes.iter().all(|byte| usize::from(*byte) == bytes.len()));
            (at.as_nanos() as u64, bytes.len())
        };
        (0..recording.len()).map(frame).collect()
    }

    #[test]
    fn both_formats_give_frames_and_times() {
        assert_eq!(frames(&pcap(&[(7, 60), (8, 61)])), [(0, 60), (1, 61)]);
        for endianness in [Endianness::Big, Endianness::Little] {
            let micro = pcapng(endianness, None, &[(7, 60), (8, 61)]);
            assert_eq!(frames(&micro), [(0, 60), (1000, 61)], "microseconds by default");
            let nano = pcapng(endianness, Some(9), &[(7, 60), (8, 61)]);
            assert_eq!(frames(&nano), [(0, 60), (1, 61)]);
            let mut twice = nano.clone();
            twice.extend(pcapng(Endianness::Big, Some(9), &[(9, 62)]));
            assert_eq!(frames(&twice), [(0, 60), (1, 61), (2, 62)], "two sections");
        }
    }

    #[test]
    fn a_classic_file_counts_micro_or_nanoseconds() {
        for (ts_resolution, second) in
            [(TsResolution::MicroSecond, 5000), (TsResolution::NanoSecond, 5432)]
        {
            let mut file = Vec::new();
            let header = PcapHeader { ts_resolution, ..PcapHeader::default() };
            let mut writer = PcapWriter::with_header(&mut file, header).unwrap();
            for at in [0, 5432] {
                let at = START + Duration::from_nanos(at);
                writer.write_packet(&PcapPacket::new(at, 60, &[60; 60])).unwrap();
            }
            assert_eq!(frames(&file), [(0, 60), (second, 60)]);
        }
    }

    #[test]
    fn time_does_not_run_backwards() {
        assert_eq!(
            frames(&pcap(&[(50, 60), (90, 61), (20, 62), (95, 63)])),
            [(0, 60), (40, 61), (40, 62), (45, 63)]
        );
    }

    #[test]
    fn frames_cut_short_are_left_out_and_counted() {
        let mut file = pcap(&[(0, 60), (1, 60)]);
        // Raises the original length of the first frame, so that the frame counts as truncated.
        file[24 + 12..24 + 16].copy_from_slice(&1500u32.to_be_bytes());
        let recording = parse(&file).unwrap();
        assert_eq!((recording.len(), recording.skipped()), (1, 1));
        assert!(matches!(parse(&pcap(&[(0, 13)])), Err(PcapError::Empty { skipped: 1 })));
    }

    #[test]
    fn broken_files_are_refused_with_a_reason() {
        assert!(matches!(parse(b""), Err(PcapError::Format { frames: 0, .. })));
        let mut file = pcap(&[(0, 60), (1, 60)]);
        file.pop();
        assert!(matches!(parse(&file), Err(PcapError::Format { frames: 1, .. })));
        let mut huge = pcapng(Endianness::Little, None, &[(0, 60)]);
        let at = huge.len() - (32 + 60);
        huge[at + 4..at + 8].copy_from_slice(&0xffff_fff0u32.to_le_bytes());
        assert!(matches!(parse(&huge), Err(PcapError::Format { .. })));
    }

    #[test]
    fn options_cannot_fill_the_memory() {
        // An interface description with 2 MiB of empty options.
        let mut file = pcapng(Endianness::Little, None, &[]);
        let len = (2 << 20) + 20u32;
        for word in [1, len, 1, 0] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0x99, 0x99, 0, 0].repeat(1 << 19));
        file.extend(len.to_le_bytes());
        let error = parse(&file).unwrap_err().to_string();
        assert!(error.contains("too many descriptions"), "{error}");
    }

    #[test]
    fn resolutions_are_powers_of_ten_or_two() {
        assert_eq!(nanoseconds(1_500_000, 6), 1_500_000_000);
        assert_eq!(nanoseconds(1, 9), 1);
        assert_eq!(nanoseconds(3, 0), 3_000_000_000);
        assert_eq!(nanoseconds(512, 0x80 | 10), 500_000_000);
        for resolution in 0..=255 {
            let _ = nanoseconds(u64::MAX, resolution);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_are_read_or_refused(
            which in 0..3,
            noise in proptest::collection::vec((0usize..400, any::<u8>()), 0..8),
            cut in 0usize..400,
        ) {
            let mut file = match which {
                0 => pcap(&[(0, 60), (1, 60), (2, 61)]),
                1 => pcapng(Endianness::Big, Some(9), &[(0, 60), (1, 60), (2, 61)]),
                _ => pcapng(Endianness::Little, None, &[(0, 60), (1, 60), (2, 61)]),
            };
            for (at, byte) in noise {
                let at = at % file.len();
                file[at] = byte;
            }
            file.truncate(cut.max(24));
            if let Ok(recording) = parse(&file) {
                let len: usize = (0..recording.len()).map(|i| recording.frame(i).1.len()).sum();
                prop_assert_eq!(len, recording.bytes.len());
                prop_assert!(recording.frames.is_sorted_by_key(|frame| frame.at));
            }
        }
    }
}
