//! What other managers of virtual machines and containers call: libvirt's hook.

pub mod libvirt;
mod ports;
