//! Tests, and the two tools that look at what tests cannot see.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::tool::{self, cargo, command};

/// Most seconds a test run may take.
const LIMIT: &str = "1500";

/// Runs all tests, and says in the last line how many passed, failed and were skipped, and which.
pub fn run(args: &[&str]) -> Result<()> {
    let log = std::env::temp_dir().join(format!("toklat-skipped-{}", std::process::id()));
    let _ = std::fs::remove_file(&log);
    let mut all = vec!["-k", "10", LIMIT, "cargo", "test", "--workspace", "--no-fail-fast"];
    all.extend(args);
    let mut child = command("timeout", &all)
        .env("TOKLAT_SKIP_LOG", &log)
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo test could not be started")?;
    let mut tally = Tally::default();
    let output = child.stdout.take().context("no output to read")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        tally.read(&line);
    }
    let status = child.wait()?;
    let skipped = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    println!();
    for line in skipped.lines() {
        println!("SKIPPED {line}");
    }
    for name in &tally.failures {
        println!("FAILED {name}");
    }
    if status.code() == Some(124) {
        println!("FAILED the run did not end within {LIMIT} s");
    }
    let names: Vec<&str> =
        skipped.lines().filter_map(|l| l.split_once(": ").map(|(name, _)| name)).collect();
    println!("{}", tally.summary(&names));
    if !status.success() {
        bail!("the tests did not pass");
    }
    Ok(())
}

/// What the test harnesses said.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
    failures: Vec<String>,
}

impl Tally {
    fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        }
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        for part in counts.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(n)), Some(what)) = (words.next().map(str::parse::<usize>), words.next())
            else {
                continue;
            };
            match what {
                "passed" => self.passed += n,
                "failed" => self.failed += n,
                "ignored" => self.ignored += n,
                _ => {}
            }
        }
    }

    /// A test that skips itself also passes, as far as its harness knows.
    fn summary(&self, skipped: &[&str]) -> String {
        let passed = self.passed.saturating_sub(skipped.len());
        let total = skipped.len() + self.ignored;
        let mut line = format!("{passed} passed, {} failed, {total} skipped", self.failed);
        if !skipped.is_empty() {
            line += &format!(": {}", skipped.join(", "));
        }
        line
    }
}

/// Runs the models: tests of `shmem` and `ring` under `--cfg loom`.
pub fn loom() -> Result<()> {
    let mut loom = cargo(&[
        "test",
        "--package=toklat-shmem",
        "--profile=quick",
        "--target-dir=target/loom",
        "--test=loom",
    ]);
    tool::run(loom.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3"))
}

/// Runs the tests of the pure crates under Miri.
pub fn miri() -> Result<()> {
    if !tool::has_subcommand("+nightly", "miri") {
        println!("skipped: miri (rustup toolchain install nightly --component miri,rust-src)");
        return Ok(());
    }
    let packages = ["-ptoklat-shmem", "-ptoklat-frame", "-ptoklat-port"];
    let mut args = vec!["+nightly", "miri", "test", "--lib"];
    args.extend(packages);
    // Memory files are the kernel's; Miri has anonymous mappings only.
    tool::run(cargo(&args).env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn results_of_several_harnesses_add_up_and_skips_are_not_passes() {
        let mut tally = Tally::default();
        for line in [
            "test wake::a_kick_is_asked_for_once ... ok",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test taps ... FAILED",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        ] {
            tally.read(line);
        }
        assert_eq!(tally.summary(&["ping"]), "14 passed, 1 failed, 2 skipped: ping");
        assert_eq!(tally.failures, ["taps"]);
    }
}
