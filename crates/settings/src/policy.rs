//! The rules of a port, as its operator says them: for the switch, for its link, for its guest.

use fabric::{Rules, VlanMode};
use frame::Mac;
use link::{Impairment, RateLimiter};
use serde::{Deserialize, Serialize};

/// How far a guest's interrupts are held back, so that one is for several batches: less work for
/// the guest, at the price of latency. The default is not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Interrupts {
    /// Most interrupts a second of each queue; `None` for any number.
    pub max_rate: Option<u32>,
    /// Microseconds that each waits for more frames to come, unless many have.
    pub max_delay_us: u32,
    /// Each waits only under heavy traffic.
    pub adaptive: bool,
    /// Microseconds that one waits that only says which frames were sent, unless many were: nobody
    /// waits to hear of those.
    pub max_sent_delay_us: u32,
}

impl Interrupts {
    /// True if they are not held back.
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
pub struct Policy {
    /// Talks only to ports that are not protected.
    pub protected: bool,
    /// VLAN membership.
    pub vlan: VlanMode,
    /// Addresses that are always at this port and never learned elsewhere: in its VLAN, or in all
    /// of its `allowed` ones; on a trunk to all VLANs in the native one only.
    pub macs: Vec<Mac>,
    /// Port security: only `macs` (or, if there are none, the first address seen) may be source
    /// addresses.
    pub locked: bool,
    /// Anti-spoofing: only `macs`, of which there is one at least, may be source addresses and
    /// senders of ARP, RARP and neighbour discovery; DHCP servers and routers are not heard. What
    /// could hide such a message is dropped.
    pub guard: bool,
    /// Most addresses that are learned at this port.
    pub mac_limit: u32,
    /// Most flooded frames a second (unknown, multicast, broadcast); `None` for no limit.
    pub flood_limit: Option<u32>,
    /// Refuse to learn addresses that move too often.
    pub flap_guard: bool,
    /// Largest payload of a frame, without Ethernet header and tag, in bytes.
    #[cfg_attr(feature = "schemars", schemars(range(min = 68, max = Policy::MAX_MTU)))]
    pub mtu: u16,
    /// The link is up. Only ports that can tell their owner (guests') may be without.
    pub link: bool,
    /// How far a guest's interrupts are held back.
    #[serde(skip_serializing_if = "Interrupts::is_off")]
    pub interrupts: Interrupts,
    /// A sender to this port waits while any slot was freed within the stall time. Then the port is
    /// stalled, visibly, and drops at once, counted as such (`stall_timeout`), until there is room.
    pub lossless: bool,
    /// How much the port may send: its frames wait in its own ring until there are tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_rate_limiter: Option<RateLimiter>,
    /// How much the port may receive: what is beyond it is dropped, counted (`rate_limit`); if the
    /// port is lossless, its senders wait. Copies for mirrors count like all that goes to a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_rate_limiter: Option<RateLimiter>,
    /// How bad the link is on the way from the port, for tests of what must live with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_impairment: Option<Impairment>,
    /// How bad the link is on the way to the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_impairment: Option<Impairment>,
    /// Copies of what this port sends go to the port of this name too, as they came: also of what
    /// the switch refuses, but for frames beyond the MTU.
    pub mirror_ingress: Option<String>,
    /// Copies of what goes to this port go to the port of this name too: also of what is lost
    /// because its queue is full, but for frames beyond the MTU.
    pub mirror_egress: Option<String>,
}

impl Policy {
    /// Flooded frames a second by default.
    pub const FLOOD_LIMIT: u32 = Rules::FLOOD_LIMIT;
    /// The largest MTU.
    pub const MAX_MTU: u16 = Rules::MAX_MTU;

    /// What the switch needs to know of it.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            protected: self.protected,
            vlan: self.vlan.clone(),
            macs: self.macs.clone(),
            locked: self.locked,
            guard: self.guard,
            mac_limit: self.mac_limit,
            flood_limit: self.flood_limit,
            flap_guard: self.flap_guard,
            mtu: self.mtu,
            lossless: self.lossless,
            mirror_ingress: self.mirror_ingress.clone(),
            mirror_egress: self.mirror_egress.clone(),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        let Rules { protected, vlan, macs, locked, guard, mac_limit, .. } = Rules::default();
        let Rules { flood_limit, flap_guard, mtu, lossless, .. } = Rules::default();
        Self {
            protected,
            vlan,
            macs,
            locked,
            guard,
            mac_limit,
            flood_limit,
            flap_guard,
            mtu,
            link: true,
            interrupts: Interrupts::default(),
            lossless,
            tx_rate_limiter: None,
            rx_rate_limiter: None,
            tx_impairment: None,
            rx_impairment: None,
            mirror_ingress: None,
            mirror_egress: None,
        }
    }
}
