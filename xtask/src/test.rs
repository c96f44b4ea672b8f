//! Tests, and the two tools that look at what tests cannot see.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::artifacts;
use crate::fuzz::{self, Seeds};
use crate::privilege::{self, Privilege};
use crate::tool::{self, cargo, command};

/// The maximum number of seconds for all tests, and for one test program.
const LIMIT: &str = "4400";
const PROGRAM_LIMIT: &str = "600";

/// The programs of which each test has a process of its own: what one does to its process is no
/// other's business.
const ALONE: &str = "control-*|ports-*|guests-*|vm-*|programs-*|hosts-*|packaging-*|siege-*";

/// Runs a test program, or each test of one, with the privileges that an ordinary user gets.
const RUNNER: &str = r#"
capable() { unshare --user --map-current-user --keep-caps "$@"; }
root() {
    if unshare --user --map-root-user --map-auto --mount true 2>/dev/null; then
        unshare --user --map-root-user --map-auto --mount "$@"
    else
        echo "no subordinate ids: apt-get install uidmap; usermod --add-subuids, --add-subgids" >&2
        "$@"
    fi
}
program=$1 name=${1##*/} status=0
shift
case "$name" in
    ALONE)
        for test in $("$program" "$@" --list --format terse | sed -n 's/: test$//p'); do
            $(privileges "$name/$test") timeout --foreground -k5 LIMIT "$program" "$@" --exact "$test" || status=$?
        done ;;
    *) $(privileges "$name/") timeout --foreground -k5 LIMIT "$program" "$@" || status=$? ;;
esac
exit $status
"#;

/// The script that runs a test program. Root has all privileges.
fn runner(privileged: bool) -> String {
    let mut cases = String::new();
    for (_, program, privilege, modules) in privilege::TABLE.iter().filter(|_| !privileged) {
        let tests = |module: &&str| format!("{program}-*/{module}::*");
        let patterns: Vec<_> = modules.iter().map(tests).collect();
        let pattern = if modules.is_empty() { format!("{program}-*") } else { patterns.join("|") };
        let command = match privilege {
            Privilege::Capable => "capable",
            Privilege::Root => "root",
        };
        cases += &format!("    {pattern}) echo {command} ;;\n");
    }
    let privileges = format!("privileges() {{ case \"$1\" in\n{cases}    *) ;;\nesac; }}\n");
    privileges + &RUNNER.replace("ALONE", ALONE).replace("LIMIT", PROGRAM_LIMIT)
}

/// True for an ordinary user, where the kernel gives them user namespaces.
fn has_user_namespaces() -> bool {
    let id = Command::new("id").arg("-u").output();
    let is_root = id.is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    let probe = ["--user", "--map-current-user", "--keep-caps", "true"];
    !is_root && tool::succeeds(&mut command("unshare", &probe))
}

/// Runs all tests; true if they passed. The last line is `N passed, N failed, N skipped`; the lines
/// before it name what failed and what was skipped.
pub fn run(args: &[&str]) -> Result<bool> {
    if args.is_empty() {
        artifacts::run(&[])?;
    }
    let log = temporary("skipped");
    let _ = std::fs::remove_file(&log);
    // In the foreground, so that Ctrl-C reaches the tests.
    let script = temporary("runner");
    std::fs::write(&script, runner(!has_user_namespaces())).context("the runner has no file")?;
    let runner = format!("target.'cfg(all())'.runner=['sh','{}']", script.display());
    let mut all = vec!["--foreground", "-k10", LIMIT, "cargo", "test", "--config", &runner];
    all.extend(["--workspace", "--no-fail-fast"]);
    all.extend(args);
    let mut tests = command("timeout", &all);
    let mut tally = Tally::default();
    tests.env("TOKLAT_SKIP_LOG", &log);
    if args.is_empty() {
        tests.env(artifacts::BUILT, "1");
    }
    let mut parts = vec![tests];
    if args.is_empty() {
        parts.push(models());
    }
    for mut part in parts {
        let status = watch(part.env("CARGO_TERM_COLOR", "never"), |line| {
            println!("{line}");
            tally.read(line);
        })?;
        tally.end(status);
    }
    if args.is_empty() {
        tally.seeds(fuzz::seeds());
    }
    let skipped = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = (std::fs::remove_file(&log), std::fs::remove_file(&script));
    skipped.lines().for_each(|line| tally.skip(line));
    println!("\n{tally}");
    Ok(tally.failed == 0)
}

fn temporary(what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("toklat-{what}-{}", std::process::id()))
}

