//! Packages, units, hooks, the container image.

mod container;
mod install;
mod libvirt_hook;
mod packaging_install;
mod parts;
mod units;
