//! The options of `toklat port add` and `port set`, and the API's words for them.
//!
//! Only what was given is sent, so that one list of options serves both: a new port takes defaults
//! for the rest, an old one keeps what it has. What a port is attached to is the topology's to say
//! ([`KindOptions`]).

mod words;

use std::net::IpAddr;

use clap::Args;
use client::units::interrupts;
use dataplane::config::{Interrupts, Policy};
use fabric::VlanMode;
use frame::{Mac, VlanId};
use serde::Serialize;
use serde_json::{Map, Value, json};
pub use topology::flags::KindOptions;

pub use self::words::{BadLink, Or, RateLimit};
use self::words::{Vlans, on_off, up_down, vlans};
use crate::users::UserId;

/// A port's rules and its worker.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Rules")]
pub struct PolicyOptions {
    /// Senders wait for this port instead of losing frames, as long as it frees a slot within the
    /// switch's stall time
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_name = "on|off", value_parser = on_off)]
    lossless: Option<bool>,
    /// Exchange frames only with ports that are not protected
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_name = "on|off", value_parser = on_off)]
    protected: Option<bool>,
    /// Member of one VLAN; its frames carry no tag, or one with a priority only
    #[arg(long, value_name = "VLAN", group = "vlan")]
    vlan_access: Option<VlanId>,
    /// Member of these VLANs, as in 10,20 or 10-20, or all; its frames carry tags
    #[arg(long, value_name = "VLANS", group = "vlan", value_parser = vlans)]
    vlan_trunk: Option<Vlans>,
    /// Ignore VLANs: tags are payload (the default)
    #[arg(long, group = "vlan")]
    vlan_unaware: bool,
    /// On a trunk: the VLAN of frames without a tag [default: drop them]
    #[arg(long, value_name = "VLAN", requires = "vlan_trunk")]
    native: Option<VlanId>,
    /// A static address of the port, never learned elsewhere; give the option once for each address
    #[arg(long = "mac", value_name = "MAC|none")]
    macs: Vec<Or<Mac>>,
    /// Allow only the port's addresses (--mac, else the first one that it sends) as source
    /// addresses
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_name = "on|off", value_parser = on_off)]
    locked: Option<bool>,
    /// Anti-spoofing: allow only the port's addresses (--mac) as sources, in ARP and neighbour
    /// discovery too; drop what DHCP servers and routers send
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_name = "on|off", value_parser = on_off)]
    guard: Option<bool>,
    /// With --guard: allow only these IP addresses as sources and in ARP and neighbour discovery,
    /// as in 10.0.0.7,fd00::7
    #[arg(long = "ip", value_name = "IP,...|none", value_delimiter = ',')]
    ips: Vec<Or<IpAddr>>,
    /// Maximum flooded frames a second that the port may send [default: 100000]
    #[arg(long, value_name = "N|off")]
    flood_limit: Option<Or<u32>>,
    /// Rate limit for what the port sends, such as 1Gb/s or 500Mb/s,100kpps; frames beyond it wait
    /// in the port's own ring
    #[arg(long, value_name = "RATE|off")]
    tx_limit: Option<Or<RateLimit>>,
    /// Rate limit for what the port receives; frames beyond it are dropped and counted, or wait if
    /// the port is lossless
    #[arg(long, value_name = "RATE|off")]
    rx_limit: Option<Or<RateLimit>>,
    /// Impair the link for what the port sends, to test programs over a bad network, as in
    /// loss=0.1%,delay=10ms,jitter=1ms,reorder=1%,duplicate=0.1%,seed=7
    #[arg(long, value_name = "off|loss=P%,delay=T,...")]
    tx_impair: Option<Or<BadLink>>,
    /// Impair the link for what the port receives
    #[arg(long, value_name = "off|loss=P%,delay=T,...")]
    rx_impair: Option<Or<BadLink>>,
    /// Refuse to learn addresses that move too often [default: on]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    flap_guard: Option<bool>,
    /// Largest payload of a frame in bytes, up to 9216 [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16)
        .range(1..=Policy::MAX_MTU as i64))]
    mtu: Option<u16>,
    /// A virtual machine's link: its guest sees a cable that is plugged in, or is not [default: up]
    #[arg(long, value_name = "up|down", value_parser = up_down)]
    link: Option<bool>,
    /// Coalesce a virtual machine's interrupts: at most N a second (rate), or delayed by up to US
    /// microseconds (delay; adaptive: only under heavy traffic), or delay only those for sent
    /// frames (sent), as in rate=20000 or delay=50,adaptive or sent=1000
    #[arg(long, visible_alias = "itr", value_name = "off|rate=N,delay=US,adaptive,sent=US", value_parser = interrupts)]
    interrupts: Option<Interrupts>,
    /// The worker that serves the port, from 0; a running port moves there [default: least loaded]
    #[arg(long, value_name = "N")]
    worker: Option<u16>,
    /// Copy what this port sends to another port of the switch
    #[arg(long, value_name = "PORT|none")]
    mirror_in: Option<Or<String>>,
    /// Copy what this port receives to another port of the switch
    #[arg(long, value_name = "PORT|none")]
    mirror_out: Option<Or<String>>,
    /// The only user, by name or uid, that may open the port (besides root and the daemon's user)
    #[arg(long, value_name = "USER|none")]
    owner: Option<Or<UserId>>,
}

