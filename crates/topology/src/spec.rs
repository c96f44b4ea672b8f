//! Everything as configured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Collector, Policy, PortKind, Quotas, SwitchConfig, users};

/// Everything as configured: the topology file. Ports that clients made by opening them do not
/// belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// What users may hold.
    #[serde(default, skip_serializing_if = "Quotas::is_default")]
    pub quota: Quotas,
    /// Switches by name.
    #[serde(default)]
    pub switch: BTreeMap<String, SwitchSpec>,
}

/// A switch as configured. Its settings stand at the same level as `owner` and `port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SwitchSpec {
    /// Its settings.
    #[serde(flatten)]
    pub config: SwitchConfig,
    /// The only user, beside root and the daemon's, who may open ports that name no owner; `None`
    /// for everybody who may use the attach socket. A name or a uid; read back as a uid.
    #[serde(default, deserialize_with = "users::optional_uid")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::schema::user"))]
    pub owner: Option<u32>,
    /// The tenant whose switch it is, as `owner` for all of its ports: none of them may be another
    /// user's.
    #[serde(default, deserialize_with = "users::optional_uid")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::schema::user"))]
    pub user: Option<u32>,
    /// Where samples of its traffic are sent by sFlow, version 5; `None` for nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<String>"))]
    pub sflow: Option<Collector>,
    /// One in so many frames is sampled, 1 to 16,777,216; `None` for 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16_777_216)))]
    pub sflow_rate: Option<u32>,
    /// Seconds from one report of the ports' counters to the next, 1 to 3600; `None` for 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 3600)))]
    pub sflow_polling_s: Option<u32>,
    /// Its ports by name.
    #[serde(default)]
    pub port: BTreeMap<String, PortSpec>,
}

/// A port as configured. Its policy stands at the same level as `kind`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// What it is attached to.
    #[serde(default)]
    pub kind: PortKind,
    /// The worker that serves it; `None` for the least loaded.
    #[serde(default)]
    pub worker: Option<u16>,
    /// The only user, beside root and the daemon's, who may open it; `None` for the switch's. A
    /// name or a uid; read back as a uid.
    #[serde(default, deserialize_with = "users::optional_uid")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "crate::schema::user"))]
    pub owner: Option<u32>,
    /// Its rules.
    #[serde(flatten)]
    pub policy: Policy,
}
