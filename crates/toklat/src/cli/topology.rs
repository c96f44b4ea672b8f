//! `toklat apply` and `toklat export`: the topology file.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use hyper::Method;

use crate::api::{Action, Applied, Change, Topology};
use crate::daemon::apply::name_of;
use crate::daemon::file::parse;
use client::Client;
use client::print_json;
use client::table::{Table, counted};
use client::{Global, Result};

/// Options of `toklat apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// The topology file (TOML); - for standard input
    file: PathBuf,
    /// Only check the file for mistakes; needs no daemon
    #[arg(long, conflicts_with_all = ["prune", "dry_run", "yes"])]
    check: bool,
    /// Remove what an earlier version of this file added and this one does not name
    #[arg(long)]
    prune: bool,
    /// Only show what would change, and which ports' traffic would be interrupted
    #[arg(long)]
    dry_run: bool,
    /// Remove ports in use without asking
    #[arg(long, requires = "prune")]
    yes: bool,
}

/// Adds and changes the daemon's switches and ports as a file says. Objects that the file does not
/// name stay, unless they are pruned.
///
/// # Errors
/// If the file cannot be read or understood, or the daemon does not run or refuses.
pub fn apply(args: &ApplyArgs, global: &Global) -> Result {
    let topology = read(&args.file)?;
    if args.check {
        let ports: usize = topology.switch.values().map(|switch| switch.port.len()).sum();
        let switches = topology.switch.len();
        let switches = counted(switches as u64, "switch", "es");
        let mut done = format!("good: {switches}, {}", counted(ports as u64, "port", "s"));
        if !topology.guest.is_empty() {
            done += &format!(", {}", counted(topology.guest.len() as u64, "guest", "s"));
        }
        return global.print_done(&topology, &done);
    }
    let mut client = Client::connect(global)?;
    let mut put = |prune: bool, dry_run: bool| -> Result<Applied> {
        let file = if args.file == Path::new("-") { "-".into() } else { name_of(&args.file) };
        let file: String = url_word(&file);
        let path = format!("/v1/topology?file={file}&prune={prune}&dry_run={dry_run}");
        Ok(client.send(Method::PUT, &path, &topology)?)
    };
    if args.prune && !args.dry_run && !args.yes {
        ask_for(&put(true, true)?)?;
    }
    let applied = put(args.prune, args.dry_run)?;
    if !global.json {
        applied.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    }
    if global.json || applied.changes.is_empty() {
        return global.print_list(&applied, || Table::new(&[]), "nothing to change");
    }
    Ok(std::io::stdout().lock().write_all(steps(&applied).as_bytes())?)
}

/// Asks the user to confirm changes that take away ports in use.
fn ask_for(plan: &Applied) -> Result {
    let in_use = |change: &&Change| change.action == Action::Removed && change.interrupts.is_some();
    let used: Vec<_> = plan.changes.iter().filter(in_use).collect();
    if used.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = used.iter().map(|change| change.name.as_str()).collect();
    let names = names.join(", ");
    if !std::io::stdin().is_terminal() {
        bail!(
            "{names} would be removed, and is in use; nothing was changed: use --yes to remove it anyway"
        );
    }
    eprint!("Remove {names}, which is in use? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("Nothing was changed");
    }
    Ok(())
}

/// Percent-encodes bytes that have a meaning in a URL.
fn url_word(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    text.bytes().fold(String::new(), |mut word, byte| {
        if plain(byte) {
            word.push(char::from(byte));
        } else {
            word.push_str(&format!("%{byte:02X}"));
        }
        word
    })
}

/// Reads and validates a topology file.
///
/// # Errors
/// If it cannot be read, or has an invalid setting.
pub fn read(file: &Path) -> Result<Topology> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("Cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(file).map_err(|error| {
            let remedy = "name a topology file, or - for standard input";
            anyhow!("Cannot read {}: {error}; {remedy}", file.display())
        })?;
    }
    let name =
        if file == Path::new("-") { "standard input".into() } else { file.to_string_lossy() };
    parse(&text).with_context(|| format!("In {name}"))
}

/// Prints the topology as a file for `toklat apply`.
///
/// # Errors
/// If the daemon does not run.
pub fn export(global: &Global) -> Result {
    let topology: Topology = Client::connect(global)?.get("/v1/topology")?;
    if global.json {
        return print_json(&topology);
    }
    std::io::stdout().lock().write_all(toml::to_string(&topology.in_words())?.as_bytes())?;
    Ok(())
}

/// The steps for people: first whose traffic is interrupted, then each step with its settings, one
/// a line.
fn steps(applied: &Applied) -> String {
    let mut table = Table::new(&["interrupts", "change", "name"]);
    for Change { action, name, interrupts, .. } in &applied.changes {
        let whose = interrupts.clone().unwrap_or_else(|| "-".into());
        table.row([whose, action.to_string(), name.clone()]);
    }
    let mut text = table.to_string();
    for Change { name, settings, .. } in applied.changes.iter().filter(|c| !c.settings.is_empty()) {
        text += &format!("\n{name}\n");
        for setting in settings {
            text += &format!("    {setting}\n");
        }
    }
    text
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
        let again: Topology =
            toml::from_str(&toml::to_string(&topology.in_words()).unwrap()).unwrap();
        assert_eq!(again, topology, "what export prints is what was applied");
    }

    #[test]
    fn the_recipe_for_many_hosts_is_read() {
        let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/evpn.toml");
        let topology = read(Path::new(recipe)).unwrap();
        assert_eq!(topology.evpn.unwrap().neighbor.len(), 1);
        assert_eq!(topology.switch["vale0"].port.len(), 2);
    }
}
