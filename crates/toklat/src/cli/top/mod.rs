//! `toklat top`: a live view of ports, rates, drops and workers. Drawing needs the feature `top`.

#[cfg(feature = "top")]
mod live;
#[cfg(feature = "top")]
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Args, ValueEnum};
use client::name::Name;
use client::{Global, Result, UsageError};

use super::stats::interval;

/// Options of `toklat top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// A switch (vale0) or a port (vale0:p1) [default: all]
    name: Option<Name>,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Order of the ports
    #[arg(long, default_value = "in")]
    sort: Sort,
}

/// Order of the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Those that send and receive most first
    Rate,
    /// Those that send most first
    In,
    /// Those that receive most first
    Out,
    /// Those that lose most first
    Drops,
    /// By name
    Name,
}

/// Shows the live view until `q`.
///
/// # Errors
/// If standard output is no terminal, the daemon does not run, there is no such switch or port, or
/// this program was built without the view.
pub fn run(args: &TopArgs, global: &Global) -> Result {
    if !std::io::stdout().is_terminal() || global.json {
        let message = "top needs a terminal; for programs there is toklat stats --watch --json";
        return Err(UsageError::new(message).into());
    }
    #[cfg(feature = "top")]
    {
        live::run(args, global)
    }
    #[cfg(not(feature = "top"))]
    {
        let _ = args;
        Err(super::not_built("live view"))
    }
}
