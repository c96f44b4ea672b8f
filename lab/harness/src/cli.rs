//! Commands that a daemon is asked by; and terminals for programs that want one.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::pty::OpenptFlags;

use crate::{Daemon, PATIENCE, program, wait};

impl Daemon {
    /// The program with these arguments, to talk to this daemon.
    pub fn tool(&self, args: &[&str]) -> Command {
        let mut command = self.client(program());
        command.args(args);
        command
    }

    /// Any program, whose ports are this daemon's.
    pub fn client(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("TOKLAT_DIR", self.dir()).stdin(Stdio::null());
        command
    }

    /// Starts a command, and captures its output for when it ends.
    pub fn start_tool(&self, args: &[&str]) -> Child {
        self.tool(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a command to its end: exit code, what it printed, what it complained of.
    pub fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.tool(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Runs a command that must succeed; returns its output.
    pub fn done(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!(code, Some(0), "{args:?}: {stderr}");
        stdout
    }

    /// Runs a command with `--json`, which must succeed. Returns its parsed output.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.done(&[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
    }

    /// Returns the first lines of a command that does not end by itself.
    pub fn lines_of(&self, args: &[&str], lines: usize) -> Vec<String> {
        let mut child = self.tool(args).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let lines = output.lines().take(lines).map(Result::unwrap).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        lines
    }

    /// Starts a command in a terminal of this size.
    pub fn in_terminal(&self, args: &[&str], columns: u16, rows: u16) -> Terminal {
        Terminal::start(self.tool(args), columns, rows)
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
        // Otherwise `command` keeps its copies of the terminal, and the terminal's end would not be
        // seen.
        drop(command);
        let keyboard = File::from(ours.try_clone().unwrap());
        Self { child, keyboard, screen: reader(ours), output: String::new(), seen: 0 }
    }

    /// Waits until the terminal shows `text` in output that is newer than the last awaited text.
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

    /// Waits until the command ends; returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        let status = wait(&mut self.child, PATIENCE).expect("it does not end");
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_secs(1)) {
            self.output.push_str(&String::from_utf8_lossy(&bytes));
        }
        status.code()
    }

    /// Returns all output of the terminal.
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
