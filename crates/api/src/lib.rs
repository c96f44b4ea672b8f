//! The control API: JSON over HTTP, on the daemon's control socket.
//!
//! `ROUTES` is the one list of what can be asked: the daemon's router and the OpenAPI description
//! are made from it (feature `schemars`). The topology file is the same types in TOML:
//!
//! ```toml
//! [quota]                                 # of each user
//! ports = 100
//!
//! [switch.vale0]
//! idle = "auto"
//! workers = [{ cpu = 1 }]
//!
//! [switch.vale0.port.p1]                  # waits for its client
//! lossless = true
//!
//! [switch.vale0.port.up]
//! kind = { tap = { ifname = "tap0", netns = "blue" } }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod change;
mod drops;
mod error;
mod event;
mod evpn;
mod fdb;
mod guest;
mod interface;
mod link;
#[cfg(feature = "schemars")]
pub mod openapi;
mod problem;
mod query;
mod quota;
#[cfg(feature = "schemars")]
mod routes;
mod rules;
mod sflow;
mod stats;

pub use self::link::{Line, LinkStats, PortLink};
pub use change::{Action, Change, Setting};
pub use drops::{Dropped, DroppedFrame};
pub use error::{ApiError, ErrorCode, system};
pub use event::{Event, EventKind, Events};
pub use evpn::{EvpnCounters, EvpnHost, EvpnInfo, EvpnRoute, EvpnSession, EvpnStation};
pub use fdb::{FdbEntry, FdbFlush, NewFdbEntry};
pub use guest::{GuestEntry, GuestInfo, GuestState};
pub use interface::{InterfaceInfo, LinkInfo};
pub use problem::{PROBLEM, Problem};
pub use query::{
    ApplyQuery, DropsQuery, EventsQuery, EvpnQuery, FdbQuery, GuestLogQuery, StatsQuery,
};
pub use quota::{Limit, Limits, NoLimit, Quota, QuotaInfo, Quotas, Usage, UserQuota};
#[cfg(feature = "schemars")]
pub use routes::{Body, Draw, Operation, ROUTES, Route};
pub use rules::{
    ConnectionInfo, ConnectionsInfo, Group, GroupInfo, PolicyInfo, RuleInfo, Table, TableChange,
    TableInfo,
};
pub use sflow::{Collector, SflowInfo};
pub use stats::{PortStats, Stats, SwitchStats, WorkerStats};

use std::net::IpAddr;
use std::path::PathBuf;

use jail::Walls;
use port::PortId;
use port::stats::MappedMemory;
use serde::{Deserialize, Serialize};
use topology::SwitchConfig;
pub use topology::{GuestSpec, PortKind, PortSpec, SwitchSpec, Topology, units};

/// Name of the control socket in the runtime directory.
pub const SOCKET: &str = "control.sock";
/// Name of the socket for reading in the runtime directory.
pub const VIEW_SOCKET: &str = "view.sock";

/// The directory of the daemon's sockets: `$TOKLAT_DIR`, else `$XDG_RUNTIME_DIR/toklat`, else
/// `/run/toklat`. An ordinary user without these variables, and on a machine where no daemon serves
/// `/run/toklat`, has `~/.toklat`. Clients of ports have the same
/// (`netring::attach::runtime_directory`), of which a client of the API needs nothing else.
#[must_use]
pub fn runtime_directory() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let system = PathBuf::from("/run/toklat");
    let own = set("HOME").filter(|_| !is_root()).map(|home| home.join(".toklat"));
    let is_used = |dir: &PathBuf| dir.join("attach.sock").exists();
    set("TOKLAT_DIR")
        .or_else(|| set("XDG_RUNTIME_DIR").map(|dir| dir.join("toklat")))
        .or_else(|| own.filter(|own| is_used(own) || !is_used(&system)))
        .unwrap_or(system)
}

/// True if this process's effective user is root.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
}

/// A switch to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [{"name": "vale7", "idle": "sleep", "workers": [{}, {}]}])))]
pub struct NewSwitch {
    /// Its name: up to 15 letters, digits, `-`, `_` or `.`.
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = topology::SWITCH_PATTERN)))]
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub spec: SwitchSpec,
}

/// A port to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [
    {"name": "web", "lossless": true},
    {"name": "vm1", "kind": {"vhost_user": {"queues": 2}}},
])))]
pub struct NewPort {
    /// Its name, without the switch's: up to 31 letters, digits, `-`, `_` or `.`.
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = topology::PORT_PATTERN)))]
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub spec: PortSpec,
}

