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
const ROWS: [&str; 12] = [
    "switch.unicast.64.touch",
    "switch.inline.64",
    "switch.inline.1500",
    "switch.pipe.64",
    "switch.broadcast.64",
    "switch.rtt.inline",
    "switch.rtt.pipe",
    "netmap.isolated.64",
    "netmap.pipe.64",
    "vm.vhost.64",
    "guest.rpc.rate",
    "guest.tcp",
];
const PAIRS: usize = 11;
/// Repetitions of a row in a run, of which the median counts: two cores that share more than they
/// say make some twice as fast.
const REPS: &str = "6";
/// The least value that the lower end of the ratio's interval must reach.
const BAR: f64 = 0.95;
/// The name of the program and of the library of `toklat run` in a commit's folder.
const PROGRAM: &str = "toklat";
const LIBRARY: &str = "libtoklat_preload.so";

/// The values of a row in each pair: the base's value, and ours.
struct Row {
    id: String,
    unit: String,
    pairs: Vec<[f64; 2]>,
}

/// Measures `base`, a commit or a program, beside itself and then beside what is checked out here.
/// What the base differs from itself is what the machine does.
pub fn run(base: &str, rows: &[&str]) -> Result<()> {
    let here = root();
    let ours = tool::target().join("ab/ours");
    build(&here, &tool::target(), &ours)?;
    let base = if Path::new(base).is_file() { base.into() } else { build_commit(base)? };
    let rows = if rows.is_empty() { &ROWS[..] } else { rows };
    println!("the base beside itself:");
    compare([&base, &base], rows)?;
    println!("the base, and what is here:");
    let below = compare([&base, &ours.join(PROGRAM)], rows)?;
    ensure!(below.is_empty(), "the lower end is below {BAR}: {}", below.join(", "));
    Ok(())
}

/// Measures two programs by turns, and prints each row. Returns the rows whose lower end is below
/// the bar.
fn compare(programs: [&PathBuf; 2], rows: &[&str]) -> Result<Vec<String>> {
    let mut below = Vec::new();
    for id in rows {
        let mut row = Row { id: (*id).to_owned(), unit: String::new(), pairs: Vec::new() };
        for pair in 0..PAIRS {
            let mut values = [0.0; 2];
            // The two programs take turns in being first.
            for side in [pair % 2, 1 - pair % 2] {
                (values[side], row.unit) = value(programs[side], id)?;
            }
            row.pairs.push(values);
        }
        println!("{}", row.line());
        if row.interval()[0] < BAR {
            below.push(row.id);
        }
    }
    Ok(below)
}

/// Builds the commit, in its own work tree, which stays for the next time.
fn build_commit(commit: &str) -> Result<PathBuf> {
    let full =
        command("git", &["rev-parse", "--verify", &format!("{commit}^{{commit}}")]).output()?;
    ensure!(full.status.success(), "{commit} is neither a commit nor a program");
    let full = String::from_utf8(full.stdout)?.trim().to_owned();
    let dir = tool::target().join("ab");
    let place = dir.join(&full);
    if place.join(PROGRAM).is_file() {
        return Ok(place.join(PROGRAM));
    }
    let tree = dir.join("tree");
    if tree.exists() {
        let checkout = ["-C", &tree.to_string_lossy(), "checkout", "--quiet", "--detach", &full];
        tool::run(&mut command("git", &checkout))?;
    } else {
        let add = ["worktree", "add", "--quiet", "--detach", &tree.to_string_lossy(), &full];
        tool::run(&mut command("git", &add))?;
    }
    build(&tree, &dir.join("target"), &place)?;
    Ok(place.join(PROGRAM))
}

/// Builds the program of a work tree and the library of `toklat run`, in the profile that its
/// packages have, and copies them to the folder `place`.
fn build(tree: &Path, target: &Path, place: &Path) -> Result<()> {
    let manifest = fs::read_to_string(tree.join("Cargo.toml")).context("Cargo.toml")?;
    let dist = manifest.contains("[profile.dist]");
    let profile = if dist { "dist" } else { "release" };
    let mut program = cargo(&["build", "--profile", profile, "--package", "toklat"]);
    if dist {
        program.args(["--features", "full"]);
    }
    let library = ["rustc", "--profile", profile, "--package", "toklat-preload", "--lib"];
    let mut library = cargo(&library);
    if dist {
        // Alone, because a library of two types gets no link-time optimisation.
        library.args(["--crate-type", "cdylib"]);
    }
    fs::create_dir_all(place)?;
    // In one target folder, these two would make each other stale at each comparison.
    let apart = target.join("preload");
    for (build, name, target) in
        [(&mut program, PROGRAM, target), (&mut library, LIBRARY, apart.as_path())]
    {
        tool::run(build.current_dir(tree).env("CARGO_TARGET_DIR", target))?;
        let copy = place.join(name);
        // A running program's file cannot be written over.
        let _ = fs::remove_file(&copy);
        fs::copy(target.join(profile).join(name), &copy)
            .with_context(|| format!("Cannot write {}", copy.display()))?;
    }
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
