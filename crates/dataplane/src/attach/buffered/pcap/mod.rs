//! Capture files as ports: a recording to play back, or a file that records all frames.

mod read;
mod write;

pub use read::{PcapReadConfig, attach as attach_read};
pub use write::{PcapWriteConfig, attach as attach_write};

use std::os::fd::OwnedFd;

use ::pcap::file::CaptureError;
use rustix::fs::FileType;
use turn::attach::AttachError;

/// The size in bytes of the largest file that can be attached.
pub const MAX_FILE: usize = 256 << 20;

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
    /// The file has nothing to replay.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

impl From<PcapError> for AttachError {
    fn from(why: PcapError) -> Self {
        Self::Part { what: "The capture file", source: Box::new(why) }
    }
}

/// Refuses anything but a regular file: a pipe or a terminal could block the control thread.
fn ordinary(file: &OwnedFd) -> Result<usize, PcapError> {
    let stat = rustix::fs::fstat(file).map_err(|e| PcapError::File(e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(PcapError::NotAFile);
    }
    Ok(usize::try_from(stat.st_size).unwrap_or(usize::MAX))
}
