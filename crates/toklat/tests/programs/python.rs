//! The library for programs in Python, installed as users install it, against a real daemon.
//!
//! Objective: `pip install ./python` builds a package whose tests and examples work.

mod daemon;

use std::path::{Path, PathBuf};
use std::process::Command;

use daemon::pypi::{self, done, must};
use daemon::skip;

/// What the package is built and tested with.
const PACKAGES: [&str; 4] = ["maturin>=1.7,<2", "numpy", "pytest", "scapy"];

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python")
}

/// True if the crates that the package is built from are there, or can be fetched.
fn has_crates() -> bool {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = package().join("Cargo.toml");
    done(Command::new(cargo).args(["fetch", "--locked", "--manifest-path"]).arg(manifest))
}

#[test]
fn the_python_package_installs_and_passes_its_tests() {
    let name = "the_python_package_installs_and_passes_its_tests";
    let python =
        match pypi::environment("python", &PACKAGES, "import maturin, numpy, pytest, scapy") {
            Ok(python) => python,
            Err(why) => return skip(name, why),
        };
    if !has_crates() {
        return skip(name, "PyO3 is not here, and crates.io is not reachable");
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]);
    install.args(["--force-reinstall"]).arg(package());
    // The build has a directory beside the workspace's own, whose files have other features.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-target");
    install.env("CARGO_TARGET_DIR", target).env("MATURIN_PEP517_ARGS", "--profile dev");
    let bin = python.parent().unwrap().to_str().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    must(install.env("PATH", format!("{bin}:{path}")));
    let mut pytest = Command::new(&python);
    pytest.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).arg(package());
    must(pytest.env("TOKLAT", env!("CARGO_BIN_EXE_toklat")).env("PYTHONDONTWRITEBYTECODE", "1"));
}
