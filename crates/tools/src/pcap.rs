//! Capture files: read for replay, as the data process reads them; pcapng written.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::time::Duration;

use dataplane::attach::buffered::pcap::{PcapError as ReadError, Recording, parse};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

/// Reads a whole capture, in either format, of any size, from a file or a pipe.
///
/// # Errors
/// It cannot be read, is broken or not of Ethernet, or has no whole frame.
pub fn read(mut from: impl Read) -> Result<Recording, ReadError> {
    let mut file = Vec::new();
    from.read_to_end(&mut file).map_err(ReadError::File)?;
    parse(&file)
}

/// Which way a captured frame went, seen from the owner of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The port received it.
    Received,
    /// The port sent it.
    Sent,
}

/// A frame that was seen at a port.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// When, since 1970.
    pub at: Duration,
    /// The direction that the frame went.
    pub direction: Direction,
    /// The frame's length in bytes.
    pub len: usize,
    /// The frame's first bytes, as many as are available.
    pub bytes: &'a [u8],
    /// A comment on the frame, such as why it was dropped.
    pub comment: Option<&'a str>,
}

/// Where captured frames go.
pub trait Output {
    /// Writes a captured frame.
    ///
    /// # Errors
    /// If it cannot be written.
    fn frame(&mut self, frame: &Captured<'_>) -> std::io::Result<()>;

    /// Flushes what was written.
    ///
    /// # Errors
    /// If it cannot be written.
    fn flush(&mut self) -> std::io::Result<()>;

    /// Returns true if the sink takes no frame of this time or later.
    fn is_complete(&self, _at: Duration) -> bool {
        false
    }
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

    /// The writer that gets the file's bytes.
    #[must_use]
    pub fn get_ref(&self) -> &W {
        self.writer.get_ref()
    }
}

impl<W: Write> Output for CaptureWriter<W> {
    fn frame(&mut self, frame: &Captured<'_>) -> std::io::Result<()> {
        // Bits 0 and 1 of epb_flags: 01 inbound, 10 outbound.
        let flags = match frame.direction {
            Direction::Received => 1,
            Direction::Sent => 2,
        };
        let comment = frame.comment.into_iter();
        let comment = comment.map(|text| EnhancedPacketOption::Comment(text.into()));
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: frame.at,
            original_len: frame.len as u32,
            data: Cow::Borrowed(&frame.bytes[..frame.bytes.len().min(self.snaplen)]),
            options: comment.chain([EnhancedPacketOption::Flags(flags)]).collect(),
        };
        self.writer.write_pcapng_block(packet).map(drop).map_err(into_io)
    }

    fn flush(&mut self) -> std::io::Result<()> {
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

    const START: Duration = Duration::from_secs(1_700_000_000);

    #[test]
    fn what_is_written_is_read() {
        let mut file = Vec::new();
        let mut writer = CaptureWriter::new(&mut file, "vale0:p1", 9000).unwrap();
        for (at, len) in [(0, 60), (7, 61), (1_000_000_007, 1514)] {
            let at = START + Duration::from_nanos(at);
            let bytes = &vec![len as u8; len];
            writer
                .frame(&Captured { at, direction: Direction::Sent, len, bytes, comment: None })
                .unwrap();
        }
        let recording = read(&file[..]).unwrap();
        let at = |i| recording.frame(i).0.as_nanos();
        assert_eq!([at(0), at(1), at(2)], [0, 7, 1_000_000_007]);
        assert_eq!(recording.frame(1).1, [61; 61]);
        assert_eq!(recording.duration().as_nanos(), 1_000_000_007);
    }

    #[test]
    fn frames_cut_by_the_snap_length_are_marked_and_not_replayed() {
        let mut file = Vec::new();
        let mut writer = CaptureWriter::new(&mut file, "x", 64).unwrap();
        for len in [1514, 60] {
            let (at, direction, bytes) = (START, Direction::Received, &vec![1; len]);
            writer.frame(&Captured { at, direction, len, bytes, comment: None }).unwrap();
        }
        let recording = read(&file[..]).unwrap();
        assert_eq!((recording.len(), recording.skipped()), (1, 1));
    }
}
