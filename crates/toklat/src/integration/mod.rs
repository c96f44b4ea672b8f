//! Hooks for other managers of virtual machines and containers: libvirt's hook, and a CNI plugin.

pub mod cni;
pub mod libvirt;
mod ports;
