//! What users hold, and their quotas.

use serde::{Deserialize, Serialize};
pub use topology::{Limit, NoLimit, Quota, Quotas};

/// What a user holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Ports.
    pub ports: u64,
    /// Switches made by opening a port of them.
    pub switches: u64,
    /// Pipes.
    pub pipes: u64,
    /// Bytes lent.
    pub memory: u64,
    /// Connections to the attach socket.
    pub connections: u64,
    /// Addresses, in the tables of all switches.
    pub addresses: u64,
    /// Descriptors that the daemon keeps for the user.
    #[serde(default)]
    pub descriptors: u64,
    /// Open descriptors, adapters and regions of netmap's interface.
    #[serde(default)]
    pub netmap_objects: u64,
    /// Persistent ports of netmap's interface.
    #[serde(default)]
    pub netmap_ports: u64,
}

/// A user's quotas; `None` stands for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Limits {
    /// Ports.
    pub ports: Option<u64>,
    /// Switches made by opening a port of them.
    pub switches: Option<u64>,
    /// Pipes.
    pub pipes: Option<u64>,
    /// Bytes lent.
    pub memory: Option<u64>,
    /// Connections to the attach socket.
    pub connections: Option<u64>,
    /// Addresses in the table of one switch; `None` also if the limit is a share of the table.
    pub addresses: Option<u64>,
    /// Descriptors that the daemon keeps for the user.
    #[serde(default)]
    pub descriptors: Option<u64>,
    /// Open descriptors, adapters and regions of netmap's interface.
    #[serde(default)]
    pub netmap_objects: Option<u64>,
    /// Persistent ports of netmap's interface.
    #[serde(default)]
    pub netmap_ports: Option<u64>,
}

/// A user: what it holds, and its quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct UserQuota {
    /// The user.
    pub uid: u32,
    /// What the user holds.
    pub usage: Usage,
    /// What the user may hold.
    pub limits: Limits,
}

/// Quotas as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct QuotaInfo {
    /// As configured.
    pub configured: Quotas,
    /// The quotas of users that are not configured by name.
    pub limits: Limits,
    /// Users that hold something, or that have quotas of their own.
    pub users: Vec<UserQuota>,
    /// Requests refused for quotas since the daemon started.
    pub refused: Usage,
}
