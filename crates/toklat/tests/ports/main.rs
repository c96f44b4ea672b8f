//! Ports of every kind, and their traffic: rings, sockets, vhost-user, emulated NICs, tools.

mod capture;
mod capture_whole;
mod daemon_attach;
mod daemon_bells;
mod daemon_busy;
mod daemon_endpoints;
mod daemon_impairments;
mod daemon_limits;
mod daemon_links;
mod daemon_lossless;
mod daemon_memory;
mod daemon_move;
mod daemon_pages;
mod daemon_ports;
mod daemon_rules;
mod daemon_sflow;
mod daemon_sockets;
mod daemon_trusted;
mod daemon_upgrade;
mod daemon_waiting;
mod tools_daemon;
mod tools_pipe;
mod vfio_user;
mod vfio_user_messages;
mod vhost_user;
mod vhost_user_peers;
