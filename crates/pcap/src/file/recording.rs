//! The frames of a capture, in memory.

use std::time::Duration;

use super::clock::Clock;
use super::{BrokenEnd, CaptureError, ETHERNET, ETHERNET_HEADER, LeftOut, MAX_FRAME};

/// The whole Ethernet frames of a capture.
#[derive(Debug, Default)]
pub struct Recording {
    /// All frames, back to back.
    bytes: Vec<u8>,
    frames: Vec<Recorded>,
    clock: Clock,
    left_out: LeftOut,
    /// The first link type that is not Ethernet's, of a frame or a whole file.
    other_link: Option<u32>,
}

/// One frame of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Nanoseconds since the first frame; never less than those of the previous frame.
    pub at: u64,
    /// Where the frame's bytes end and those of the next frame begin.
    pub end: usize,
}

/// A packet of a file, as its reader found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    /// The link type; `None` for an interface that the file does not describe.
    pub link: Option<u32>,
    /// Nanoseconds since 1970, if the file knows.
    pub time: Option<u64>,
    /// The bytes on the wire.
    pub len: u32,
    /// The bytes of the frame check sequence at the end.
    pub fcs: u8,
    pub bytes: &'a [u8],
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

    /// What the file has and the recording lacks.
    #[must_use]
    pub const fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// The time from the first frame to the last.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.frames.last().map_or(0, |frame| frame.at))
    }

    /// The frames' bytes, back to back, and the end and the time of each frame.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, Vec<Recorded>) {
        (self.bytes, self.frames)
    }

    /// Keeps a packet, or counts why not.
    pub(super) fn push(&mut self, packet: Packet<'_>) {
        let Packet { link, time, len, fcs, bytes } = packet;
        // Ports send frames without the check sequence.
        let fcs = if bytes.len() >= len as usize && fcs == 4 { 4 } else { 0 };
        let frame = &bytes[..bytes.len().saturating_sub(fcs)];
        let reason = match link {
            None => &mut self.left_out.no_interface,
            Some(link) if link != ETHERNET => {
                self.other_link.get_or_insert(link);
                &mut self.left_out.other_links
            }
            _ if bytes.len() < len as usize => &mut self.left_out.cut_short,
            _ if frame.len() < ETHERNET_HEADER => &mut self.left_out.too_short,
            _ if frame.len() > MAX_FRAME => &mut self.left_out.too_long,
            _ => {
                let at = self.clock.due(time);
                self.bytes.extend_from_slice(frame);
                return self.frames.push(Recorded { at, end: self.bytes.len() });
            }
        };
        *reason += 1;
    }

    /// Ends the recording: the file has `bytes` more from offset `at` on, which say nothing.
    pub(super) fn end(&mut self, at: usize, bytes: usize, reason: &'static str) {
        self.left_out.end = Some(BrokenEnd { at: at as u64, bytes: bytes as u64, reason });
    }

    /// The recording of a file that was read to its end.
    ///
    /// # Errors
    /// It has no frame.
    pub(super) fn finish(mut self) -> Result<Self, CaptureError> {
        self.left_out.clock_jumps = self.clock.jumps();
        match self.other_link {
            _ if !self.is_empty() => Ok(self),
            Some(link) if self.left_out.frames() == self.left_out.other_links => {
                Err(CaptureError::LinkType(link))
            }
            _ => Err(CaptureError::Empty(self.left_out)),
        }
    }
}
