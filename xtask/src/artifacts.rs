//! What tests use and cargo does not build for them: `cargo xtask artifacts [NAME...]`.
//!
//! It is made before the tests, once, in cargo's target folder: tests that built something would
//! wait for each other. `lab/harness/src/artifacts.rs` finds it for them. Everything that cargo
//! alone does not build has a stamp in `target/artifacts`, which says when it was made, or why it
//! cannot be made on this machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::{capi, fuzz, pack, tool};

/// Tells tests that all has just been made: they need not compare its time with that of sources,
/// which somebody may edit while they run.
pub const BUILT: &str = "TOKLAT_ARTIFACTS_BUILT";

/// Makes one artifact. Returns the reason why this machine cannot make it, if there is one.
type Make = fn(&Path) -> Result<Option<String>>;

/// All that has a stamp, by name.
const ALL: [(&str, Make); 7] = [
    ("capi", make_capi),
    ("python", make_python),
    ("schemathesis", make_schemathesis),
    ("deb", make_deb),
    ("rpm", make_rpm),
    ("install", make_install),
    ("fuzz", make_fuzz),
];

/// What the package for Python is built and tested with.
const OF_PYTHON: [&str; 4] = ["maturin>=1.7,<2", "numpy", "pytest", "scapy"];
/// The program that holds the control API against its description.
const SCHEMATHESIS: &str = "4.32.5";

/// Makes what is named, or everything, and goes on after what fails. Programs are always built:
/// the others are made of them.
pub fn run(names: &[&str]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let known: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
        bail!("`{unknown}` is no artifact; there are: programs, {}", known.join(", "));
    }
    build_programs()?;
    let stamps = tool::target().join("artifacts");
    fs::create_dir_all(&stamps).with_context(|| stamps.display().to_string())?;
    let mut failed = Vec::new();
    for (name, make) in ALL.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        if let Err(error) = make_one(name, *make, &stamps) {
            eprintln!("artifact {name}: {error:#}");
            failed.push(*name);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("not made: {}", failed.join(", ")) }
}

fn is_known(name: &str) -> bool {
    name == "programs" || ALL.iter().any(|(known, _)| *known == name)
}

/// Makes one, and writes its stamp. The stamp has the time at which it was begun: a source that is
/// edited meanwhile is newer.
fn make_one(name: &str, make: Make, stamps: &Path) -> Result<()> {
    let (stamp, begun) = (stamps.join(name), SystemTime::now());
    let _ = fs::remove_file(&stamp);
    let why = make(stamps)?;
    if let Some(why) = &why {
        println!("artifact {name} cannot be made here: {why}");
    }
    fs::write(&stamp, why.unwrap_or_default()).with_context(|| stamp.display().to_string())?;
    File::open(&stamp)?.set_modified(begun).context("The stamp's time")
}

/// Builds what cargo builds of other packages than that of the tests which use it: the program, the
/// library for `LD_PRELOAD`, that for C, and the examples.
fn build_programs() -> Result<()> {
    let packages = ["toklat", "toklat-preload", "toklat-capi", "toklat-guest", "toklat-examples"];
    let mut build = tool::cargo(&["build", "--lib", "--bins", "--examples"]);
    tool::run(build.args(packages.map(|package| format!("--package={package}"))))
}

fn make_capi(_: &Path) -> Result<Option<String>> {
    let archive = tool::target().join("debug/libtoklat.a");
    capi::install(&archive, &folder("capi"), true)?;
    Ok(None)
}

/// Where a test looks for what has a folder.
fn folder(name: &str) -> PathBuf {
    tool::target().join("tmp").join(name)
}

fn make_deb(place: &Path) -> Result<Option<String>> {
    make_package(place, "deb", pack::deb)
}

fn make_rpm(place: &Path) -> Result<Option<String>> {
    make_package(place, "rpm", pack::rpm)
}

/// Installs the program below a folder of its own.
fn make_install(place: &Path) -> Result<Option<String>> {
    make_package(place, "install", pack::install)
}

/// Makes a package in a folder of its own, which is empty before.
fn make_package(place: &Path, kind: &str, make: pack::Make) -> Result<Option<String>> {
    if let Some(missing) = pack::missing(kind) {
        return Ok(Some(format!("{missing} is missing; cargo xtask setup")));
    }
    let packages = place.join("packages").join(kind);
    let _ = fs::remove_dir_all(&packages);
    fs::create_dir_all(&packages).with_context(|| packages.display().to_string())?;
    make(&pack::Options::of_tests(packages))?;
    Ok(None)
}

/// Installs the package as users install it, with what its tests use.
fn make_python(_: &Path) -> Result<Option<String>> {
    let has_all = "import maturin, numpy, pytest, scapy";
    let python = match environment("python", &OF_PYTHON, has_all) {
        Ok(python) => python,
        Err(why) => return Ok(Some(why.to_owned())),
    };
    let package = tool::root().join("python");
    let manifest = package.join("Cargo.toml");
    let fetch = ["fetch", "--quiet", "--locked", "--manifest-path"];
    if !tool::succeeds(tool::cargo(&fetch).arg(manifest)) {
        return Ok(Some("PyO3 is not here, and crates.io is not reachable".to_owned()));
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]);
    install.args(["--force-reinstall"]).arg(package);
    install.env("CARGO_TARGET_DIR", tool::target()).env("MATURIN_PEP517_ARGS", "--profile dev");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = python.parent().map(Path::to_owned);
    let path = beside.into_iter().chain(std::env::split_paths(&path));
    tool::run(install.env("PATH", std::env::join_paths(path)?))?;
    Ok(None)
}

fn make_schemathesis(_: &Path) -> Result<Option<String>> {
    let has_it = format!(
        "from importlib.metadata import version; assert version('schemathesis') == '{SCHEMATHESIS}'"
    );
    let made = environment("schemathesis", &[&format!("schemathesis=={SCHEMATHESIS}")], &has_it);
    Ok(made.err().map(str::to_owned))
}

/// Python in a virtual environment that has these packages; or what is missing. `has_all` is a
/// program in Python that fails without them.
fn environment(
    name: &str,
    packages: &[&str],
    has_all: &str,
) -> std::result::Result<PathBuf, &'static str> {
    let new = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !tool::succeeds(Command::new("python3").args(["-c", new])) {
        return Err("Python 3.11 or later is missing (python3)");
    }
    let dir = folder(name);
    let python = dir.join("bin/python");
    if tool::succeeds(Command::new(&python).args(["-c", has_all])) {
        return Ok(python);
    }
    if !tool::succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir)) {
        return Err("venv is missing (python3-venv)");
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--retries", "1"]).args(packages);
    if tool::succeeds(&mut install) { Ok(python) } else { Err("PyPI is not reachable") }
}

fn make_fuzz(_: &Path) -> Result<Option<String>> {
    let built = fuzz::build_seeds()?;
    Ok((!built).then(|| "c++ is missing".to_owned()))
}
