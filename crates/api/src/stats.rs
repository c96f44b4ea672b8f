//! Counters.

use port::PortId;
pub use port::stats::WorkerStats;
use serde::{Deserialize, Serialize};

use super::PortState;

/// Counters, all read at about the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Stats {
    /// Time of the reading, in nanoseconds of the monotonic clock: for rates.
    pub at_ns: u64,
    /// By switch.
    pub switches: Vec<SwitchStats>,
}

/// Counters of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SwitchStats {
    /// Its name.
    pub name: String,
    /// Totals that no existing port holds: counters of removed ports, restarts, and frames lost in
    /// them. Without these the sums would not agree.
    #[serde(flatten)]
    pub totals: port::stats::SwitchStats,
    /// By port.
    pub ports: Vec<PortStats>,
    /// By worker.
    pub workers: Vec<WorkerStats>,
}

/// Counters of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PortStats {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: PortId,
    /// Its state.
    pub state: PortState,
    /// `in`: frames the port sends into the switch; `out`: frames the switch delivers to it.
    #[serde(flatten)]
    pub counters: port::stats::PortStats,
}
