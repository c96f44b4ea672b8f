//! What stands behind the question mark of a request.

use frame::VlanId;
use serde::Deserialize;

/// How a topology is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ApplyQuery {
    /// Name of the file, which objects remember; `api` if it is left out.
    pub file: Option<String>,
    /// Removes what the same file made and does not name any more.
    pub prune: bool,
    /// Changes nothing.
    pub dry_run: bool,
}

/// Which address of the forwarding table is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FdbQuery {
    /// The address's VLAN, if it is in one.
    pub vlan: Option<VlanId>,
}

/// Which drops are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DropsQuery {
    /// Those from here on: `next` of an earlier reply. Those after this request if it is left out.
    pub since: Option<u64>,
}

/// Which events are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct EventsQuery {
    /// Those from this number on: `next` of an earlier reply. All that are kept if it is left out.
    pub since: Option<u64>,
    /// Seconds that the reply waits for the first event, at most 60.
    #[cfg_attr(feature = "schemars", schemars(range(max = 60)))]
    pub wait: u8,
}

/// Which counters are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct StatsQuery {
    /// Those of this switch only.
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = topology::SWITCH_PATTERN)))]
    pub switch: Option<String>,
}

/// Which guest's log is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct GuestLogQuery {
    /// One of the entry's guests; the one with the entry's name if it is left out.
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = topology::PORT_PATTERN)))]
    pub guest: Option<String>,
}

/// Which segment's station is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EvpnQuery {
    /// The segment.
    #[cfg_attr(feature = "schemars", schemars(with = "frame::Vni"))]
    pub vni: u32,
}
