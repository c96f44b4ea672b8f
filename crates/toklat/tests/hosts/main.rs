//! Hosts and their networks: interfaces, tunnels, EVPN, container networks. They make namespaces.

mod cni;
mod evpn;
mod evpn_migration;
mod evpn_neighbors;
mod evpn_scale;
mod evpn_walls;
mod host;
mod interface;
mod links;
mod vxlan;
