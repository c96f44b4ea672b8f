//! What has happened in the daemon, as `toklat events` shows it.

use serde::{Deserialize, Serialize};

/// What an event is about. The daemon keeps the last events of each kind, so many of one kind push
/// out none of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The daemon started, or was told to stop.
    Daemon,
    /// A user changed something, or tried to: who, what, and how it ended.
    Audit,
    /// A port was added or removed, waits, or is back.
    Port,
    /// A client or a front end came or went.
    Client,
    /// A data process was started again, or a guest was.
    Restart,
    /// A worker was stuck, or a data process died serving a port.
    Fault,
    /// A port is closed for a time, because data processes died serving it.
    Quarantine,
    /// A user was refused what exceeds a limit.
    Quota,
}

impl EventKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Daemon,
        Self::Audit,
        Self::Port,
        Self::Client,
        Self::Restart,
        Self::Fault,
        Self::Quarantine,
        Self::Quota,
    ];

    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Audit => "audit",
            Self::Port => "port",
            Self::Client => "client",
            Self::Restart => "restart",
            Self::Fault => "fault",
            Self::Quarantine => "quarantine",
            Self::Quota => "quota",
        }
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Event {
    /// Its number. Later events have higher ones, also those of a daemon that was started later.
    pub number: u64,
    /// When it happened, in milliseconds since 1970.
    pub at_ms: u64,
    /// What it is about.
    pub kind: EventKind,
    /// The switch that it is about, if it is about one.
    pub switch: Option<String>,
    /// The port that it is about, without the switch's name.
    pub port: Option<String>,
    /// The user that it is about: who acted, or whose the port is.
    pub user: Option<u32>,
    /// What has happened. Control characters in it are escaped.
    pub text: String,
}

/// Events, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Events {
    /// Where the next request continues: its `?since=`.
    pub next: u64,
    /// Some of those that were asked for are not kept any more.
    pub missed: bool,
    /// The events, at most 1,000.
    pub events: Vec<Event>,
}
