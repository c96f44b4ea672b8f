//! Frames that were dropped, as `toklat cap --drops` reads them.

use serde::{Deserialize, Serialize};

/// Frames that a switch dropped since a position in its records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Dropped {
    /// Where the next request continues: its `?since=`.
    pub next: u64,
    /// Frames that were dropped since, but whose records were overwritten.
    pub missed: u64,
    /// Time of the request, in nanoseconds of the monotonic clock.
    pub now_ns: u64,
    /// The frames, oldest first.
    pub frames: Vec<DroppedFrame>,
}

/// A frame that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DroppedFrame {
    /// Time of the drop, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The port that sent it.
    pub from: String,
    /// The port at which the frame was dropped; `None` if it was dropped before it reached a
    /// receiver.
    pub by: Option<String>,
    /// The drop reason, by its name in counters.
    pub reason: String,
    /// Bytes of the frame.
    pub len: u32,
    /// The frame's first bytes, at most 128, in hexadecimal.
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = "^([0-9a-f]{2}){0,128}$")))]
    pub head: String,
}
