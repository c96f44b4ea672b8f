//! A daemon for one test, in a directory of its own; and terminals for programs that want one.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::pty::OpenptFlags;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running `toklat daemon`; it is stopped at the end.
pub struct Daemon {
    dir: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    /// Starts one and waits until it answers.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = File::create(dir.path().join("daemon.log")).unwrap();
        let child = command(dir.path(), &["daemon"]).stderr(log).spawn().unwrap();
        let mut daemon = Self { dir, child };
        let started = Instant::now();
        while daemon.run(&["status"]).0 != Some(0) {
            let runs = daemon.child.try_wait().unwrap().is_none();
            assert!(runs && started.elapsed() < PATIENCE, "no answer; its log: {}", daemon.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    /// Its runtime directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("daemon.log")).unwrap()
    }

    /// Runs a command to its end: exit code, what it printed, what it complained of.
    pub fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = command(self.dir(), args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Runs a command that must succeed; what it printed.
    pub fn done(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!(code, Some(0), "{args:?}: {stderr}");
        stdout
    }

    /// Runs a command that must succeed with `--json`; what it printed.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.done(&[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
    }

    /// The first lines of a command that does not end by itself.
    pub fn lines_of(&self, args: &[&str], lines: usize) -> Vec<String> {
        let mut child = command(self.dir(), args).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let lines = output.lines().take(lines).map(Result::unwrap).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        lines
    }

    /// Starts a command in a terminal of this size.
    pub fn in_terminal(&self, args: &[&str], columns: u16, rows: u16) -> Terminal {
        Terminal::start(command(self.dir(), args), columns, rows)
    }

    /// True if it ends in time.
    pub fn ends_within(&mut self, time: Duration) -> bool {
        wait(&mut self.child, time).is_some()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Also ends the data processes. If it is gone already, there is nothing to stop.
        let _ = command(self.dir(), &["stop"]).output();
        if !self.ends_within(Duration::from_secs(5)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toklat"));
    command.args(args).env("TOKLAT_DIR", dir).stdin(Stdio::null());
    command
}

fn wait(child: &mut Child, time: Duration) -> Option<std::process::ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if started.elapsed() > time {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program in a pseudo-terminal.
pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    output: String,
    seen: usize,
}

impl Terminal {
    fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size =
            rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&theirs, size).unwrap();
        let child = command
            .env("TERM", "xterm")
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs)
            .spawn()
            .unwrap();
        // Its copies of the terminal stay in `command` otherwise, and the end would not be seen.
        drop(command);
        let keyboard = File::from(ours.try_clone().unwrap());
        Self { child, keyboard, screen: reader(ours), output: String::new(), seen: 0 }
    }

    /// Waits until `text` is drawn, after what was waited for before.
    pub fn wait_for(&mut self, text: &str) {
        let started = Instant::now();
        loop {
            if let Some(at) = self.output[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            let rest = PATIENCE.saturating_sub(started.elapsed());
            match self.screen.recv_timeout(rest) {
                Ok(bytes) => self.output.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} in {:?}", &self.output[self.seen..]),
            }
        }
    }

    /// Types.
    pub fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Waits for its end; its exit code.
    pub fn end(&mut self) -> Option<i32> {
        let status = wait(&mut self.child, PATIENCE).expect("it does not end");
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_secs(1)) {
            self.output.push_str(&String::from_utf8_lossy(&bytes));
        }
        status.code()
    }

    /// All that it drew.
    pub fn output(&self) -> &str {
        &self.output
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads until the other side is closed.
fn reader(from: OwnedFd) -> Receiver<Vec<u8>> {
    let (to, screen) = channel();
    std::thread::spawn(move || {
        let mut from = File::from(from);
        let mut bytes = vec![0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            if to.send(bytes[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    screen
}
