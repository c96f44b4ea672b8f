//! Consecutive TCP segments, coalesced into one long frame. Receivers that accept segmentation
//! requests get it whole; for others the switch segments it again.

use frame::Run;
use port::{MAX_SEGS, Scratch};
use shmem::Bytes;

use super::socket::{Inbox, Part};

/// The maximum number of segments in a frame: one less than a scratch with room takes, so that
/// another frame fits after it.
const MAX_PARTS: usize = MAX_SEGS - 1;

/// A frame that may be extended.
pub(super) struct Coalescer {
    /// The parts of the frame: the first frame, then more payload.
    parts: [Part; MAX_PARTS],
    count: usize,
    run: Option<Run>,
    /// The peer that sent the frame.
    via: u16,
}

impl Coalescer {
    pub fn new() -> Self {
        Self { parts: [Part::default(); MAX_PARTS], count: 0, run: None, via: 0 }
    }

    /// True if a frame waits to be extended.
    pub const fn is_open(&self) -> bool {
        self.count > 0
    }

    /// Takes a frame of peer `via`. If it does not extend the waiting frame, that one is handed in
    /// first.
    pub fn push(&mut self, part: Part, via: u16, inbox: &mut Inbox, scratch: &mut Scratch) {
        if let Some(run) = &mut self.run
            && self.via == via
            && self.count < MAX_PARTS
            && let Some(payload) = run.push(inbox.part(self.parts[0]), inbox.part(part))
        {
            let (at, len) = (part.at + payload.start, payload.len());
            self.parts[self.count] = Part { at, len, ..part };
            self.count += 1;
            return;
        }
        self.flush(inbox, scratch);
        self.run = Run::begin(inbox.part(part));
        (self.parts[0], self.count, self.via) = (part, 1, via);
        if self.run.is_none() {
            self.flush(inbox, scratch);
        }
    }

    /// Hands in the waiting frame, if there is one.
    pub fn flush(&mut self, inbox: &mut Inbox, scratch: &mut Scratch) {
        match (std::mem::take(&mut self.count), self.run.take()) {
            (0, _) => return,
            (count @ 2.., Some(run)) => {
                let request = run.finish(inbox.part_mut(self.parts[0]));
                for part in &self.parts[..count] {
                    scratch.push_segment(Bytes::of(inbox.part_mut(*part)).span());
                }
                scratch.end_frame(count, run.len());
                scratch.set_offload(request);
            }
            _ => scratch.push(Bytes::of(inbox.part_mut(self.parts[0])).span()),
        }
        scratch.set_via(self.via);
    }
}
