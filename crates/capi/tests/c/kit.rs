//! Helpers: the installed library, C programs, a daemon.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Returns where the library is installed. The first call installs it.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        let to = prefix.to_str().unwrap();
        cargo(&["run", "--quiet", "--package=xtask", "--", "capi", "--dev", "--prefix", to]);
        prefix
    })
}

fn cargo(args: &[&str]) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo).args(args).current_dir(root()).status().unwrap();
    assert!(done.success(), "cargo {args:?}");
}

/// The workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns what `pkg-config` prints for the library.
pub fn pkg_config(args: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(args).arg("toklat").env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let told = output(&mut command);
    told.split_whitespace().map(str::to_owned).collect()
}

/// Runs a command, which must succeed, and returns its output.
pub fn output(command: &mut Command) -> String {
    let done = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert_succeeded(&done, command);
    String::from_utf8(done.stdout).unwrap()
}

fn assert_succeeded(done: &Output, command: &Command) {
    let [out, errors] = [&done.stdout, &done.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(done.status.success(), "{command:?}: {}\n{out}{errors}", done.status);
}

/// Returns the command `cc source $(pkg-config --cflags --libs toklat)`.
pub fn compile(source: &Path, to: &Path) -> Command {
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-g", "-o"]).arg(to).arg(source);
    cc.args(pkg_config(&["--cflags", "--libs"]));
    output(&mut cc);
    let mut program = Command::new(to);
    program.env("LD_LIBRARY_PATH", prefix().join("lib"));
    program
}

/// Returns the library's exported names with versions, as `nm` shows them.
pub fn symbols(library: &Path) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    let table = output(nm.args(["-D", "--defined-only"]).arg(library));
    let names = table.lines().filter_map(|line| line.split_whitespace().last());
    names.filter(|name| !name.starts_with("TOKLAT_")).map(str::to_owned).collect()
}

pub fn wait_for<T>(what: &str, mut it: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(it) = it() {
            return it;
        }
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon of the test, with its C programs. All end with the test.
pub struct Daemon {
    dir: TempDir,
    process: Option<Child>,
}

impl Daemon {
    pub fn start() -> Self {
        let mut daemon = Self { dir: tempfile::tempdir().unwrap(), process: None };
        daemon.start_again();
        daemon
    }

    pub fn start_again(&mut self) {
        let mut command = Command::new(toklat());
        command.arg("daemon").env("TOKLAT_DIR", self.dir.path()).stdin(Stdio::null());
        self.process = Some(command.spawn().unwrap());
        wait_for("daemon", || self.toklat(&["switch", "show", "--json"]));
    }

    /// Terminates the daemon and waits for it. A killed daemon would leave its switches running.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = kill_process(Pid::from_child(&process), Signal::TERM);
            let _ = process.wait();
        }
    }

    /// Runs the command line; returns its output if it succeeds.
    fn toklat(&self, args: &[&str]) -> Option<String> {
        let mut command = Command::new(toklat());
        command.args(args).env("TOKLAT_DIR", self.dir.path()).stdin(Stdio::null());
        let done = command.output().unwrap();
        done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
    }

    /// Adds a switch that stays when its last port is removed.
    pub fn add_switch(&self, name: &str) {
        self.toklat(&["switch", "add", name]).unwrap();
    }

    /// The process that forwards for the switch.
    pub fn data_process(&self, switch: &str) -> i32 {
        wait_for("data process", || {
            let shown = self.toklat(&["switch", "show", switch, "--json"])?;
            let (_, pid) = shown.split_once("\"pid\"")?;
            let digits = pid.trim_start_matches([':', ' ']);
            digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        })
    }

    /// Compiles a source of the workspace; returns the command that runs it with this daemon.
    pub fn program(&self, source: &str) -> Command {
        let name = Path::new(source).file_stem().unwrap();
        let mut program = compile(&root().join(source), &self.dir.path().join(name));
        program.env("TOKLAT_DIR", self.dir.path()).stdin(Stdio::null());
        program
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A program that ends with the test.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for the program to end, with success and within a minute; returns its output.
    pub fn finish(mut self) -> String {
        let status = wait_for("end of the program", || self.0.try_wait().unwrap());
        let mut told = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(status.success(), "{status}: {told}");
        told
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the daemon's program. Builds it if only this package was built.
fn toklat() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let beside = std::env::current_exe().unwrap();
        let program = beside.ancestors().nth(2).unwrap().join("toklat");
        if !program.exists() {
            cargo(&["build", "--package=toklat", "--bin=toklat"]);
        }
        program
    });
    program.clone()
}

/// The installed header.
pub fn header() -> String {
    fs::read_to_string(prefix().join("include/toklat.h")).unwrap()
}
