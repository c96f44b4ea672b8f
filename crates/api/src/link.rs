//! The links of a port.

use serde::{Deserialize, Serialize};
pub use topology::LinkStats;

/// The lines of a port's link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PortLink {
    /// The line of what the port sends; `None` if it has none.
    pub sends: Option<Line>,
    /// The line of what the port receives; `None` if it has none.
    pub receives: Option<Line>,
}

/// One direction of a port's link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Line {
    /// Its words, as in `rate=10Mb/s,delay=25ms`.
    pub words: String,
    /// Bytes of memory that it may need: what it is charged.
    pub most_memory: u64,
    /// Its counters, of all queues together. All zero for a rate alone of what a port sends, whose
    /// frames wait in the port's own ring.
    pub stats: LinkStats,
}
