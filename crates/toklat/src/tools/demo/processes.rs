//! The processes that the demo starts, and their end.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use jail::parent_death;

/// Time limit for a process to end after SIGTERM.
const END: Duration = Duration::from_secs(5);
/// How often processes are checked.
const LOOK: Duration = Duration::from_millis(20);

/// A process that ends when this is dropped, or when the demo ends in any way.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts `command` in a process group of its own. Ctrl-C reaches the demo alone, which ends
    /// the other processes in order. Its stderr is appended to `log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let log = std::fs::File::options().create(true).append(true).open(log);
        let log = log.context("Cannot write the demo's log")?;
        Self::spawn(name, command.stderr(log))
    }

    fn spawn(name: &str, command: &mut Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let child = parent_death::signal(command, Signal::TERM).spawn();
        let child = child.with_context(|| format!("Cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// The process's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if the process has ended.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until the process ends, and calls `each_second` meanwhile.
    ///
    /// # Errors
    /// If `stop` is set before, it takes longer than `limit`, or `each_second` fails.
    pub fn wait(
        &mut self,
        stop: &AtomicBool,
        limit: Duration,
        mut each_second: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<ExitStatus> {
        let (started, mut seconds) = (Instant::now(), 0);
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            ensure!(!stop.load(Ordering::Relaxed), "Interrupted");
            ensure!(started.elapsed() < limit, "{} did not end within {limit:?}", self.name);
            if started.elapsed().as_secs() > seconds {
                seconds += 1;
                each_second()?;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Sends SIGTERM to the process, and parses the JSON that it printed.
    ///
    /// # Errors
    /// If it printed something else.
    pub fn finish<T: DeserializeOwned>(mut self) -> anyhow::Result<T> {
        self.end();
        let mut text = String::new();
        if let Some(stdout) = &mut self.child.stdout {
            stdout.read_to_string(&mut text).context("Cannot read what it printed")?;
        }
        serde_json::from_str(&text).with_context(|| format!("{} printed no result", self.name))
    }

    /// Ends the process by SIGTERM, and by SIGKILL after the time limit.
    pub fn end(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The process was not reaped yet, so the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command to its end and returns what it printed.
///
/// # Errors
/// If it cannot be started, fails, or `stop` is set before.
pub fn output(name: &str, command: &mut Command, stop: &AtomicBool) -> anyhow::Result<String> {
    let mut process = Process::spawn(name, command.stderr(Stdio::piped()))?;
    let status = process.wait(stop, Duration::from_secs(60), || Ok(()))?;
    let (mut out, mut err) = (String::new(), String::new());
    if let (Some(stdout), Some(stderr)) = (&mut process.child.stdout, &mut process.child.stderr) {
        stdout.read_to_string(&mut out)?;
        stderr.read_to_string(&mut err)?;
    }
    if !status.success() {
        bail!("{name} failed ({status}): {}{}", err.trim(), out.trim());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn log() -> tempfile::NamedTempFile {
        tempfile::NamedTempFile::new().unwrap()
    }

    #[test]
    fn a_process_is_asked_to_end_and_its_result_is_read() {
        let log = log();
        let place = tempfile::tempdir().unwrap();
        let ready = place.path().join("ready");
        let script = "trap 'echo 42; exit' TERM; : >\"$READY\"; while :; do sleep 0.01; done";
        let mut process =
            Process::start("it", shell(script).env("READY", &ready), log.path()).unwrap();
        // The trap must be set before the signal comes.
        while !ready.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(process.ended().unwrap().is_none());
        assert_eq!(process.finish::<u32>().unwrap(), 42);
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let log = log();
        let process = Process::start("it", &mut shell("exec sleep 100"), log.path()).unwrap();
        let pid = Pid::from_raw(process.child.id() as i32).unwrap();
        drop(process);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn waiting_ends_with_the_process_or_when_told_to_stop() {
        let (log, stop) = (log(), AtomicBool::new(false));
        let mut process = Process::start("it", &mut shell("exit 3"), log.path()).unwrap();
        let status = process.wait(&stop, Duration::from_secs(10), || Ok(())).unwrap();
        assert_eq!(status.code(), Some(3));
        let mut process = Process::start("it", &mut shell("exec sleep 100"), log.path()).unwrap();
        let limit = Duration::from_millis(50);
        assert!(process.wait(&stop, limit, || Ok(())).unwrap_err().to_string().contains("50ms"));
        stop.store(true, Ordering::Relaxed);
        let error = process.wait(&stop, Duration::from_secs(10), || Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "Interrupted");
    }

    #[test]
    fn a_failed_command_says_why() {
        let stop = AtomicBool::new(false);
        assert_eq!(output("it", &mut shell("echo yes"), &stop).unwrap(), "yes\n");
        let error = output("it", &mut shell("echo no >&2; exit 1"), &stop).unwrap_err();
        assert!(error.to_string().contains("no"), "{error}");
    }
}
