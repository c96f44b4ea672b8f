//! Captures: a file read for replay, as the data process reads it; pcapng written.

use std::io::{Read, Write};
use std::time::Duration;

use ::pcap::file::{self, CaptureError, Recording};
pub use ::pcap::file::{Captured, Direction};

/// The reason why a capture cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("Cannot read the capture")]
    File(#[source] std::io::Error),
    /// The file has nothing to replay.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// Reads a whole capture, in either format, of any size, from a file or a pipe.
///
/// # Errors
/// It cannot be read, is no capture or not of Ethernet, or has no whole frame.
pub fn read(mut from: impl Read) -> Result<Recording, ReadError> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).map_err(ReadError::File)?;
    Ok(file::parse(&bytes)?)
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

/// Writes a pcapng file with nanosecond times, an interface for each port.
pub struct CaptureWriter<W: Write> {
    to: W,
    /// The block that is being made.
    block: Vec<u8>,
    /// The interfaces' names.
    ports: Vec<String>,
    snaplen: u32,
}

impl<W: Write> CaptureWriter<W> {
    /// Starts a file: what port it is of, if that is known, and how many bytes of each frame are
    /// kept.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(mut to: W, port: &str, snaplen: u32) -> std::io::Result<Self> {
        let mut block = Vec::new();
        file::section(&mut block);
        to.write_all(&block)?;
        let mut new = Self { to, block, ports: Vec::new(), snaplen };
        if !port.is_empty() {
            new.interface(port)?;
        }
        Ok(new)
    }

    /// The number of a port's interface, which is described before its first frame.
    fn interface(&mut self, port: &str) -> std::io::Result<u32> {
        let known = self.ports.iter().position(|known| known == port);
        if let Some(known) = known {
            return Ok(known as u32);
        }
        self.block.clear();
        file::interface(&mut self.block, Some(port), self.snaplen);
        self.to.write_all(&self.block)?;
        self.ports.push(port.to_owned());
        Ok(self.ports.len() as u32 - 1)
    }

    /// The writer that gets the file's bytes.
    #[must_use]
    pub const fn get_ref(&self) -> &W {
        &self.to
    }
}

impl<W: Write> Output for CaptureWriter<W> {
    fn frame(&mut self, frame: &Captured<'_>) -> std::io::Result<()> {
        let interface = self.interface(frame.port)?;
        self.block.clear();
        file::packet(&mut self.block, interface, frame, self.snaplen as usize);
        self.to.write_all(&self.block)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

impl<W: Write> std::fmt::Debug for CaptureWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CaptureWriter({} bytes a frame)", self.snaplen)
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
                .frame(&Captured {
                    at,
                    port: "x",
                    direction: Direction::Sent,
                    len,
                    bytes,
                    comment: None,
                })
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
            writer
                .frame(&Captured { at, port: "x", direction, len, bytes, comment: None })
                .unwrap();
        }
        let recording = read(&file[..]).unwrap();
        assert_eq!((recording.len(), recording.left_out().cut_short), (1, 1));
    }
}
