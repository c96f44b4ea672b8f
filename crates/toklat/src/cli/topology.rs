//! `toklat apply` and `toklat export`: the topology file.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use hyper::Method;

use super::client::Client;
use super::global::print_json;
use super::table::Table;
use super::{Global, Result};
use crate::api::{Action, Applied, Topology};
use crate::daemon::topology::parse;

/// Options of `toklat apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// The topology file (TOML); - for standard input
    file: PathBuf,
    /// Only read the file and say what is wrong with it; needs no daemon
    #[arg(long)]
    check: bool,
}

/// Makes the daemon's switches and ports as a file says.
///
/// # Errors
/// If the file cannot be read or understood, or the daemon does not run or refuses.
pub fn apply(args: &ApplyArgs, global: &Global) -> Result {
    let topology = read(&args.file)?;
    if args.check {
        let ports: usize = topology.switch.values().map(|switch| switch.port.len()).sum();
        let switches = topology.switch.len();
        return global.print_done(&topology, &format!("good: {switches} switches, {ports} ports"));
    }
    let applied: Applied = Client::connect(global)?.send(Method::PUT, "/v1/topology", &topology)?;
    global.print_list(&applied, || table(&applied), "nothing to change: it is so already")
}

/// Reads a topology file.
///
/// # Errors
/// If it cannot be read, or says something that cannot be.
pub fn read(file: &Path) -> Result<Topology> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("Cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(file)
            .with_context(|| format!("Cannot read {}", file.display()))?;
    }
    parse(&text).with_context(|| format!("In {}", file.display()))
}

/// Prints the topology as a file that can be applied.
///
/// # Errors
/// If the daemon does not run.
pub fn export(global: &Global) -> Result {
    let topology: Topology = Client::connect(global)?.get("/v1/topology")?;
    if global.json {
        return print_json(&topology);
    }
    std::io::stdout().lock().write_all(toml::to_string(&topology)?.as_bytes())?;
    Ok(())
}

fn table(applied: &Applied) -> Table {
    let mut table = Table::new(&["change", "name"]);
    for change in &applied.changes {
        let action = match change.action {
            Action::Added => "added",
            Action::Changed => "changed",
            Action::Replaced => "replaced",
            Action::Removed => "removed",
        };
        table.row([action.into(), change.name.clone()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use dataplane::config::Idle;
    use fabric::VlanMode;

    use super::*;

    #[test]
    fn the_example_is_read_and_says_what_its_comments_say() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/net.toml");
        let topology = read(Path::new(example)).unwrap();
        let (vale0, vale1) = (&topology.switch["vale0"], &topology.switch["vale1"]);
        assert_eq!((vale0.config.workers.len(), vale0.config.idle), (2, Idle::Sleep));
        assert!(vale0.port["backup"].policy.lossless);
        assert!(vale0.port["tenant1"].policy.protected && vale0.port["tenant2"].policy.locked);
        assert!(matches!(vale1.port["uplink"].policy.vlan, VlanMode::Trunk { .. }));
        let again: Topology = toml::from_str(&toml::to_string(&topology).unwrap()).unwrap();
        assert_eq!(again, topology, "what export prints is what was applied");
    }
}