/// Runs it to its end and passes on each line of its output, through a file: a pipe would stay open
/// as long as anything that was started lives.
fn watch(command: &mut Command, mut heard: impl FnMut(&str)) -> Result<ExitStatus> {
    let path = temporary("output");
    let file = File::create(&path).context("the tests' output has no file")?;
    let mut output = BufReader::new(File::open(&path)?);
    std::fs::remove_file(&path)?;
    let mut child = command
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context("cargo test could not be started")?;
    let mut line = Vec::new();
    loop {
        // Asked before the output is read, so that nothing that was written is missed.
        let ended = child.try_wait()?;
        while output.read_until(b'\n', &mut line)? > 0 {
            if line.ends_with(b"\n") || ended.is_some() {
                heard(String::from_utf8_lossy(&line).trim_end_matches('\n'));
                line.clear();
            }
        }
        std::io::stdout().flush()?;
        if let Some(status) = ended {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(50));
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
    /// A test program that has not told its result yet.
    runs: Option<String>,
}

impl Tally {
    /// Takes in a line that cargo or a test program printed.
    fn read(&mut self, line: &str) {
        if let Some(program) =
            line.strip_prefix("     Running ").or_else(|| line.strip_prefix("   Doc-tests "))
        {
            self.program_is_over();
            self.runs = Some(program.to_owned());
        }
        if let Some(test) = line.strip_prefix("test ") {
            if let Some(name) = test.strip_suffix(" ... FAILED") {
                self.failures.push(name.to_owned());
            } else if let Some((name, why)) = test.split_once(" ... ignored") {
                self.skipped.push(format!("{name}: ignored{why}"));
            }
        }
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        self.runs = None;
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
    }

    /// Takes in a line of the log of skipped tests. Their harness has counted them as passed.
    fn skip(&mut self, line: &str) {
        self.passed = self.passed.saturating_sub(1);
        self.skipped.push(line.to_owned());
    }

    /// Takes in what the fuzz targets made of their seeds: each target is a test.
    fn seeds(&mut self, ran: Result<Option<Vec<Seeds>>>) {
        match ran {
            Err(error) => self.fail(&format!("fuzz targets over their seeds: {error:#}")),
            Ok(None) => self.skipped.push("fuzz targets over their seeds: c++ is missing".into()),
            Ok(Some(targets)) => {
                for Seeds { target, found } in targets {
                    match found {
                        Ok(()) => self.passed += 1,
                        Err(said) => {
                            println!("fuzz target {target}: {said}");
                            self.fail(&format!("fuzz target {target} over its seeds"));
                        }
                    }
                }
            }
        }
    }

    fn fail(&mut self, what: &str) {
        self.failed += 1;
        self.failures.push(what.to_owned());
    }

    fn program_is_over(&mut self) {
        if let Some(program) = self.runs.take() {
            self.fail(&format!("a test program ended early: {program}"));
        }
    }

    /// Takes in how cargo ended: no harness tells of a program that aborted or was not built.
    fn end(&mut self, status: ExitStatus) {
        self.program_is_over();
        if status.code() == Some(124) {
            self.fail(&format!("the tests did not end within {LIMIT} s"));
        } else if !status.success() && self.failed == 0 {
            self.fail("a test program ended early or did not build");
        }
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

/// Writes the copies in `tests/snapshots` anew.
pub fn snapshots() -> Result<()> {
    let mut write = cargo(&["test", "--package=toklat", "--test=snapshots"]);
    tool::run(write.env("TOKLAT_WRITE_SNAPSHOTS", "1"))
}

/// Besieges a daemon for this many seconds.
pub fn siege(seconds: &str) -> Result<()> {
    let args = ["test", "--profile=quick", "--package=toklat", "--test=siege", "--", "--nocapture"];
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
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use super::{Tally, runner, watch};

    fn tally(lines: &[&str], code: i32) -> String {
        let mut tally = Tally::default();
        lines.iter().for_each(|line| tally.read(line));
        tally.skip("taps: no root");
        tally.end(ExitStatus::from_raw(code << 8));
        tally.to_string()
    }

    #[test]
    fn tests_run_one_by_one_with_their_privileges() {
        let place = std::env::temp_dir().join(format!("toklat-programs-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let program = place.join("ports-1");
        let script = r#"case "$*" in
            *--list*) echo 'a::b: test'; echo 'daemon_pages::c: test' ;;
            *) echo "ran $*"; [ "$2" != a::b ] ;;
        esac"#;
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let run = |privileged| {
            let unshare = r#"unshare() { echo "$*"; shift 4; "$@"; }"#;
            let text = format!("{unshare}\n{}", runner(privileged));
            let output = Command::new("sh").args(["-c", &text, "sh"]).arg(&program).output();
            let output = output.unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        // The first fails, and the second runs all the same.
        let ran = "ran --exact a::b\nran --exact daemon_pages::c\n";
        assert_eq!(run(true), (Some(1), ran.to_owned()));
        let (status, said) = run(false);
        let lines: Vec<_> = said.lines().collect();
        let root = "--user --map-root-user --map-auto --mount ";
        assert_eq!((status, lines[0]), (Some(1), "ran --exact a::b"));
        assert!(lines[1..3].iter().all(|line| line.starts_with(root)), "{said}");
        assert_eq!(lines[3..], ["ran --exact daemon_pages::c"]);
        std::fs::remove_dir_all(place).unwrap();
    }

    const GOOD: &str = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";

    #[test]
    fn results_of_several_harnesses_add_up_and_skips_are_not_passes() {
        let lines = [
            "     Running unittests src/lib.rs (target/a)",
            "test wake::a_kick_is_asked_for_once ... ok",
            "test slow ... ignored",
            GOOD,
            "     Running tests/tap.rs (target/b)",
            "test tap ... FAILED",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        ];
        let closing = "SKIPPED slow: ignored\nSKIPPED taps: no root\nFAILED tap\n\
                       14 passed, 1 failed, 2 skipped";
        assert_eq!(tally(&lines, 101), closing);
    }

    #[test]
    fn programs_without_a_result_have_failed() {
        let early = ["     Running a", "     Running b", GOOD];
        let last = "FAILED a test program ended early: a\n11 passed, 1 failed, 1 skipped";
        assert!(tally(&early, 101).ends_with(last));
        let unbuilt = tally(&["error: could not compile"], 101);
        let last =
            "FAILED a test program ended early or did not build\n0 passed, 1 failed, 1 skipped";
        assert!(unbuilt.ends_with(last), "{unbuilt}");
    }

    #[test]
    fn a_process_that_keeps_the_output_open_delays_no_one() {
        let mut lines = Vec::new();
        let since = std::time::Instant::now();
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", "sleep 5 & echo one; printf two >&2; exit 3"]);
        let status = watch(shell, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!((status.code(), lines), (Some(3), vec!["one".to_owned(), "two".to_owned()]));
        assert!(since.elapsed().as_secs() < 4);
    }
}
