//! Programs of tests: a real daemon, and examples on its ports.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A program that is terminated with the test. A killed daemon would leave its switches running.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Returns a program beside this test. Builds it if only this package was built.
pub fn program(path: &str, build: &[&str]) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join(path);
    if !program.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        assert!(Command::new(cargo).arg("build").args(build).status().unwrap().success());
    }
    program
}

/// Calls `it` until it returns a value, for at most a minute.
pub fn wait_for<T>(what: &str, mut it: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(it) = it() {
            return it;
        }
        assert!(Instant::now() < deadline, "no {what}");
        std::thread::yield_now();
    }
}

/// A daemon for one test, with a switch `vale0`.
pub struct Daemon {
    dir: tempfile::TempDir,
    toklat: PathBuf,
    _daemon: Running,
}

impl Daemon {
    pub fn start() -> Self {
        let toklat = program("toklat", &["--package=toklat", "--bin=toklat"]);
        let dir = tempfile::tempdir().unwrap();
        let daemon = command(dir.path(), &toklat, &["daemon"]).spawn().unwrap();
        let daemon = Self { dir, toklat, _daemon: Running(daemon) };
        let socket = daemon.dir().join("attach.sock");
        wait_for("daemon", || socket.exists().then_some(()));
        daemon.toklat(&["switch", "add", "vale0"]);
        daemon
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs a command of the command line.
    pub fn toklat(&self, args: &[&str]) {
        let out = command(self.dir(), &self.toklat, args).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    /// An example program with arguments.
    pub fn example(&self, name: &str, args: &[&str]) -> Command {
        let build = ["--package=toklat-guest", "--example", name];
        command(self.dir(), &program(&format!("examples/{name}"), &build), args)
    }
}

fn command(dir: &Path, program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("TOKLAT_DIR", dir).stdin(std::process::Stdio::null());
    command
}