/// The daemon itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Where its sockets are.
    pub runtime_dir: String,
    /// How many switches there are.
    pub switches: usize,
    /// How many ports there are.
    pub ports: usize,
    /// Descriptors in use.
    pub descriptors: usize,
    /// How many there may be.
    pub descriptor_limit: u64,
    /// The longest time that a switch was without a data process that had died, less the pause that
    /// grows with deaths in a row, in milliseconds.
    #[serde(default)]
    pub longest_restart_gap_ms: u64,
    /// Its children, and the walls around each.
    #[serde(default)]
    pub children: Vec<ChildInfo>,
}

/// A process that the daemon has started, or has found when it started itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ChildInfo {
    /// What it is: `data process of vale0`, `gobgpd`.
    pub name: String,
    /// Process id; `None` while it does not run.
    pub pid: Option<u32>,
    /// How it is confined, and which walls are missing.
    pub walls: Walls,
}

/// The steps that made the topology as applied, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Applied {
    /// Is empty if nothing had to change.
    pub changes: Vec<Change>,
    /// What is as it was asked for, and may not be meant: rules that never match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The state of a switch's data process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SwitchState {
    /// It runs.
    Running,
    /// It died and is being started again.
    Restarting,
    /// It died too often in a row and stays down; `POST /v1/upgrade` tries again.
    Failed,
}

/// How long a switch was without a data process that forwards, after one had died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct RestartGaps {
    /// How often that was.
    pub count: u64,
    /// The last time, in milliseconds.
    pub last_ms: u64,
    /// The part of it that was a pause, because data processes had died in a row.
    pub last_pause_ms: u64,
    /// The longest time less its pause, in milliseconds.
    pub longest_ms: u64,
}

/// A switch as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SwitchInfo {
    /// Its name.
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = topology::SWITCH_PATTERN)))]
    pub name: String,
    /// How its data process is.
    pub state: SwitchState,
    /// Why the data process is not running; `None` if it runs.
    pub failure: Option<String>,
    /// Process id of its data process, if it runs.
    pub pid: Option<u32>,
    /// How often the data process was restarted after it died.
    pub restarts: u32,
    /// How long the switch was without a data process each time.
    #[serde(default)]
    pub restart_gaps: RestartGaps,
    /// The switch was made by the first client that opened a port of it, and goes with the last
    /// one.
    pub ephemeral: bool,
    /// The process that holds the lock of a trusted switch and is stopped, by a signal or a
    /// debugger. Nothing is forwarded until it goes on or ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_holder: Option<u32>,
    /// How the data process is confined, and which walls are missing.
    pub walls: Walls,
    /// Other processes that serve the switch's ports: the drivers of cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildInfo>,
    /// How many ports the switch has, including those that clients made.
    pub ports: usize,
    /// The only user who may open ports that name no owner.
    pub owner: Option<u32>,
    /// The tenant that owns the switch.
    pub user: Option<u32>,
    /// What was sent to the switch's sFlow collector, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sflow: Option<SflowInfo>,
    /// Its settings.
    pub config: SwitchConfig,
}

/// How a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Attached to the device, file or peer that its kind names.
    Attached,
    /// Waits for its client.
    Vacant,
    /// What it is attached to is gone, or its interface is down: see `unconnected`. It is tried
    /// again every second.
    Waiting,
    /// What the port was attached to has failed; see `failure`.
    Failed,
    /// Data processes died while serving the port, so it waits; see `failure`.
    Quarantined,
    /// The port is lossless but freed no slot for the stall time. Until it frees one, frames to it
    /// are dropped at once.
    Stalled,
}

impl PortState {
    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Vacant => "vacant",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Quarantined => "quarantined",
            Self::Stalled => "stalled",
        }
    }
}

/// Who opened a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Client {
    /// Process id of the client when it opened the port.
    pub pid: u32,
    /// User id.
    pub uid: u32,
}

/// A port as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PortInfo {
    /// Its name, without the switch's.
    pub name: String,
    /// Its number in the switch.
    pub id: PortId,
    /// Its state.
    pub state: PortState,
    /// Why the port failed; `None` if it did not.
    pub failure: Option<String>,
    /// Why the port cannot connect to its peer, and for how long; `None` if it is connected.
    #[serde(default)]
    pub unconnected: Option<String>,
    /// The worker that serves it.
    pub worker: Option<u16>,
    /// The port was made by its client and goes with it.
    pub ephemeral: bool,
    /// The client that has the port open, if one has.
    pub client: Option<Client>,
    /// The port that this monitor watches.
    pub monitors: Option<String>,
    /// How much of the owner's memory is mapped.
    pub memory: MappedMemory,
    /// The other hosts, if the port is a tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelInfo>,
    /// The network interface, if the port is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceInfo>,
    /// The port's interface number in sFlow, if its switch is sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sflow_interface: Option<u32>,
    /// What it is.
    pub spec: PortSpec,
}

