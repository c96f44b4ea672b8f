//! Instructions per frame, counted by callgrind, against the limits of `bench/budgets.toml`.
//!
//! `crates/dataplane/examples/budget.rs SCENARIO N` runs a scenario over N frames. What is reported
//! is (I(2N) - I(N)) / N: start-up and warm-up cancel. Counts are the same on every run and
//! machine, for one compiler; times are for `toklat bench`. Of `virtio.*`, whose drivers are for
//! tests, only turns of the switch are counted; of `e1000.*` and `pcnet.*`
//! (`crates/nic/examples/cards.rs`) only those of the model; of `guest.*`
//! (`crates/guest/examples/segments.rs`) only those of the guest that sends or receives.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::tool::{self, cargo, command, root};

/// Frames of the shorter run.
const FRAMES: u64 = 65_536;
const PROFILE: &str = "quick";

pub fn run() -> Result<()> {
    if !tool::installed("valgrind") {
        println!("skipped: perf (cargo xtask setup, for valgrind)");
        return Ok(());
    }
    let budgets =
        std::fs::read_to_string(root().join("bench/budgets.toml")).context("bench/budgets.toml")?;
    let budgets = parse(&budgets)?;
    let build = ["build", "--profile", PROFILE, "--package=toklat-dataplane", "--example=budget"];
    tool::run(&mut cargo(&build))?;
    let cards = ["build", "--profile", PROFILE, "--package=toklat-nic", "--example=cards"];
    tool::run(&mut cargo(&cards))?;
    let guest = ["build", "--profile", PROFILE, "--package=toklat-guest", "--example=segments"];
    tool::run(&mut cargo(&guest))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let programs = target.join(PROFILE).join("examples");
    println!("{:<24} {:>12} {:>8}", "scenario", "instr/frame", "limit");
    let mut over = Vec::new();
    for (scenario, limit) in budgets {
        let program = programs.join(program_of(&scenario));
        let short = instructions(&program, &scenario, FRAMES)?;
        let long = instructions(&program, &scenario, 2 * FRAMES)?;
        let per_frame = long.saturating_sub(short) as f64 / FRAMES as f64;
        if long <= short {
            bail!("{scenario}: nothing was counted; has the function been renamed, or inlined?");
        }
        let verdict = if per_frame > limit { "  OVER" } else { "" };
        println!("{scenario:<24} {per_frame:>12.1} {limit:>8.1}{verdict}");
        if per_frame > limit {
            over.push(scenario);
        }
    }
    if !over.is_empty() {
        bail!("over budget: {} (a new limit needs a sentence in its commit)", over.join(", "));
    }
    Ok(())
}

/// The program that runs a scenario.
fn program_of(scenario: &str) -> &'static str {
    match scenario.split('.').next() {
        Some("e1000" | "pcnet") => "cards",
        Some("guest") => "segments",
        _ => "budget",
    }
}

/// Instructions of one whole run.
fn instructions(program: &Path, scenario: &str, frames: u64) -> Result<u64> {
    let out = std::env::temp_dir().join(format!("toklat-callgrind-{}", std::process::id()));
    let out_arg = format!("--callgrind-out-file={}", out.display());
    let mut args = vec!["--tool=callgrind", "--quiet", &out_arg];
    if scenario.starts_with("virtio.") || scenario.starts_with("scatter") {
        args.push("--toggle-collect=*Inline*turn*");
    }
    if program_of(scenario) != "budget" {
        args.extend(["--toggle-collect=*send_turn*", "--toggle-collect=*receive_turn*"]);
    }
    let done = command("valgrind", &args)
        .arg(program)
        .args([scenario, &frames.to_string()])
        .output()
        .context("valgrind could not be started")?;
    let counts = std::fs::read_to_string(&out).unwrap_or_default();
    let _ = std::fs::remove_file(&out);
    if !done.status.success() {
        bail!("{scenario} failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    let total = counts
        .lines()
        .find_map(|l| l.strip_prefix("summary: ").or_else(|| l.strip_prefix("totals: ")));
    total
        .and_then(|t| t.split_whitespace().next()?.parse().ok())
        .context("callgrind counted nothing")
}

/// Lines `name = number`; `#` starts a comment.
fn parse(text: &str) -> Result<Vec<(String, f64)>> {
    let lines = text.lines().map(|l| l.split('#').next().unwrap_or("").trim());
    lines
        .filter(|l| !l.is_empty() && !l.starts_with('['))
        .map(|line| {
            let (name, limit) = line.split_once('=').context("budgets.toml: `name = number`")?;
            let limit = limit.trim().parse().with_context(|| format!("budgets.toml: {line}"))?;
            Ok((name.trim().trim_matches('"').to_owned(), limit))
        })
        .collect()
}
