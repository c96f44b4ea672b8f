//! Rules between ports: groups, tables, counters and connections.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
pub use topology::{Group, Table};

/// A group of rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// Its rules, in order.
    pub rules: Vec<String>,
    /// The configured ports that name it.
    pub ports: Vec<String>,
    /// In the answer to a change: rules that never match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A table of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// Its networks and addresses.
    pub prefixes: Vec<String>,
}

/// Changes of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TableChange {
    /// Networks and addresses to add.
    #[serde(default)]
    pub add: Vec<String>,
    /// Networks and addresses to remove.
    #[serde(default)]
    pub remove: Vec<String>,
}

/// The rules of ports that name the same groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PolicyInfo {
    /// The groups, in order.
    pub groups: Vec<String>,
    /// The ports.
    pub ports: Vec<String>,
    /// The rules, in order.
    pub rules: Vec<RuleInfo>,
}

/// A rule and its counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct RuleInfo {
    /// The group that it is of.
    pub group: String,
    /// The rule.
    pub rule: String,
    /// Frames that it matched since the rules were changed. Of a connection, only the first frame
    /// is judged.
    pub frames: u64,
}

/// The connections that rules have admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ConnectionsInfo {
    /// How many there are.
    pub connections: u64,
    /// New ones that found no room: the port has used up its share.
    pub refused: u64,
    /// Unanswered ones that made room for others of their port.
    pub evicted: u64,
    /// The first 200.
    pub list: Vec<ConnectionInfo>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ConnectionInfo {
    /// The number of the protocol above IP.
    pub protocol: u8,
    /// The address that sent the first packet.
    pub source: IpAddr,
    /// Its port; the identifier of ICMP queries.
    pub source_port: u16,
    /// The address that the first packet went to.
    pub destination: IpAddr,
    /// Its port.
    pub destination_port: u16,
    /// The VLAN; 0 for none.
    pub vlan: u16,
    /// The port of the switch that sent the first packet.
    pub from: String,
    /// The port that answers; `None` before any did.
    pub to: Option<String>,
    /// The state, as Linux names it.
    pub state: String,
    /// Seconds until it is forgotten.
    pub expires_s: u32,
}
