//! Network interfaces as ports.

use std::collections::BTreeMap;

use frame::Mac;
use serde::{Deserialize, Serialize};

/// The network interface of a port, as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct InterfaceInfo {
    /// How frames come and go: `packet` or `xdp`; `host` for a port that is the host's end.
    pub engine: String,
    /// Why so.
    pub why: String,
    /// The card reads and writes the port's memory itself.
    pub zero_copy: bool,
    /// How many queues share its frames.
    pub queues: u16,
    /// Frames that the kernel lost because the port did not take them in time.
    pub lost: u64,
    /// What the host's network stack gets, in words.
    pub host: String,
    /// The interface; `None` while it is gone.
    pub link: Option<LinkInfo>,
}

/// A network interface, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct LinkInfo {
    /// It is enabled.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    /// Its largest payload, in bytes.
    pub mtu: u32,
    /// It receives frames to all addresses.
    pub promiscuous: bool,
    /// Its address.
    pub mac: Option<Mac>,
    /// The kind of a virtual interface, such as `veth`.
    pub kind: Option<String>,
    /// Its own counters, named as `ip -s link` and ethtool know them.
    pub statistics: BTreeMap<String, u64>,
}
