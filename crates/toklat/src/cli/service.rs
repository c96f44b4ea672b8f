//! Commands for the daemon itself: status, upgrade, stop, pipes.

use std::time::Duration;

use clap::Args;
use hyper::Method;

use crate::api::{Client as Opener, PipeInfo, Status, Stop, Upgrade, Upgraded};
use client::Client;
use client::name::SwitchName;
use client::table::{Table, counted, duration};
use client::{Global, Result};

/// Options of `toklat upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// Only this switch's data process [default: all]
    switch: Option<SwitchName>,
}

/// Options of `toklat stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Let the data processes continue; a restarted daemon takes them over
    #[arg(long)]
    leave_data_processes: bool,
}

/// Shows the daemon's state.
///
/// # Errors
/// If it does not run.
pub fn status(global: &Global) -> Result {
    let status: Status = Client::connect(global)?.get("/v1/status")?;
    let children: String = status.children.iter().map(super::switch::child).collect();
    let text = format!(
        "toklat {} runs as process {} in {}, for {}\n{}, {}; {} of {} descriptors{}\n{}",
        status.version,
        status.pid,
        status.runtime_dir,
        duration(status.uptime_s),
        counted(status.switches as u64, "switch", "es"),
        counted(status.ports as u64, "port", "s"),
        status.descriptors,
        status.descriptor_limit,
        match status.longest_restart_gap_ms {
            0 => String::new(),
            ms => format!("; longest restart {ms} ms, without pause"),
        },
        children.trim_end(),
    );
    global.print_done(&status, text.trim_end())
}

/// Replaces data processes.
///
/// # Errors
/// If the daemon does not run, or a data process cannot be replaced.
pub fn upgrade(args: UpgradeArgs, global: &Global) -> Result {
    let request = Upgrade { switch: args.switch.map(|name| name.to_string()) };
    let upgraded: Upgraded =
        Client::connect(global)?.send(Method::POST, "/v1/upgrade", &request)?;
    let table = || {
        let mut table = Table::new(&["switch", ">old pid", ">new pid", ">gap"]);
        for switch in &upgraded.switches {
            table.row([
                switch.name.clone(),
                switch.old_pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                switch.new_pid.to_string(),
                format!("{} ms", switch.gap_ms),
            ]);
        }
        table
    };
    global.print_list(&upgraded, table, "no switches")
}

/// Stops the daemon, and waits until it is gone.
///
/// # Errors
/// If it does not run.
pub fn stop(args: &StopArgs, global: &Global) -> Result {
    let request = Stop { leave_data_processes: args.leave_data_processes };
    let mut client = Client::connect(global)?;
    client.submit(Method::POST, "/v1/stop", &request)?;
    // The daemon answers on this connection until it exits. If systemd listens on the socket, a new
    // connection might start it again.
    while client.get::<Status>("/v1/status").is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    global.print_done(&request, "stopped")
}

/// Shows the pipes.
///
/// # Errors
/// If the daemon does not run.
pub fn pipes(global: &Global) -> Result {
    let pipes: Vec<PipeInfo> = Client::connect(global)?.get("/v1/pipes")?;
    let opener = |end: Option<Opener>| {
        end.map_or_else(|| "-".to_owned(), |end| format!("pid {} uid {}", end.pid, end.uid))
    };
    let table = || {
        let mut table = Table::new(&["pipe", "{ end", "} end"]);
        for pipe in &pipes {
            let name = format!("{}{{{}", pipe.parent, pipe.id);
            table.row([name, opener(pipe.master), opener(pipe.slave)]);
        }
        table
    };
    global.print_list(&pipes, table, "no pipes; a client makes one by opening vale0:x{1")
}
