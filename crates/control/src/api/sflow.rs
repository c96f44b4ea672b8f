//! What is sent of a switch's traffic to a collector.

use serde::{Deserialize, Serialize};
pub use topology::Collector;

/// What was sent to a switch's collector since it was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SflowInfo {
    /// Where it listens.
    pub collector: Collector,
    /// One in so many frames is sampled.
    pub rate: u32,
    /// Seconds from one report of all counters to the next.
    pub polling_s: u32,
    /// The switch's number: sFlow's sub-agent.
    pub sub_agent: u32,
    /// Samples of frames that were sent.
    pub samples: u64,
    /// Samples that were not read in time.
    pub missed: u64,
    /// Datagrams that were sent.
    pub datagrams: u64,
    /// Datagrams that the kernel refused, or that nobody listened for.
    pub refused: u64,
    /// Why nothing can be sent, if nothing can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
