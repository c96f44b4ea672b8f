//! Tests, and the two tools that look at what tests cannot see.

mod pool;
mod programs;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::pool::{Class, Ended, Times, Unit};
use crate::tool::{self, cargo};
use crate::{artifacts, fuzz, snapshots};

/// The time for all tests, from the first one: what is compiled before does not count.
const LIMIT: Duration = Duration::from_secs(2400);
/// The number of tests whose times are printed.
const LONGEST: usize = 50;

/// Runs all tests, or those that arguments of `cargo test` choose; true if they passed. The last
/// line is `N passed, N failed, N skipped`; the lines before it name what failed and what was
/// skipped.
pub fn run(args: &[&str]) -> Result<bool> {
    let all = args.is_empty();
    let mut tally = Tally::default();
    if all && let Err(error) = artifacts::run(&[]) {
        tally.fail(&format!("what tests use was not made: {error:#}"));
    }
    let log = temporary("skipped");
    let _ = fs::remove_file(&log);
    let units = plan(args, &mut tally)?;
    let kept = tool::target().join("test-times.json");
    let mut times = read_times(&kept);
    let before = times.clone();
    let begun = Instant::now();
    let mut took = Vec::new();
    let prepared = units.into_iter().map(|mut unit| {
        unit.command.env("TOKLAT_SKIP_LOG", &log);
        // Tests that are chosen look themselves whether what they use is older than its sources.
        if all {
            unit.command.env(artifacts::BUILT, "1");
        }
        unit.command.env("CARGO_TERM_COLOR", "never");
        unit
    });
    let (idle, in_time) = pool::run(prepared.collect(), &before, LIMIT, |ended| {
        times.insert(ended.name.clone(), ended.took);
        took.push((ended.name.clone(), ended.took));
        tally.ended(&ended);
    })?;
    if !in_time {
        tally.fail(&format!("the tests did not end within {} s", LIMIT.as_secs()));
    }
    let skipped = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    skipped.lines().for_each(|line| tally.skip(line));
    fs::write(&kept, serde_json::to_string_pretty(&times)?).context("test-times.json")?;
    print_longest(took);
    if all {
        fs::write(tool::target().join("test-seconds"), begun.elapsed().as_secs().to_string())?;
    }
    println!(
        "\nthe tests took {} s; the cores were idle {:.0} % of it",
        begun.elapsed().as_secs(),
        idle * 100.0
    );
    println!("{tally}");
    Ok(tally.failed == 0)
}

fn temporary(what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("toklat-{what}-{}", std::process::id()))
}

fn read_times(path: &std::path::Path) -> Times {
    fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Everything to run. Words after `--` are parts of the names of tests.
fn plan(args: &[&str], tally: &mut Tally) -> Result<Vec<Unit>> {
    let mut parts = args.splitn(2, |arg| *arg == "--");
    let (chosen, filters) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let chosen = if args.is_empty() { &["--workspace"][..] } else { chosen };
    let programs = match programs::build(chosen) {
        Ok(programs) => programs,
        Err(error) => {
            tally.fail(&format!("{error:#}"));
            return Ok(Vec::new());
        }
    };
    let confined = programs::has_user_namespaces();
    let (mut units, mut names) = (Vec::new(), Vec::new());
    for program in &programs {
        let tests = program.tests()?;
        units.extend(program.units(&tests, filters, confined));
        names.extend(tests);
    }
    if args.is_empty() {
        snapshots::missing_tests(&names)?.iter().for_each(|gone| tally.fail(gone));
        let doc_tests = cargo(&["test", "--quiet", "--workspace", "--doc"]);
        units.push(Unit::new("doc-tests".into(), doc_tests, Class::Ordinary));
        units.push(Unit::new("models (loom)".into(), models(), Class::Ordinary));
        match seeds(tally) {
            Ok(targets) => units.extend(targets),
            Err(error) => tally.fail(&format!("fuzz targets over their seeds: {error:#}")),
        }
    }
    Ok(units)
}

/// Each fuzz target over its seeds is a test.
fn seeds(tally: &mut Tally) -> Result<Vec<Unit>> {
    let Some(targets) = fuzz::seeds()? else {
        tally.skipped.push("fuzz targets over their seeds: c++ is missing".into());
        return Ok(Vec::new());
    };
    let unit = |(name, command): (String, Command)| {
        Unit::new(format!("{SEEDS}{name}"), command, Class::Ordinary)
    };
    Ok(targets.into_iter().map(unit).collect())
}

/// How the names of fuzz targets begin.
const SEEDS: &str = "fuzz target ";

/// Prints the tests that took longest.
fn print_longest(mut took: Vec<(String, [f64; 2])>) {
    took.sort_by(|a, b| b.1[0].total_cmp(&a.1[0]));
    println!("\n{:>8} {:>8}  the longest tests", "s", "CPU s");
    for (name, [seconds, cpu]) in took.iter().take(LONGEST) {
        println!("{seconds:>8.1} {cpu:>8.1}  {name}");
    }
}

/// The output of the test harnesses.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    failures: Vec<String>,
    /// `name: why`.
    skipped: Vec<String>,
}

