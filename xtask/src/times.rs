//! How long a newcomer, an edit, the tests and CI take: `cargo xtask times [first] [edit]`.
//!
//! `first` and `edit` are measured here, in a clone with a target folder of its own, on a machine
//! that does nothing else. What the last `cargo xtask test` and `.ci/run` took, they left behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::tool;

/// A figure: its name, its bar in seconds, and what is measured.
type Bar = (&'static str, f64, &'static str);

const FIRST: Bar = ("loop.first", 270.0, "cargo run --release -- demo, until its first line");
const FIRST_CPU: Bar = ("loop.first.cpu", 420.0, "CPU seconds of it");
const EDIT: Bar = ("loop.edit.fabric", 20.0, "an edited line of fabric, and its tests");
const EDIT_DAEMON: Bar =
    ("loop.edit.daemon", 60.0, "an edited line of fabric, one test of the daemon");
const TEST: Bar = ("loop.test", 1500.0, "the last whole cargo xtask test, from its first test");
const CI: Bar = ("loop.ci", 2100.0, "the last .ci/run");

/// Prints what is asked for, or what is known.
pub fn run(what: &[&str]) -> Result<()> {
    println!("{:<18} {:>8} {:>8}", "", "s", "bar");
    if what.contains(&"first") {
        first()?;
    }
    if what.contains(&"edit") {
        edit()?;
    }
    for (file, bar) in [("test-seconds", TEST), ("ci-seconds", CI)] {
        let kept = fs::read_to_string(tool::target().join(file)).ok();
        match kept.and_then(|text| text.trim().parse().ok()) {
            Some(seconds) => print(&bar, seconds),
            None => println!("{:<18} {:>8} {:>8}  {}", bar.0, "-", bar.1, bar.2),
        }
    }
    Ok(())
}

fn print((name, bar, what): &Bar, seconds: f64) {
    let verdict = if seconds > *bar { "  MISSED" } else { "" };
    println!("{name:<18} {seconds:>8.1} {bar:>8.0}  {what}{verdict}");
}

/// A clone of what is committed here.
fn fresh() -> Result<PathBuf> {
    let place = tool::target().join("times");
    let _ = fs::remove_dir_all(&place);
    let (from, to) = (tool::root(), place.to_string_lossy().into_owned());
    let clone = ["clone", "--quiet", &from.to_string_lossy(), &to];
    tool::run(&mut tool::command("git", &clone))?;
    Ok(place)
}

/// Cargo in the clone.
fn cargo(place: &Path, args: &[&str]) -> Command {
    let mut cargo = tool::cargo(args);
    cargo.current_dir(place).env("CARGO_TARGET_DIR", place.join("target"));
    cargo
}

fn first() -> Result<()> {
    let place = fresh()?;
    // Crates are downloaded before, as the bar says.
    tool::run(&mut cargo(&place, &["fetch", "--quiet", "--locked"]))?;
    let (begun, cpu) = (Instant::now(), children()?);
    let demo = ["run", "--quiet", "--release", "--", "demo", "--duration", "1s"];
    // What it does it says on stderr, and its figures in the end on stdout.
    let (output, input) = std::io::pipe()?;
    let mut demo = cargo(&place, &demo).stdout(input.try_clone()?).stderr(input).spawn()?;
    let mut lines = BufReader::new(output).lines();
    let line = lines.next().context("the demo printed nothing")??;
    print(&FIRST, begun.elapsed().as_secs_f64());
    println!("{:<18} {line}", "");
    lines.for_each(drop);
    if !demo.wait()?.success() {
        bail!("the demo failed");
    }
    print(&FIRST_CPU, children()? - cpu);
    Ok(())
}

/// CPU seconds of the processes that ended below this one.
fn children() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(") ").context("/proc/self/stat")?.1.split_whitespace();
    // cutime and cstime (proc(5), 16 and 17), in hundredths of a second.
    let ticks = fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / 100.0)
}

fn edit() -> Result<()> {
    let place = fresh()?;
    let tests: [(&Bar, &[&str]); 2] = [
        (&EDIT, &["test", "--quiet", "--package", "toklat-fabric"]),
        (
            &EDIT_DAEMON,
            &[
                "test",
                "--quiet",
                "--package",
                "toklat",
                "--test",
                "control",
                "metrics_name_each_port",
            ],
        ),
    ];
    for (bar, test) in tests {
        tool::run(&mut cargo(&place, test))?;
        let file = place.join("crates/fabric/src/lib.rs");
        fs::write(
            &file,
            fs::read_to_string(&file)?
                + "/// An edited line.\npub const fn edited() -> u8 {\n    7\n}\n",
        )?;
        let begun = Instant::now();
        tool::run(&mut cargo(&place, test))?;
        print(bar, begun.elapsed().as_secs_f64());
    }
    Ok(())
}