/// A tunnel as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct TunnelInfo {
    /// Largest IP packet that fits the paths to all peers, measured when the port was added; `None`
    /// if no peer had a route.
    pub inner_mtu: Option<u16>,
    /// The other hosts, in the configured order.
    pub peers: Vec<PeerInfo>,
}

/// Another host in a segment of a tunnel, with its counters since the port was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PeerInfo {
    /// Its address.
    pub address: IpAddr,
    /// The segment that the counters are of.
    pub vni: u32,
    /// Frames that came from it.
    pub in_frames: u64,
    /// Their bytes.
    pub in_bytes: u64,
    /// Frames sent to this host, including copies of flooded frames.
    pub out_frames: u64,
    /// Their bytes.
    pub out_bytes: u64,
    /// Frames to this host that were larger than the path's MTU.
    pub too_long: u64,
    /// Frames to this host that were dropped because the socket's buffer was full.
    pub full: u64,
    /// Frames to this host that were dropped because there was no route.
    pub unreachable: u64,
    /// Frames to this host that the kernel refused for another reason.
    pub refused: u64,
}

/// A pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PipeInfo {
    /// The pipe's name, without the `{` or `}` of its ends: `vale0:p{1` is listed as `vale0:p` with
    /// id `1`.
    pub parent: String,
    /// Its id.
    pub id: String,
    /// The client that has the `{` end open.
    pub master: Option<Client>,
    /// The client that has the `}` end open.
    pub slave: Option<Client>,
}

/// A port that a netmap program made to stay (`VALE_NEWIF`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NetmapPort {
    /// Whose program made it.
    pub uid: u32,
    /// Its name. Other users may have ports of the same name.
    pub name: String,
    /// The switches that it is in.
    pub switches: Vec<String>,
    /// A program has it open, or a pipe or a monitor of it.
    pub open: bool,
}

/// Which data processes to replace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Upgrade {
    /// Only this switch's.
    pub switch: Option<String>,
}

/// What an upgrade did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Upgraded {
    /// By switch.
    pub switches: Vec<UpgradedSwitch>,
}

/// A data process that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct UpgradedSwitch {
    /// The switch.
    pub name: String,
    /// Process id before.
    pub old_pid: Option<u32>,
    /// Process id now.
    pub new_pid: u32,
    /// Milliseconds without a data process.
    pub gap_ms: u64,
}

/// How to stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Stop {
    /// Leave the data processes running. The next daemon finds them.
    pub leave_data_processes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::Policy;

    const NET: &str = r#"
        [switch.vale0]
        idle = "sleep"
        workers = [{ cpu = 1 }, {}]
        owner = 1000

        [switch.vale0.port.p1]
        lossless = true
        vlan = { trunk = { allowed = [2, 3], native = 2 } }

        [switch.vale0.port.up]
        kind = { tap = { ifname = "tap0", netns = "blue" } }
        worker = 1
    "#;

    #[test]
    fn a_topology_file_is_read_and_written_back_the_same() {
        let net: Topology = toml::from_str(NET).unwrap();
        let vale0 = &net.switch["vale0"];
        assert_eq!(vale0.config.workers.len(), 2);
        assert!(vale0.port["p1"].policy.lossless);
        assert_eq!(vale0.port["up"].worker, Some(1));
        assert_eq!(toml::from_str::<Topology>(&toml::to_string(&net).unwrap()).unwrap(), net);
        let json = serde_json::to_string(&net).unwrap();
        assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), net);
    }

    #[test]
    fn misspelt_settings_are_refused_at_every_level() {
        for (good, bad) in [
            ("[switch.vale0]\n", "[swich.vale0]\n"),
            ("idle", "idel"),
            ("cpu", "core"),
            ("lossless", "lossles"),
            ("native", "nativ"),
            ("netns", "netnamespace"),
            ("worker = 1", "wroker = 1"),
        ] {
            let text = NET.replacen(good, bad, 1);
            assert!(toml::from_str::<Topology>(&text).is_err(), "{bad} was accepted");
        }
        let misspelt = r#"{"name":"p1","lossles":true}"#;
        assert!(serde_json::from_str::<NewPort>(misspelt).is_err());
        assert!(serde_json::from_str::<NewSwitch>(r#"{"name":"v","prot":{}}"#).is_err());
        let port: NewPort = serde_json::from_str(r#"{"name":"p1","lossless":true}"#).unwrap();
        assert!(port.spec.policy.lossless && port.spec.policy.flap_guard);
    }

    #[test]
    fn no_flood_limit_survives_json() {
        let spec = PortSpec {
            policy: Policy { flood_limit: None, ..Policy::default() },
            ..PortSpec::default()
        };
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<PortSpec>(&json).unwrap(), spec);
    }
}
