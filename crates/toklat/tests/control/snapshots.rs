//! What users, scripts and scrapers build on, held against copies in `tests/snapshots`: help texts,
//! the API's description, names of metrics, an exported topology.
//!
//! `cargo xtask snapshots` rewrites them. A commit that changes one says so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use harness::Daemon;
use serde_json::json;

/// The environment variable with which the tests write the copies instead of comparing them.
const WRITE: &str = "TOKLAT_WRITE_SNAPSHOTS";

fn snapshots() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/snapshots")
}

/// Compares `found` with the copy `name`, or writes it.
fn hold(name: &str, found: &str) {
    let path = snapshots().join(name);
    if std::env::var_os(WRITE).is_some() {
        return std::fs::write(&path, found).unwrap();
    }
    let copy = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = copy.lines().zip(found.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| copy.lines().count().min(found.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("(the end)").to_owned();
    assert!(
        copy == found,
        "tests/snapshots/{name}:{}: \n  was {}\n  is  {}\nif that is meant: cargo xtask snapshots",
        line + 1,
        at(&copy),
        at(found)
    );
}

/// Adds the help text of each command without subcommands.
fn help_of_leaves(command: &mut clap::Command, name: &str, text: &mut String) {
    let mut is_leaf = true;
    for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
        is_leaf = false;
        let name = format!("{name} {}", sub.get_name());
        help_of_leaves(sub, &name, text);
    }
    if is_leaf {
        *text += &format!("## {name}\n\n{}\n", command.render_long_help());
    }
}

#[test]
fn help_of_every_command_is_as_it_was() {
    let mut root = toklat::cli::Cli::command().term_width(100);
    root.build();
    let mut text = String::new();
    help_of_leaves(&mut root, "toklat", &mut text);
    let kept = text.lines().map(|line| line.trim_end().to_owned() + "\n");
    hold("help.txt", &kept.collect::<String>());
}

#[test]
fn the_description_of_the_api_is_as_it_was() {
    let daemon = Daemon::start();
    let description = serde_json::to_string_pretty(&daemon.get("/openapi.json")).unwrap();
    hold("openapi.json", &(description + "\n"));
}

/// A switch with a port of each kind that needs neither a right nor a peer, limits and losses.
const NETWORK: &str = include_str!("../../../../docs/examples/net.toml");

#[test]
fn names_of_metrics_are_as_they_were() {
    let daemon = Daemon::start();
    daemon.apply(NETWORK);
    let _port = daemon.open("vale0:web").unwrap();
    let metrics = daemon.get("/metrics");
    let lines = metrics.as_str().unwrap().lines();
    let names: BTreeSet<&str> = lines.filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let names = names.iter().map(|name| format!("{name}\n"));
    hold("metrics.txt", &names.collect::<String>());
}

#[test]
fn an_exported_topology_is_as_it_was() {
    let daemon = Daemon::start();
    daemon.apply(NETWORK);
    assert_eq!(daemon.ask("POST", "/v1/switches", &json!({"name": "vale9"})).0, 201);
    let done = daemon.done(&["export"]);
    hold("export.toml", &done);
}
