//! Virtual machines: QEMU guests on a switch.

mod vm_card;
mod vm_dpdk;
mod vm_driver;
mod vm_every_kind;
mod vm_host;
mod vm_ipxe;
mod vm_kinds;
mod vm_migration;
mod vm_nics;
mod vm_pair;
mod vm_passt;
mod vm_run;
mod vm_uplink;
mod vm_vfio;
