//! The MTU that guests are told: passt says it in DHCP (option 26) and in router advertisements.

use control::name::SwitchName;
use control::{Client, Global};

use super::{PORT, UplinkArgs};
use crate::api::PortInfo;

/// The MTU of Ethernet.
const USUAL: u16 = 1500;
/// For how many nanoseconds the daemon's answer is reused. Guests can cause questions, so these
/// must be bounded.
const FRESH: u64 = 1_000_000_000;

/// The MTU for guests.
pub struct Mtu<'a> {
    global: &'a Global,
    switch: &'a SwitchName,
    given: Option<u16>,
    /// The MTU that fits the switch, and when the daemon reported it.
    last: Option<(u16, u64)>,
}

impl<'a> Mtu<'a> {
    pub const fn new(global: &'a Global, args: &'a UplinkArgs) -> Self {
        Self { global, switch: &args.switch, given: args.mtu, last: None }
    }

    /// Returns the MTU at this time. If the daemon does not answer, returns the last one, or the
    /// usual one.
    pub fn at(&mut self, now: u64) -> u16 {
        if let Some(given) = self.given {
            return given;
        }
        let last = self.last;
        if let Some((mtu, _)) = last.filter(|(_, at)| now.saturating_sub(*at) < FRESH) {
            return mtu;
        }
        let ports = Client::connect(self.global).and_then(|client| {
            let path = format!("{}/ports", self.switch.path());
            client.without_progress().get::<Vec<PortInfo>>(&path)
        });
        let mtu = match (ports, last) {
            (Ok(ports), _) => fits(&ports),
            (Err(_), Some((mtu, _))) => mtu,
            (Err(_), None) => USUAL,
        };
        self.last = Some((mtu, now));
        mtu
    }
}

/// The largest MTU, [`USUAL`] at most, of which packets fit the uplink and all tunnels.
fn fits(ports: &[PortInfo]) -> u16 {
    let tunnels = ports.iter().filter_map(|port| port.tunnel.as_ref()?.inner_mtu);
    let own = ports.iter().filter(|port| port.name == PORT).map(|port| port.spec.policy.mtu);
    tunnels.chain(own).fold(USUAL, u16::min)
}
