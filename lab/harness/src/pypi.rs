//! Programs from PyPI that tests use, in virtual environments of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs a command, and returns its output; `None` if it cannot be run.
pub fn run(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}

/// True if the command could be run, and succeeded.
pub fn done(command: &mut Command) -> bool {
    run(command).is_some_and(|output| output.status.success())
}

/// Runs a command, which must succeed. If it fails, the test fails and shows its output.
pub fn must(command: &mut Command) {
    let output = run(command).unwrap_or_else(|| panic!("{command:?} cannot be run"));
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}\n{out}{err}");
}

/// Python in a virtual environment that has these packages; or what is missing. `has_all` is a
/// program in Python that fails without them.
pub fn environment(name: &str, packages: &[&str], has_all: &str) -> Result<PathBuf, &'static str> {
    let new = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !done(Command::new("python3").args(["-c", new])) {
        return Err("Python 3.11 or later is missing (python3)");
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let python = dir.join("bin/python");
    if done(Command::new(&python).args(["-c", has_all])) {
        return Ok(python);
    }
    if !done(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir)) {
        return Err("venv is missing (python3-venv)");
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--retries", "1"]).args(packages);
    if done(&mut install) { Ok(python) } else { Err("PyPI is not reachable") }
}
