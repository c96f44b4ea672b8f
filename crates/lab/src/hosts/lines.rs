//! Lines of topology files of hosts.

use std::path::Path;

use super::Net;

/// A topology's lines for a static tunnel from host `n` to host `peer`, and a tap in guest `g<n>`
/// if there is one.
#[must_use]
pub fn static_tunnel(net: &Net, (n, peer): (usize, usize), tap_mtu: Option<u32>) -> String {
    let fabric = format!(
        "[switch.vale0.port.fabric]\nkind = {{ vxlan = {{ vni = 100, local = \"10.99.0.{n}\", \
         peers = [\"10.99.0.{peer}\"], netns = \"{}\" }} }}\n",
        net.name(&format!("h{n}"))
    );
    fabric + &tap_mtu.map(|mtu| tap(net, n, mtu)).unwrap_or_default()
}

/// A topology's lines for a tap `e0` in guest `g<n>`.
#[must_use]
pub fn tap(net: &Net, n: usize, mtu: u32) -> String {
    format!(
        "[switch.vale0.port.guest]\nmtu = {mtu}\nflood_limit = 100000\n\
         kind = {{ tap = {{ ifname = \"e0\", netns = \"{}\" }} }}\n",
        net.name(&format!("g{n}"))
    )
}

/// A topology's lines for EVPN on host `n`, with the reflector at host `reflector`.
#[must_use]
pub fn evpn(net: &Net, n: usize, reflector: usize, gobgpd: &Path) -> String {
    let netns = net.name(&format!("h{n}"));
    format!(
        "[switch.vale0.port.fabric]\nkind = {{ vxlan = {{ vni = 100, evpn = true }} }}\n\
         [evpn]\nas = 65000\nrouter_id = \"10.99.0.{n}\"\nvtep = \"10.99.0.{n}\"\nnetns = \"{netns}\"\n\
         program = \"{}\"\n[[evpn.neighbor]]\naddress = \"10.99.0.{reflector}\"\n",
        gobgpd.display()
    )
}
