//! Frames that were dropped, as `toklat cap --drops` reads them.

use serde::{Deserialize, Serialize};

/// Frames that a switch dropped since a place in its records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Where the next question goes on: its `?since=`.
    pub next: u64,
    /// Frames that were dropped since, and are recorded no more.
    pub missed: u64,
    /// When it was asked, in nanoseconds of the monotonic clock.
    pub now_ns: u64,
    /// The frames, oldest first.
    pub frames: Vec<DroppedFrame>,
}

/// A frame that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedFrame {
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The port that sent it.
    pub from: String,
    /// The port that dropped it; `None` if it was dropped before it reached a receiver.
    pub by: Option<String>,
    /// Why, by its name in counters.
    pub reason: String,
    /// Bytes of the frame.
    pub len: u32,
    /// Its first bytes, at most 128, in hexadecimal.
    pub head: String,
}
