//! Guests of the topology, and the state of each.

use jail::Walls;
use serde::{Deserialize, Serialize};
use topology::GuestSpec;

/// The state of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GuestState {
    /// The guest waits for its turn to start.
    Queued,
    /// The guest's process exists, and is not confined yet.
    Starting,
    /// The guest is confined, and serves.
    Running,
    /// The guest has failed, and will be started again after a pause.
    Waiting,
    /// The guest has ended, and will not be started again.
    Ended,
}

impl GuestState {
    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Ended => "ended",
        }
    }
}

/// A guest, as `toklat guest list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct GuestInfo {
    /// Its name.
    pub name: String,
    /// Its program.
    pub app: String,
    /// The guest's ports: more than one if it has several threads.
    pub ports: Vec<String>,
    /// The guest's addresses, in the order of its ports.
    pub addresses: Vec<String>,
    /// The guest's state.
    pub state: GuestState,
    /// The guest's process, if it has one.
    pub pid: Option<u32>,
    /// Milliseconds in this state.
    pub for_ms: u64,
    /// Microseconds from the request for the guest's port to its report that it serves.
    pub start_us: Option<u64>,
    /// How often the guest was started again.
    pub restarts: u32,
    /// How the guest's last process ended.
    pub last_end: Option<String>,
    /// The walls around the guest.
    pub walls: Walls,
    /// The process of the guest's manager.
    pub manager: u32,
    /// Its log.
    pub log: String,
}

/// An entry of the topology's guests: what it runs, and its guests as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct GuestEntry {
    /// Its name.
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = topology::PORT_PATTERN)))]
    pub name: String,
    /// What it runs.
    pub spec: GuestSpec,
    /// The guests; none while their manager starts.
    pub guests: Vec<GuestInfo>,
}