impl PolicyOptions {
    /// The given options, as JSON for the API.
    #[must_use]
    pub fn patch(&self) -> Map<String, Value> {
        let mut patch = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            patch.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("lossless", self.lossless.map(Value::from));
        put("protected", self.protected.map(Value::from));
        put("vlan", self.vlan().map(|mode| json!(mode)));
        put("locked", self.locked.map(Value::from));
        put("guard", self.guard.map(Value::from));
        put("flood_limit", self.flood_limit.as_ref().map(or_null));
        put("tx_rate_limiter", self.tx_limit.as_ref().map(or_null));
        put("rx_rate_limiter", self.rx_limit.as_ref().map(or_null));
        put("tx_impairment", self.tx_impair.as_ref().map(or_null));
        put("rx_impairment", self.rx_impair.as_ref().map(or_null));
        put("flap_guard", self.flap_guard.map(Value::from));
        put("mtu", self.mtu.map(Value::from));
        put("link", self.link.map(Value::from));
        put("interrupts", self.interrupts.map(|interrupts| json!(interrupts)));
        put("worker", self.worker.map(Value::from));
        put("mirror_ingress", self.mirror_in.as_ref().map(or_null));
        put("mirror_egress", self.mirror_out.as_ref().map(or_null));
        put("owner", self.owner.as_ref().map(or_null));
        if !self.macs.is_empty() {
            let macs: Vec<&Mac> = self.macs.iter().filter_map(Or::value).collect();
            put("macs", Some(json!(macs)));
        }
        // Without the guard, its addresses have no meaning.
        if !self.ips.is_empty() || self.guard == Some(false) {
            let ips: Vec<&IpAddr> = self.ips.iter().filter_map(Or::value).collect();
            put("ips", Some(json!(ips)));
        }
        patch
    }

    fn vlan(&self) -> Option<VlanMode> {
        if self.vlan_unaware {
            return Some(VlanMode::Unaware);
        }
        if let Some(vlan) = self.vlan_access {
            return Some(VlanMode::Access(vlan));
        }
        let Vlans(allowed) = self.vlan_trunk.clone()?;
        Some(VlanMode::Trunk { allowed, native: self.native })
    }
}

/// The value in JSON; null for `off` or `none`.
pub(super) fn or_null<T: Serialize>(value: &Or<T>) -> Value {
    json!(value.value())
}

#[cfg(test)]
mod tests;
