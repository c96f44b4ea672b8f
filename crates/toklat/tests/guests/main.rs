//! Confined guests: their managers, walls, devices and faults.

mod guest_api;
mod guest_devices;
mod guest_faults;
mod guest_starts;
mod guest_topology;
mod guest_walls;
mod manager;
mod trespass;
