//! Capture files as ports: a recording to play back, or a file that records all frames.

mod read;
mod recording;
mod write;

pub use read::{PcapReadConfig, attach as attach_read};
pub use recording::{MAX_FILE, PcapError, Recording, parse};
pub use write::{PcapWriteConfig, attach as attach_write};

use std::os::fd::OwnedFd;

use rustix::fs::FileType;
use turn::attach::AttachError;

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
