//! The rules of a port, as its operator sets them: for the switch, for its link, for its guest.
//!
//! A rule is one field here. Its flag, and the words for it in files and tables, are a row of
//! `topology::rules`. `docs/adding-a-rule.md` describes how to add one.

use std::net::IpAddr;

use frame::{Mac, VlanId};
use link::{Impairment, RateLimiter};
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

/// Coalescing of a guest's interrupts: one interrupt serves several batches. The guest does less
/// work, and latency grows. The default is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Interrupts {
    /// Maximum interrupts a second for each queue; `None` for no limit.
    pub max_rate: Option<u32>,
    /// Maximum delay of an interrupt in microseconds. It comes earlier if many frames wait.
    pub max_delay_us: u32,
    /// Delay interrupts only under heavy traffic.
    pub adaptive: bool,
    /// Maximum delay, in microseconds, of an interrupt that only reports sent frames. It comes
    /// earlier if many frames were sent.
    pub max_sent_delay_us: u32,
}

impl Interrupts {
    /// True if interrupts are not coalesced.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }
}

/// The rules of a port. The default is an ordinary lossy port with the flood limit and the MAC-flap
/// guard on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// Exchange frames only with ports that are not protected.
    pub protected: bool,
    /// VLAN membership.
    pub vlan: VlanMode,
    /// Static addresses of this port, which the switch never learns elsewhere. They hold in the
    /// port's VLAN, or in all `allowed` VLANs of a trunk. A trunk to all VLANs has them in its
    /// native VLAN only.
    pub macs: Vec<Mac>,
    /// Port security: only `macs` may be source addresses. Without `macs`, only the first source
    /// address that the port sends is allowed.
    pub locked: bool,
    /// Anti-spoofing: only `macs` (at least one) may be source addresses, and senders in ARP, RARP
    /// and neighbour discovery. Messages of DHCP servers and routers are dropped, and so are frames
    /// that could hide one.
    pub guard: bool,
    /// IP addresses of a port with the guard: only these may be sources of IPv4 and IPv6, senders
    /// in ARP, and targets of neighbour advertisements. With an IPv6 address, so may the link-local
    /// ones made of `macs`. A host without an address yet may ask by DHCP, and look for duplicates.
    /// Without `ips`, the guard checks no IP address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// Groups of rules, in order: the first rule that matches decides. Without groups, there are no
    /// rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Maximum number of addresses that are learned at this port.
    pub mac_limit: u32,
    /// Maximum flooded frames a second (unknown unicast, multicast, broadcast); `None` for no
    /// limit.
    pub flood_limit: Option<u32>,
    /// Refuse to learn addresses that move too often.
    pub flap_guard: bool,
    /// Largest payload of a frame, without Ethernet header and tag, in bytes.
    #[cfg_attr(feature = "schemars", schemars(range(min = 68, max = Rules::MAX_MTU)))]
    pub mtu: u16,
    /// The link is up. Only guests' ports can have their link down.
    pub link: bool,
    /// Coalescing of a guest's interrupts.
    #[serde(skip_serializing_if = "Interrupts::is_off")]
    pub interrupts: Interrupts,
    /// Senders wait for this port instead of losing frames. If the port frees no slot within the
    /// switch's stall time, it is marked as stalled. A stalled port drops frames at once, counted
    /// as `stall_timeout`, until it has room.
    pub lossless: bool,
    /// Rate limit for what the port sends. Frames beyond it wait in the port's own ring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_rate_limiter: Option<RateLimiter>,
    /// Rate limit for what the port receives. Frames beyond it are dropped and counted as
    /// `rate_limit`; if the port is lossless, its senders wait. Copies that mirrors make count,
    /// too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_rate_limiter: Option<RateLimiter>,
    /// The port's weight, from 1 to 1,000. Where the ports of a worker send more than it can move,
    /// or the senders to a lossless port more than it takes, their bytes are in the proportion of
    /// their weights.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = Rules::MAX_WEIGHT)))]
    #[serde(skip_serializing_if = "is_one")]
    pub weight: u16,
    /// Impairment of the link for what the port sends, to test programs over a bad network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_impairment: Option<Impairment>,
    /// Impairment of the link for what the port receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_impairment: Option<Impairment>,
    /// The line of what the port sends: words, as in `rate=10Mb/s,delay=25ms,loss=1%`, or the name
    /// of a link of the topology, or `dsl`, `lte`, `satellite`. Frames beyond its queue wait in the
    /// port's own ring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_link: Option<String>,
    /// The line of what the port receives. Frames beyond its queue are dropped; if the port is
    /// lossless, its senders wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_link: Option<String>,
    /// Mirror: the port of this name gets a copy of each frame that this port sends, unchanged.
    /// Frames that the switch refuses are copied, too, unless they exceed the MTU.
    pub mirror_ingress: Option<String>,
    /// Mirror: the port of this name gets a copy of each frame that goes to this port. Frames that
    /// this port loses because its queue is full are copied, too, unless they exceed the MTU.
    pub mirror_egress: Option<String>,
}

impl Rules {
    /// The default limit on flooded frames per second.
    pub const FLOOD_LIMIT: u32 = 100_000;
    /// The default limit on learned addresses: half of a table of the default size.
    pub const MAC_LIMIT: u32 = 4096;
    /// MTU by default, in bytes.
    pub const MTU: u16 = 1500;
    /// The largest weight.
    pub const MAX_WEIGHT: u16 = 1000;
    /// The largest MTU.
    pub const MAX_MTU: u16 = 9216;

    /// Bytes of the largest frame: MTU, Ethernet header, two tags (QinQ), as Linux lets them pass.
    #[must_use]
    pub const fn max_frame(&self) -> usize {
        self.mtu as usize + frame::ETHERNET_HEADER + 2 * frame::VLAN_TAG
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(weight: &u16) -> bool {
    *weight == 1
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
            groups: Vec::new(),
            mac_limit: Self::MAC_LIMIT,
            flood_limit: Some(Self::FLOOD_LIMIT),
            flap_guard: true,
            mtu: Self::MTU,
            link: true,
            interrupts: Interrupts::default(),
            lossless: false,
            tx_rate_limiter: None,
            rx_rate_limiter: None,
            weight: 1,
            tx_impairment: None,
            rx_impairment: None,
            tx_link: None,
            rx_link: None,
            mirror_ingress: None,
            mirror_egress: None,
        }
    }
}
