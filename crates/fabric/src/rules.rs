//! What the switch goes by at a port: data that the control side edits and the forwarding path reads.

use frame::{Mac, VlanId};
use serde::{Deserialize, Serialize};

/// How a port takes part in VLANs (IEEE 802.1Q).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VlanMode {
    /// Knows nothing of VLANs: tags are payload. Talks to other such ports only.
    #[default]
    Unaware,
    /// Member of one VLAN; its frames carry no tag, or one with a priority only.
    Access(VlanId),
    /// Member of several VLANs; its frames carry tags, but for those of the native VLAN.
    Trunk {
        /// The VLANs it is a member of; empty for all.
        allowed: Vec<VlanId>,
        /// The VLAN of frames without a tag; without one they are dropped.
        native: Option<VlanId>,
    },
}

/// What the switch goes by at a port. The default is an ordinary lossy port with the flood limit and the MAC-flap
/// guard on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Talks only to ports that are not protected.
    pub protected: bool,
    /// VLAN membership.
    pub vlan: VlanMode,
    /// Addresses that are always at this port and never learned elsewhere: in its VLAN, or in all of
    /// its `allowed` ones; on a trunk to all VLANs in the native one only.
    pub macs: Vec<Mac>,
    /// Port security: only `macs` (or, if there are none, the first address seen) may be source
    /// addresses.
    pub locked: bool,
    /// Anti-spoofing: only `macs`, of which there is one at least, may be source addresses and senders of ARP,
    /// RARP and neighbour discovery; DHCP servers and routers are not heard. What could hide such a message
    /// is dropped.
    pub guard: bool,
    /// Most addresses that are learned at this port.
    pub mac_limit: u32,
    /// Most flooded frames a second (unknown, multicast, broadcast); `None` for no limit.
    pub flood_limit: Option<u32>,
    /// Refuse to learn addresses that move too often.
    pub flap_guard: bool,
    /// Largest payload of a frame, without Ethernet header and tag, in bytes.
    pub mtu: u16,
    /// A sender to this port waits while any slot was freed within the stall time. Then the port is stalled, visibly, and
    /// drops at once, counted as such (`stall_timeout`), until there is room.
    pub lossless: bool,
    /// Copies of what this port sends go to the port of this name too, as they came: also of what the
    /// switch refuses, but for frames beyond the MTU.
    pub mirror_ingress: Option<String>,
    /// Copies of what goes to this port go to the port of this name too: also of what is lost because
    /// its queue is full, but for frames beyond the MTU.
    pub mirror_egress: Option<String>,
}

impl Rules {
    /// Flooded frames a second by default.
    pub const FLOOD_LIMIT: u32 = 100_000;
    /// Addresses learned at a port by default: half of a table of the default size.
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
