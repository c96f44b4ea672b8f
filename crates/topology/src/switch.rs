//! A switch.

use serde::{Deserialize, Serialize};

/// What a worker does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// Spin for up to 50 us after the last frame (500 us after a register access), while that finds
    /// work; then sleep. Nap where owners share the worker's CPU and would wake it for every frame.
    #[default]
    Auto,
    /// Spin forever.
    Poll,
    /// Sleep at once.
    Sleep,
}

/// A worker thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(rename = "Worker"))]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// The CPU that it runs on; `None` for any.
    pub cpu: Option<u16>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SwitchConfig {
    /// Maximum number of ports, up to 16,384.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16_384)))]
    pub max_ports: u16,
    /// Its workers; at least one.
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 64)))]
    pub workers: Vec<WorkerConfig>,
    /// What idle workers do.
    pub idle: Idle,
    /// Maximum number of frames that a worker takes from a port per turn, 1 to 1,024.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1024)))]
    pub batch: u16,
    /// Entries of the forwarding table.
    #[cfg_attr(feature = "schemars", schemars(range(min = 16, max = 4_194_304)))]
    pub fdb_entries: u32,
    /// Seconds after which a learned address is forgotten; 0 for never.
    pub fdb_ageing_s: u32,
    /// The stall time in milliseconds. Senders wait for a lossless port as long as it frees a slot
    /// within this time. Otherwise the port is stalled, and drops frames at once until it has room.
    #[cfg_attr(feature = "schemars", schemars(range(max = 10_000)))]
    pub stall_timeout_ms: u32,
    /// Maximum memory, in bytes, that is mapped for one port: a guest's memory and its logs.
    #[serde(with = "crate::bytes")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::bytes::schema"))]
    pub max_guest_memory: u64,
    /// Maximum memory, in bytes, that is mapped for all ports together, up to half of a process's
    /// address space. Half of it is guaranteed to the ports in equal parts.
    #[serde(with = "crate::bytes")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::bytes::schema"))]
    pub max_mapped_memory: u64,
    /// Maximum size of a region with rings, in bytes. Root and the daemon's user have no such
    /// limit.
    #[serde(with = "crate::bytes")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::bytes::schema"))]
    pub max_region_memory: u64,
    /// Maximum memory, in bytes, of the links of all ports. A link that could need more than is
    /// left is refused.
    #[serde(with = "crate::bytes", skip_serializing_if = "SwitchConfig::is_usual_link_memory")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::bytes::schema"))]
    pub max_link_memory: u64,
    /// The processes of one user forward in their own threads, without the data process: each can
    /// read all frames of the switch, and stop it. The user is the switch's owner, else the
    /// daemon's user. Ports are rings, without limits, bad links and lossless ones. It cannot
    /// change while the switch exists.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trusted: bool,
}

impl SwitchConfig {
    /// Memory of links by default, in bytes.
    pub const LINK_MEMORY: u64 = 1 << 30;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
    fn is_usual_link_memory(bytes: &u64) -> bool {
        *bytes == Self::LINK_MEMORY
    }
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            max_ports: 4096,
            workers: vec![WorkerConfig::default()],
            idle: Idle::Auto,
            batch: 64,
            fdb_entries: 8192,
            fdb_ageing_s: 300,
            stall_timeout_ms: 200,
            max_guest_memory: 4 << 40,
            max_mapped_memory: 64 << 40,
            max_region_memory: 256 << 20,
            max_link_memory: Self::LINK_MEMORY,
            trusted: false,
        }
    }
}