impl Tally {
    /// Takes in what a process did. Its output is printed if it failed.
    fn ended(&mut self, ended: &Ended) {
        let (passed, failed) = (self.passed, self.failed);
        let mut told = false;
        if ended.name.starts_with(SEEDS) {
            told = true;
            self.passed += usize::from(ended.status.success());
        } else {
            for line in ended.output.lines() {
                told |= self.read(line);
            }
        }
        if ended.status.success() && told {
            return;
        }
        println!("\n---- {} ({})\n{}", ended.name, ended.status, ended.output);
        // A program that ended early has not told of the test that ended it.
        if self.failed == failed {
            let (name, status) = (&ended.name, ended.status);
            let early = match (status.success(), self.passed == passed) {
                (true, _) => "told no result",
                (false, _) if status.code() == Some(124) => "did not end in time",
                (false, _) => "ended early",
            };
            self.fail(&format!("{name}: {early}"));
        }
    }

    /// Takes in a line that a test program printed; true if it is the result.
    fn read(&mut self, line: &str) -> bool {
        if let Some(test) = line.strip_prefix("test ") {
            if let Some(name) = test.strip_suffix(" ... FAILED") {
                self.failures.push(name.to_owned());
            } else if let Some((name, why)) = test.split_once(" ... ignored") {
                self.skipped.push(format!("{name}: ignored{why}"));
            }
        }
        let Some(counts) = line.strip_prefix("test result: ") else { return false };
        for part in counts.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(n)), Some(what)) = (words.next().map(str::parse::<usize>), words.next())
            else {
                continue;
            };
            match what {
                "passed" => self.passed += n,
                "failed" => self.failed += n,
                _ => {}
            }
        }
        true
    }

    /// Takes in a line of the log of skipped tests. Their harness has counted them as passed.
    fn skip(&mut self, line: &str) {
        self.passed = self.passed.saturating_sub(1);
        self.skipped.push(line.to_owned());
    }

    fn fail(&mut self, what: &str) {
        self.failed += 1;
        self.failures.push(what.to_owned());
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.skipped.iter().try_for_each(|line| writeln!(f, "SKIPPED {line}"))?;
        self.failures.iter().try_for_each(|name| writeln!(f, "FAILED {name}"))?;
        let skipped = self.skipped.len();
        write!(f, "{} passed, {} failed, {skipped} skipped", self.passed, self.failed)
    }
}

/// The models: tests of `shmem` and `abi` under `--cfg loom`, in a directory of their own, because
/// all that is built differs.
fn models() -> Command {
    let packages = ["--package=toklat-shmem", "--package=toklat-abi"];
    let mut loom = cargo(&["test", "--target-dir=target/loom", "--test=loom"]);
    loom.args(packages);
    loom.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3");
    loom
}

/// Runs the models alone.
pub fn loom() -> Result<()> {
    tool::run(&mut models())
}

/// The names of all tests of the workspace.
pub fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for program in programs::build(&["--workspace"])? {
        names.extend(program.tests()?);
    }
    Ok(names)
}

/// Besieges a daemon for this many seconds.
pub fn siege(seconds: &str) -> Result<()> {
    let args = ["test", "--release", "--package=toklat", "--test=siege", "--", "--nocapture"];
    let mut siege = cargo(&args);
    tool::run(siege.env("TOKLAT_SIEGE_SECONDS", seconds).env("TOKLAT_SIEGE_ALONE", "1"))
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
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    const GOOD: &str = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";

    fn ended(name: &str, lines: &[&str], code: i32) -> Ended {
        let status = ExitStatus::from_raw(code << 8);
        Ended { name: name.into(), status, output: lines.join("\n"), took: [0.0; 2] }
    }

    fn tally(all: &[Ended]) -> String {
        let mut tally = Tally::default();
        all.iter().for_each(|ended| tally.ended(ended));
        tally.skip("taps: no root");
        tally.to_string()
    }

    #[test]
    fn results_of_several_harnesses_add_up_and_skips_are_not_passes() {
        let lib = ["test wake::a_kick_is_asked_for_once ... ok", "test slow ... ignored", GOOD];
        let tap = [
            "test tap ... FAILED",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        ];
        let closing = "SKIPPED slow: ignored\nSKIPPED taps: no root\nFAILED tap\n\
                       14 passed, 1 failed, 2 skipped";
        assert_eq!(tally(&[ended("lib", &lib, 0), ended("tap", &tap, 101)]), closing);
    }

    #[test]
    fn processes_without_a_result_have_failed() {
        let early = [ended("a", &["running 3 tests"], 134), ended("b", &[GOOD], 0)];
        let last = "FAILED a: ended early\n11 passed, 1 failed, 1 skipped";
        assert!(tally(&early).ends_with(last), "{}", tally(&early));
        // All that it told was good, and then it crashed, or said nothing at all.
        let late = [ended("a", &[GOOD], 139)];
        assert!(tally(&late).contains("FAILED a: ended early"), "{}", tally(&late));
        assert!(tally(&[ended("a", &[], 0)]).contains("FAILED a: told no result"));
        assert!(tally(&[ended("a", &[], 124)]).contains("FAILED a: did not end in time"));
    }

    #[test]
    fn a_fuzz_target_is_a_test() {
        let all = [ended("fuzz target a", &["Done"], 0), ended("fuzz target b", &["crash"], 77)];
        let last = "FAILED fuzz target b: ended early\n0 passed, 1 failed, 1 skipped";
        assert!(tally(&all).ends_with(last), "{}", tally(&all));
    }
}
