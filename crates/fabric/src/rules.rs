//! The rules of a port: the control side edits them, and the forwarding path reads them.

use std::net::IpAddr;

use frame::{Mac, VlanId};
use serde::{Deserialize, Serialize};

/// How a port takes part in VLANs (IEEE 802.1Q).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VlanMode {
    /// Not VLAN-aware: tags are payload. Talks only to other such ports.
    #[default]
    Unaware,
    /// Member of one VLAN; its frames have no tag, or only a priority tag.
    Access(VlanId),
    /// Member of several VLANs; its frames are tagged, except for those of the native VLAN.
    Trunk {
        /// The VLANs that the port is a member of; empty for all.
        allowed: Vec<VlanId>,
        /// The VLAN of untagged frames; `None` drops them.
        native: Option<VlanId>,
    },
}

/// The rules of a port. The default is an ordinary lossy port with the flood limit and the MAC-flap
/// guard on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The port talks only to ports that are not protected.
    pub protected: bool,
    /// VLAN membership.
    pub vlan: VlanMode,
    /// Addresses that are always at this port and never learned elsewhere. They hold in the port's
    /// VLAN, or in all of its `allowed` ones; on a trunk to all VLANs, only in the native one.
    pub macs: Vec<Mac>,
    /// Port security: only `macs` may be source addresses or, if there are none, only the first
    /// address seen.
    pub locked: bool,
    /// Anti-spoofing: only `macs`, at least one, may be source addresses and senders of ARP, RARP
    /// and neighbour discovery. Messages of DHCP servers and routers are dropped, and so are frames
    /// that could hide such a message.
    pub guard: bool,
    /// IP addresses of a port with the guard: only these may be sources of IP packets, and senders
    /// in ARP and neighbour discovery. Empty for any.
    pub ips: Vec<IpAddr>,
    /// The maximum number of addresses that the port may learn.
    pub mac_limit: u32,
    /// The maximum number of flooded frames per second (unknown, multicast, broadcast); `None` for
    /// no limit.
    pub flood_limit: Option<u32>,
    /// Refuse to learn addresses that move too often.
    pub flap_guard: bool,
    /// Largest payload of a frame, without Ethernet header and tag, in bytes.
    pub mtu: u16,
    /// Senders to this port wait, as long as it frees a slot within the stall time. After that, the
    /// port is shown as stalled. It drops frames at once (`stall_timeout`) until there is room.
    pub lossless: bool,
    /// The name of a port that gets copies of the frames from this port, as they came in. That
    /// includes frames that the switch refuses, except those beyond the MTU.
    pub mirror_ingress: Option<String>,
    /// The name of a port that gets copies of the frames to this port. That includes frames lost
    /// because its queue is full, except those beyond the MTU.
    pub mirror_egress: Option<String>,
}

impl Rules {
    /// The default limit on flooded frames per second.
    pub const FLOOD_LIMIT: u32 = 100_000;
    /// The default limit on learned addresses: half of a table of the default size.
    pub const MAC_LIMIT: u32 = 4096;
    /// MTU by default, in bytes.
    pub const MTU: u16 = 1500;
    /// The largest MTU.
    pub const MAX_MTU: u16 = 9216;

    /// Bytes of the largest frame: MTU, Ethernet header, one tag.
    #[must_use]
    pub const fn max_frame(&self) -> usize {
        self.mtu as usize + frame::ETHERNET_HEADER + frame::VLAN_TAG
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            protected: false,
            vlan: VlanMode::Unaware,
            macs: Vec::new(),
            locked: false,
            guard: false,
            ips: Vec::new(),
            mac_limit: Self::MAC_LIMIT,
            flood_limit: Some(Self::FLOOD_LIMIT),
            flap_guard: true,
            mtu: Self::MTU,
            lossless: false,
            mirror_ingress: None,
            mirror_egress: None,
        }
    }
}
