//! The rules of ports that programs open by netmap's interface, and the switches of interfaces.

use dataplane::config::Policy;
use netmap::broker::End;

use crate::api::PortSpec;
use crate::daemon::switch::Switch;

/// The name of an end's port in its switch.
pub const fn port_of(end: End) -> &'static str {
    match end {
        End::Card => "card",
        End::Host => "host",
    }
}

/// The rules of a port that a program opens by netmap's interface: it refuses nothing that VALE
/// forwards.
#[must_use]
pub fn port_spec() -> PortSpec {
    // More than other ports may have: a frame may fill a chain of slots.
    let (mtu, mac_limit) = (u16::MAX, u32::MAX);
    let policy =
        Policy { flood_limit: None, flap_guard: false, mac_limit, mtu, ..Policy::default() };
    PortSpec { policy, ..PortSpec::default() }
}

/// The rules of both ports of an interface's switch: what comes from one goes to the other.
#[must_use]
pub fn wire_spec() -> PortSpec {
    let spec = port_spec();
    PortSpec { policy: Policy { mac_limit: 0, ..spec.policy }, ..spec }
}

/// Returns true if the switch was made for an interface, by this daemon or an earlier one: it has
/// the port of an interface's end, by the rules of [`wire_spec`], which no client makes.
pub fn was_made(switch: &Switch) -> bool {
    let end = End::of(&switch.name).and_then(|end| switch.port(port_of(end)).ok());
    end.is_some_and(|port| !port.configured && port.spec.policy.mac_limit == 0)
}
