//! Which format a file has.

use super::blocks::SECTION_HEADER;
use super::recording::Recording;
use super::{CaptureError, ng, old};

/// Reads a pcap or pcapng file of Ethernet frames, as far as it goes. Its memory is proportional
/// to the file's size.
///
/// # Errors
/// [`CaptureError`] if the file is no capture, not of Ethernet, or has no complete frame.
pub fn parse(file: &[u8]) -> Result<Recording, CaptureError> {
    let mut recording = Recording::default();
    let read = match file {
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x04, 0x22, 0x4d, 0x18, ..] => {
            Err("it is compressed; unpack it first")
        }
        file if file.starts_with(&SECTION_HEADER.to_be_bytes()) => ng::read(file, &mut recording),
        file => old::read(file, &mut recording),
    };
    read.map_err(|reason| CaptureError::Unknown { reason })?;
    recording.finish()
}

/// True if a file of this head may be a capture: pcap of any variant, or pcapng with its byte
/// order. 12 bytes are enough.
#[must_use]
pub fn is_capture(head: &[u8]) -> bool {
    if head.starts_with(&SECTION_HEADER.to_be_bytes()) {
        return matches!(
            head.get(8..12),
            Some([0x1a, 0x2b, 0x3c, 0x4d] | [0x4d, 0x3c, 0x2b, 0x1a])
        );
    }
    old::has_magic(head)
}
