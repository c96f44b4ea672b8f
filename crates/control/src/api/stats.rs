//! Counters.

use dataplane::config::PortId;
pub use dataplane::state::WorkerStats;
use serde::{Deserialize, Serialize};

use super::PortState;

/// Counters, all read at about one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// When, in nanoseconds of the monotonic clock: for rates.
    pub at_ns: u64,
    /// By switch.
    pub switches: Vec<SwitchStats>,
}

/// Counters of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchStats {
    /// Its name.
    pub name: String,
    /// What ports that are gone had counted, restarts, frames lost in them: without these the sums
    /// would not agree.
    #[serde(flatten)]
    pub totals: dataplane::state::SwitchStats,
    /// By port.
    pub ports: Vec<PortStats>,
    /// By worker.
    pub workers: Vec<WorkerStats>,
}

/// Counters of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStats {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: PortId,
    /// How it is.
    pub state: PortState,
    /// `in`: frames it hands in, `out`: frames handed out to it.
    #[serde(flatten)]
    pub counters: dataplane::state::PortStats,
}
