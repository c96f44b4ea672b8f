//! The library for programs in Python, installed as users install it, against a real daemon.
//!
//! Objective: `pip install ./python` builds a package whose tests and examples work.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn skip(test: &str, why: &str) {
    let Some(log) = std::env::var_os("TOKLAT_SKIP_LOG") else {
        return eprintln!("SKIPPED {test}: {why}");
    };
    let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    log.write_all(format!("{test}: {why}\n").as_bytes()).unwrap();
}

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python")
}

/// The program's output, if it could be run.
fn run(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}

fn done(command: &mut Command) -> bool {
    run(command).is_some_and(|output| output.status.success())
}

/// A virtual environment with what the package is built and tested with; or what is missing.
fn environment() -> Result<PathBuf, &'static str> {
    let new = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !done(Command::new("python3").args(["-c", new])) {
        return Err("Python 3.11 or later is missing (python3)");
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let python = dir.join("bin/python");
    let has_all = "import maturin, numpy, pytest, scapy";
    if done(Command::new(&python).args(["-c", has_all])) {
        return Ok(python);
    }
    if !done(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir)) {
        return Err("venv is missing (python3-venv)");
    }
    let packages = ["maturin>=1.7,<2", "numpy", "pytest", "scapy"];
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--retries", "1"]).args(packages);
    if done(&mut install) { Ok(python) } else { Err("PyPI is not reachable") }
}

/// The crates it is built of are there, or can be had.
fn has_crates() -> bool {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = package().join("Cargo.toml");
    done(Command::new(cargo).args(["fetch", "--locked", "--manifest-path"]).arg(manifest))
}

/// Runs it, and shows what it said if it failed.
fn must(command: &mut Command) {
    let output = run(command).unwrap_or_else(|| panic!("{command:?} cannot be run"));
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}\n{out}{err}");
}

#[test]
fn the_python_package_installs_and_passes_its_tests() {
    let name = "the_python_package_installs_and_passes_its_tests";
    let python = match environment() {
        Ok(python) => python,
        Err(why) => return skip(name, why),
    };
    if !has_crates() {
        return skip(name, "PyO3 is not here, and crates.io is not reachable");
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]);
    install.args(["--force-reinstall"]).arg(package());
    // Beside the workspace's own, whose files have other features.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-target");
    install.env("CARGO_TARGET_DIR", target).env("MATURIN_PEP517_ARGS", "--profile dev");
    let bin = python.parent().unwrap().to_str().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    must(install.env("PATH", format!("{bin}:{path}")));
    let mut pytest = Command::new(&python);
    pytest.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).arg(package());
    must(pytest.env("TOKLAT", env!("CARGO_BIN_EXE_toklat")).env("PYTHONDONTWRITEBYTECODE", "1"));
}
