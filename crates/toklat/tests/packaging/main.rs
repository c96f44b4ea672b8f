//! Packages, units, hooks, the container image.

mod container;
mod libvirt_hook;
mod packaging_install;
mod units;
