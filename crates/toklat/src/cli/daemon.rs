//! The daemon itself, and the process that it starts for each switch.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;

use super::quota::QuotaOption;
use crate::daemon::log::Format;
use crate::daemon::{self, DaemonOptions};
use client::{Global, Result};

/// Options of `toklat daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Topology file to apply at each start, if it has changed since. It adds and changes what it
    /// names, keeps settings that it does not name, and removes what it named before only where
    /// that is not in use
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Let a changed topology file also remove what is in use (as toklat apply --prune does)
    #[arg(long, requires = "topology")]
    topology_prune: bool,
    /// Directory that keeps the applied topology [default: the runtime directory]
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY")]
    state_dir: Option<PathBuf>,
    /// Group whose members may open ports, by name or number [default: only the daemon's user]
    #[arg(long)]
    group: Option<String>,
    /// Group whose members may control the daemon, as its user may
    #[arg(long, value_name = "GROUP")]
    control_group: Option<String>,
    /// Group whose members may read everything, and change nothing (view.sock). Members of --group
    /// read what is about their own ports and root's
    #[arg(long, value_name = "GROUP")]
    view_group: Option<String>,
    /// Serve the control API on this TCP address as well, as in 127.0.0.1:7000; not encrypted, so
    /// a loopback address unless --tcp-in-clear is given
    #[arg(long, value_name = "ADDRESS")]
    listen_tcp: Option<SocketAddr>,
    /// Allow --listen-tcp on any address: who is on the way there reads and changes what is sent,
    /// the token too
    #[arg(long, requires = "listen_tcp")]
    tcp_in_clear: bool,
    /// File with the token that TCP clients send (Authorization: Bearer); at least 16 characters
    #[arg(long, value_name = "FILE", requires = "listen_tcp")]
    token_file: Option<PathBuf>,
    /// File with another token, of TCP clients that may read and change nothing
    #[arg(long, value_name = "FILE", requires = "listen_tcp")]
    view_token_file: Option<PathBuf>,
    /// How the log is written to standard error, or, as journald, to the system's journal
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log: Format,
    /// Limits of each user, except root and the daemon's user, as in ports=100,memory=2GiB. Limits
    /// exist for ports, switches, pipes, memory, connections, addresses, descriptors,
    /// netmap_objects and netmap_ports. Configured limits (toklat quota) take precedence
    #[arg(long, value_name = "WHAT=LIMIT,...", value_delimiter = ',')]
    quota: Vec<QuotaOption>,
    /// Refuse to open ports of switches that do not exist, instead of creating the switch
    #[arg(long)]
    no_auto_switch: bool,
    /// Refuse to start data processes that cannot be fully confined here (toklat switch show NAME
    /// lists the walls)
    #[arg(long)]
    require_walls: bool,
    /// Let data processes continue when a signal stops the daemon; the next daemon takes them over
    #[arg(long)]
    leave_data_processes: bool,
}

/// Options of `toklat data-process`.
#[derive(Debug, Args)]
pub struct DataProcessArgs {
    /// The switch
    #[arg(long)]
    switch: String,
    /// Its settings, in JSON
    #[arg(long)]
    config: String,
    /// Descriptor of the socket to listen on
    #[arg(long)]
    listener: RawFd,
    /// Descriptor of the state memory
    #[arg(long)]
    state: RawFd,
    /// Do not start without all walls
    #[arg(long)]
    require_walls: bool,
}

/// Runs the daemon.
///
/// # Errors
/// If it cannot start.
pub fn run(args: DaemonArgs, global: &Global) -> Result {
    daemon::run(DaemonOptions {
        dir: global.dir(),
        topology: args.topology,
        topology_prune: args.topology_prune,
        state_dir: args.state_dir,
        group: args.group,
        control_group: args.control_group,
        view_group: args.view_group,
        listen: args.listen_tcp,
        tcp_in_clear: args.tcp_in_clear,
        token_file: args.token_file,
        view_token_file: args.view_token_file,
        log: args.log,
        quota: QuotaOption::all(&args.quota),
        auto_switch: !args.no_auto_switch,
        require_walls: args.require_walls,
        leave_data_processes: args.leave_data_processes,
    })
}

/// Runs the data process of a switch.
///
/// # Errors
/// If it was not started by the daemon.
pub fn data_process(args: DataProcessArgs) -> Result {
    let DataProcessArgs { switch, config, listener, state, require_walls, .. } = args;
    daemon::data_process(switch, &config, listener, state, require_walls)
}
