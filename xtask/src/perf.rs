//! Instructions per frame, counted by callgrind, against the limits of `bench/budgets.toml`.
//!
//! A program of `bench/budget` runs a scenario over N frames: `switch SCENARIO N`. What is reported
//! is (I(2N) - I(N)) / N: start-up and warm-up cancel. Counts are the same on every run and
//! machine, for one compiler; times are for `toklat bench`. Of `virtio.*`, whose drivers are for
//! tests, only turns of the switch are counted; of `e1000.*` and `pcnet.*` (`cards`) only those of
//! the model; of `guest.*` (`segments`) only those of the guest that sends or receives.
//!
//! The profile is `release`, which a checkout runs: one build makes the demo and what is counted.

use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};

use crate::tool::{self, cargo, command, root};

/// Frames of the shorter run.
const FRAMES: u64 = 65_536;
/// Runs of valgrind at a time.
const WORKERS: usize = 2;

/// Counts, unless it cannot be done here: then the reason.
pub fn check() -> Result<Option<String>> {
    if !tool::installed("valgrind") {
        return Ok(Some("valgrind is missing (cargo xtask setup)".into()));
    }
    run().map(|()| None)
}

/// Counts, and fails if a scenario is over its budget.
pub fn run() -> Result<()> {
    let budgets =
        std::fs::read_to_string(root().join("bench/budgets.toml")).context("bench/budgets.toml")?;
    let budgets = parse(&budgets)?;
    build()?;
    let programs = tool::target().join("release");
    println!("{:<24} {:>12} {:>8}", "scenario", "instr/frame", "limit");
    let mut over = Vec::new();
    for (scenario, limit, counted) in count(&programs, &budgets) {
        let per_frame = counted?;
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

/// Builds the programs that are counted and the one that the demo runs, with the same features.
pub fn build() -> Result<()> {
    let programs = [
        "-ptoklat",
        "-ptoklat-budget",
        "--bin=toklat",
        "--bin=switch",
        "--bin=cards",
        "--bin=segments",
    ];
    tool::run(cargo(&["build", "--release"]).args(programs))
}

/// A scenario, its limit, and its instructions per frame.
type Counted = (String, f64, Result<f64>);

/// Counts all scenarios, several at a time; in the order of the budgets.
fn count(programs: &Path, budgets: &[(String, f64)]) -> Vec<Counted> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((scenario, limit)) = budgets.get(next.fetch_add(1, Relaxed)) {
                    let counted = per_frame(&programs.join(program_of(scenario)), scenario);
                    let counted = (scenario.clone(), *limit, counted);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(counted);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let place = |name: &str| budgets.iter().position(|(scenario, _)| scenario == name);
    done.sort_by_key(|(scenario, ..)| place(scenario));
    done
}

/// Instructions of a frame.
fn per_frame(program: &Path, scenario: &str) -> Result<f64> {
    let short = instructions(program, scenario, FRAMES)?;
    let long = instructions(program, scenario, 2 * FRAMES)?;
    if long <= short {
        bail!("{scenario}: nothing was counted; has the function been renamed, or inlined?");
    }
    Ok((long - short) as f64 / FRAMES as f64)
}

/// The program that runs a scenario.
fn program_of(scenario: &str) -> &'static str {
    match scenario.split('.').next() {
        Some("e1000" | "pcnet") => "cards",
        Some("guest") => "segments",
        _ => "switch",
    }
}

/// Instructions of one whole run.
fn instructions(program: &Path, scenario: &str, frames: u64) -> Result<u64> {
    let out = format!("toklat-callgrind-{}-{scenario}", std::process::id());
    let out = std::env::temp_dir().join(out);
    let out_arg = format!("--callgrind-out-file={}", out.display());
    let mut args = vec!["--tool=callgrind", "--quiet", &out_arg];
    if scenario.starts_with("virtio.") || scenario.starts_with("scatter") {
        args.push("--toggle-collect=*Inline*turn*");
    }
    if program_of(scenario) != "switch" {
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
