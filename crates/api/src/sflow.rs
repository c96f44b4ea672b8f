//! sFlow statistics of a switch.

use serde::{Deserialize, Serialize};
pub use topology::Collector;

/// What was sent to a switch's collector since the collector was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SflowInfo {
    /// Where it listens.
    #[cfg_attr(feature = "schemars", schemars(with = "String"))]
    pub collector: Collector,
    /// The sampling rate: one frame in this many is sampled.
    pub rate: u32,
    /// Seconds between two reports of all counters.
    pub polling_s: u32,
    /// The switch's number: sFlow's sub-agent.
    pub sub_agent: u32,
    /// Flow samples that were sent.
    pub samples: u64,
    /// Samples that were overwritten before they were read.
    pub missed: u64,
    /// Datagrams that were sent.
    pub datagrams: u64,
    /// Datagrams that the kernel refused, or for which no collector listened.
    pub refused: u64,
    /// Why nothing can be sent; `None` if samples can be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
