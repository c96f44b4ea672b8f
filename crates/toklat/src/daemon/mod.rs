//! The supervisor: holds the topology, starts the data processes, and keeps what they need to go on.

use std::net::SocketAddr;
use std::path::PathBuf;

/// How the daemon runs.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Where its sockets and its state are ([`ring::attach::runtime_directory`]).
    pub dir: PathBuf,
    /// A topology file that is applied at start if nothing was applied before.
    pub topology: Option<PathBuf>,
    /// The group whose members may use the sockets, by name or number; `None` for the daemon's own.
    pub group: Option<String>,
    /// A TCP address to serve the API at as well; needs `token_file`.
    pub listen: Option<SocketAddr>,
    /// A file with the token that TCP clients send (`Authorization: Bearer`).
    pub token_file: Option<PathBuf>,
    /// Opening a port of a switch that does not exist makes the switch.
    pub auto_switch: bool,
    /// Data processes run on when the daemon is told to stop by a signal.
    pub leave_data_processes: bool,
}
