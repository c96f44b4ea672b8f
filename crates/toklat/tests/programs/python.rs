//! The library for programs in Python, installed as users install it, against a real daemon.
//!
//! Objective: what `pip install ./python` built (`cargo xtask artifacts`) passes its tests, and its
//! examples work.

use std::path::Path;
use std::process::Command;

use harness::{artifacts, must, skip};

#[test]
fn the_python_package_installs_and_passes_its_tests() {
    let name = "the_python_package_installs_and_passes_its_tests";
    let python = match artifacts::python("python") {
        Ok(python) => python,
        Err(why) => return skip(name, &why),
    };
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let mut pytest = Command::new(&python);
    pytest.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]).arg(package);
    must(pytest.env("TOKLAT", env!("CARGO_BIN_EXE_toklat")).env("PYTHONDONTWRITEBYTECODE", "1"));
}
