//! Options that every command takes.

use std::path::PathBuf;

/// Options that every command takes, before or after its name.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Global {
    /// Runtime directory: sockets and state [default: $XDG_RUNTIME_DIR/toklat, else /run/toklat]
    #[arg(long, global = true, env = "TOKLAT_DIR", hide_env_values = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print JSON instead of tables: exact numbers, the control API's shapes
    #[arg(long, global = true)]
    pub json: bool,
}
