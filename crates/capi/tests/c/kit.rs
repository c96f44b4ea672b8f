//! Helpers: the installed library, C programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use harness::{Daemon, artifacts, must, root};

/// Returns where the library is installed.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        artifacts::made("capi").expect("it needs a C compiler and nothing else");
        artifacts::target().join("tmp/capi")
    })
}

/// Returns what `pkg-config` prints for the library.
pub fn pkg_config(args: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(args).arg("toklat").env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let told = must(&mut command);
    told.split_whitespace().map(str::to_owned).collect()
}

/// Returns the command `cc source $(pkg-config --cflags --libs toklat)`.
pub fn compile(source: &Path, to: &Path) -> Command {
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-g", "-o"]).arg(to).arg(source);
    cc.args(pkg_config(&["--cflags", "--libs"]));
    must(&mut cc);
    let mut program = Command::new(to);
    program.env("LD_LIBRARY_PATH", prefix().join("lib"));
    program
}

/// Returns the library's exported names with versions, as `nm` shows them.
pub fn symbols(library: &Path) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    let table = must(nm.args(["-D", "--defined-only"]).arg(library));
    let names = table.lines().filter_map(|line| line.split_whitespace().last());
    names.filter(|name| !name.starts_with("TOKLAT_")).map(str::to_owned).collect()
}

/// Compiles a source of the workspace; returns the command that runs it with this daemon.
pub fn program(daemon: &Daemon, source: &str) -> Command {
    let name = Path::new(source).file_stem().unwrap();
    let mut program = compile(&root().join(source), &daemon.dir().join(name));
    program.env("TOKLAT_DIR", daemon.dir()).stdin(Stdio::null());
    program
}

/// The installed header.
pub fn header() -> String {
    fs::read_to_string(prefix().join("include/toklat.h")).unwrap()
}
