//! The forwarding table.

use frame::{Mac, VlanId};
use serde::{Deserialize, Serialize};
use topology::Origin;

/// An address of the forwarding table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct FdbEntry {
    /// The address.
    pub mac: Mac,
    /// Its VLAN; `None` at ports that do not interpret VLAN tags.
    pub vlan: Option<VlanId>,
    /// The port it is at.
    pub port: String,
    /// Configured: it does not age.
    pub fixed: bool,
    /// How the table knows.
    pub origin: Origin,
    /// Seconds since a frame came from this address.
    pub age_s: u32,
}

/// An address to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("examples" = [{"mac": "02:00:00:00:00:01", "port": "web"}])))]
#[serde(deny_unknown_fields)]
pub struct NewFdbEntry {
    /// The address.
    pub mac: Mac,
    /// The address's VLAN, if the port is in one.
    #[serde(default)]
    pub vlan: Option<VlanId>,
    /// The port it is at.
    pub port: String,
}

/// Which learned addresses to forget: all, or those of a port or VLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FdbFlush {
    /// Only those at this port.
    pub port: Option<String>,
    /// Only those in this VLAN.
    pub vlan: Option<VlanId>,
}
