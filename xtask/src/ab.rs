//! Two commits beside each other: `toklat bench` of both by turns, in eleven pairs, and the ratio
//! of each row.
//!
//! A pair's programs run one right after the other, and which comes first alternates, so that what
//! the machine does besides falls on both. Of eleven ratios the second lowest and the second
//! highest bound the median with a confidence of 98.8 % (binomial, whatever their distribution).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::tool::{self, cargo, command, root};

/// The benchmark's rows by which commits are judged.
const ROWS: [&str; 7] = [
    "switch.unicast.64.touch",
    "switch.inline.64",
    "switch.inline.1500",
    "switch.pipe.64",
    "switch.broadcast.64",
    "switch.rtt.inline",
    "switch.rtt.pipe",
];
const PAIRS: usize = 11;
/// Repetitions of a row in a run, of which the median counts: two cores that share more than they
/// say make some twice as fast.
const REPS: &str = "5";
/// The least value that the lower end of the ratio's interval must reach.
const BAR: f64 = 0.95;
const PROFILE: &str = "quick";

/// The values of a row in each pair: the base's value, and ours.
struct Row {
    id: String,
    unit: String,
    pairs: Vec<[f64; 2]>,
}

/// Measures `base`, a commit or a program, and compares what is checked out here with it.
pub fn run(base: &str, rows: &[&str]) -> Result<()> {
    let here = root();
    let ours = tool::target().join("ab/ours");
    build(&here, &tool::target(), &ours)?;
    let base = if Path::new(base).is_file() { base.into() } else { build_commit(base)? };
    let rows = if rows.is_empty() { &ROWS[..] } else { rows };
    let mut measured = Vec::new();
    for id in rows {
        let mut row = Row { id: (*id).to_owned(), unit: String::new(), pairs: Vec::new() };
        for pair in 0..PAIRS {
            let mut values = [0.0; 2];
            // The two programs take turns in being first.
            for side in [pair % 2, 1 - pair % 2] {
                let program = [&base, &ours][side];
                (values[side], row.unit) = value(program, id)?;
            }
            row.pairs.push(values);
        }
        println!("{}", row.line());
        measured.push(row);
    }
    let below: Vec<_> =
        measured.iter().filter(|row| row.interval()[0] < BAR).map(|row| row.id.as_str()).collect();
    ensure!(below.is_empty(), "the lower end is below {BAR}: {}", below.join(", "));
    Ok(())
}

/// Builds the commit, in its own work tree, which stays for the next time.
fn build_commit(commit: &str) -> Result<PathBuf> {
    let full =
        command("git", &["rev-parse", "--verify", &format!("{commit}^{{commit}}")]).output()?;
    ensure!(full.status.success(), "{commit} is neither a commit nor a program");
    let full = String::from_utf8(full.stdout)?.trim().to_owned();
    let dir = tool::target().join("ab");
    let program = dir.join(&full);
    if program.is_file() {
        return Ok(program);
    }
    let tree = dir.join("tree");
    if tree.exists() {
        let checkout = ["-C", &tree.to_string_lossy(), "checkout", "--quiet", "--detach", &full];
        tool::run(&mut command("git", &checkout))?;
    } else {
        let add = ["worktree", "add", "--quiet", "--detach", &tree.to_string_lossy(), &full];
        tool::run(&mut command("git", &add))?;
    }
    build(&tree, &dir.join("target"), &program)?;
    Ok(program)
}

/// Builds the program of a work tree, and copies it to `program`.
fn build(tree: &Path, target: &Path, program: &Path) -> Result<()> {
    let mut build = cargo(&["build", "--profile", PROFILE, "--package", "toklat"]);
    tool::run(build.current_dir(tree).env("CARGO_TARGET_DIR", target))?;
    fs::create_dir_all(program.parent().unwrap_or(program))?;
    // A running program's file cannot be written over.
    let _ = fs::remove_file(program);
    fs::copy(target.join(PROFILE).join("toklat"), program)
        .with_context(|| format!("Cannot write {}", program.display()))?;
    Ok(())
}

/// A row's value, and its unit.
fn value(program: &Path, id: &str) -> Result<(f64, String)> {
    let bench = id.split('.').next().unwrap_or_default();
    let args = ["--json", "bench", bench, "--row", id, "--reps", REPS];
    let output = command(&program.to_string_lossy(), &args).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let rows = serde_json::Deserializer::from_str(&said).into_iter::<Value>().flatten();
    let mut rows = rows.flat_map(|row| match row {
        Value::Array(rows) => rows,
        row => vec![row],
    });
    let row = rows.find(|row| row["id"] == id);
    let (value, unit) = row
        .and_then(|row| Some((row["value"].as_f64()?, row["unit"].as_str()?.to_owned())))
        .with_context(|| {
            let error = String::from_utf8_lossy(&output.stderr);
            format!("{id} was not measured: {}", error.trim().lines().last().unwrap_or_default())
        })?;
    if value <= 0.0 {
        bail!("{id} is {value}");
    }
    Ok((value, unit))
}

impl Row {
    /// Ours in terms of the base's, in ascending order: above 1 is better, also where less is
    /// better.
    fn ratios(&self) -> Vec<f64> {
        let rate = self.unit == "Mpps" || self.unit == "Gb/s";
        let ratio = |[base, ours]: &[f64; 2]| if rate { ours / base } else { base / ours };
        let mut ratios: Vec<f64> = self.pairs.iter().map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// Returns the interval in which the ratio's median lies.
    fn interval(&self) -> [f64; 2] {
        let ratios = self.ratios();
        [1, ratios.len().saturating_sub(2)].map(|at| ratios.get(at).copied().unwrap_or(f64::NAN))
    }

    fn line(&self) -> String {
        let median = |side: usize| {
            let mut values: Vec<f64> = self.pairs.iter().map(|pair| pair[side]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let [low, high] = self.interval();
        let verdict = if low < BAR { "  BELOW" } else { "" };
        format!(
            "{:<26} {:>9.3} -> {:>9.3} {:<10} ratio {:.3} ({low:.3} to {high:.3}){verdict}",
            self.id,
            median(0),
            median(1),
            self.unit,
            self.ratios()[self.pairs.len() / 2],
        )
    }
}
