//! Processes: those of a test, and those that it finds.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::waiting::PATIENCE;

/// Waits until a process ends, at most for `time`.
pub fn wait(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if started.elapsed() < time => std::thread::sleep(Duration::from_millis(10)),
            ended => return ended.ok().flatten(),
        }
    }
}

/// The number of descriptors that a process has open. Returns 0 if only root may know, as for a
/// data process.
pub fn descriptors(pid: u32) -> usize {
    match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => 0,
        entries => entries.unwrap().count(),
    }
}

/// The processes that run with this directory in that variable of their environment.
pub fn processes_with(variable: &str, dir: &Path) -> Vec<Pid> {
    let wanted = format!("{variable}={}", dir.display());
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids: Vec<i32> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let rest = Arc::new(Mutex::new(pids.into_iter()));
    let mut found = Vec::new();
    loop {
        let (sender, environments) = channel();
        let pids = Arc::clone(&rest);
        std::thread::spawn(move || {
            let next = || pids.lock().unwrap().next();
            while let Some(pid) = next() {
                let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                if sender.send((pid, environment)).is_err() {
                    break;
                }
            }
        });
        // Reading the environment of a process that waits for another test's file system would
        // wait, too. Another thread does it, and such a process is skipped.
        let ended = loop {
            match environments.recv_timeout(Duration::from_secs(2)) {
                Ok((pid, environment)) => {
                    let mut variables = environment.split(|byte| *byte == 0);
                    if variables.any(|variable| variable == wanted.as_bytes()) {
                        found.extend(Pid::from_raw(pid));
                    }
                }
                Err(error) => break error == RecvTimeoutError::Disconnected,
            }
        };
        if ended {
            return found;
        }
    }
}

/// The processes that have something in this directory open: a routing daemon has no environment.
pub fn processes_that_hold(dir: &Path) -> Vec<Pid> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_inside = |entry: io::Result<std::fs::DirEntry>| {
        std::fs::read_link(entry?.path()).map(|target| target.starts_with(dir))
    };
    let holds = |pid: &i32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
        descriptors.into_iter().flatten().any(|entry| is_inside(entry).unwrap_or(false))
    };
    let own = std::process::id() as i32;
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != own && holds(pid)).filter_map(Pid::from_raw).collect()
}

/// Kills a process.
pub fn kill_process(pid: i32) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// True while a process runs (a zombie does not).
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Waits for a program to end, and returns its output. Ends the program if it takes too long.
pub fn end_of(mut child: Child) -> Output {
    if wait(&mut child, PATIENCE).is_none() {
        child.kill().unwrap();
    }
    child.wait_with_output().unwrap()
}

/// The text that a program printed: its output, then its errors.
pub fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Runs a command, and returns its output; `None` if it cannot be run.
pub fn run(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}

/// True if the command could be run, and succeeded.
pub fn done(command: &mut Command) -> bool {
    run(command).is_some_and(|output| output.status.success())
}

/// Runs a command, which must succeed, and returns its output. If it fails, the test fails and
/// shows what it said.
pub fn must(command: &mut Command) -> String {
    let output = run(command).unwrap_or_else(|| panic!("{command:?} cannot be run"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A program that ends with the test: by SIGTERM, and by SIGKILL if that does not help.
pub struct Running(pub Child);

impl Running {
    /// Starts a command whose output can be read.
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for the program to end, with success; returns its output.
    pub fn finish(mut self) -> String {
        let status = wait(&mut self.0, PATIENCE).expect("the program's end");
        let mut told = String::new();
        if let Some(mut output) = self.0.stdout.take() {
            output.read_to_string(&mut told).unwrap();
        }
        assert!(status.success(), "{status}: {told}");
        told
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = rustix::process::kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        if wait(&mut self.0, Duration::from_secs(10)).is_none() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
