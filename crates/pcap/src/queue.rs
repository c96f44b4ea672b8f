//! The frames of one reader, copied one after the other.

use std::time::Duration;

use netring::Received;

/// A frame as a reader gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kept bytes: at most the reader's snapshot length.
    pub bytes: &'a [u8],
    /// Original length in bytes.
    pub len: u32,
    /// The time at which the frame crossed the switch (monitors), or was taken from the port, since
    /// 1970.
    pub time: Duration,
    /// The port has sent the frame: only monitors have such frames.
    pub sent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    kept: u32,
    len: u32,
    time: Duration,
    sent: bool,
}

/// Frames in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct FrameQueue {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    next: usize,
}

impl FrameQueue {
    /// Returns the memory that its frames take, in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }

    pub fn is_empty(&self) -> bool {
        self.next == self.entries.len()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.next = 0;
    }

    /// Appends a copy of a frame, truncated to `most` bytes.
    pub fn push(&mut self, frame: &Received<'_>, most: usize, time: Duration) {
        let (start, kept) = (self.bytes.len(), frame.len().min(most));
        self.bytes.resize(start + kept, 0);
        let kept = frame.copy_out(&mut self.bytes[start..]);
        self.bytes.truncate(start + kept);
        let (kept, len, sent) = (kept as u32, frame.len() as u32, frame.was_sent());
        self.entries.push(Entry { start, kept, len, time, sent });
    }

    /// Appends a copy of a frame from another queue.
    pub fn put(&mut self, frame: Frame<'_>) {
        let Frame { bytes, len, time, sent } = frame;
        let (start, kept) = (self.bytes.len(), bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
        self.entries.push(Entry { start, kept, len, time, sent });
    }

    /// Takes the next frame out of the queue.
    pub fn pop(&mut self) -> Option<Frame<'_>> {
        let entry = *self.entries.get(self.next)?;
        self.next += 1;
        let bytes = self.bytes.get(entry.start..entry.start + entry.kept as usize)?;
        let Entry { len, time, sent, .. } = entry;
        Some(Frame { bytes, len, time, sent })
    }
}
