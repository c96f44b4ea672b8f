//! A running virtual machine, whose console this program reads.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;

use super::{Machine, Qemu};
use anyhow::Result;
use jail::parent_death;

/// A virtual machine. It is killed when this is dropped, and when the thread that started it ends,
/// even by SIGKILL.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    lines: Receiver<String>,
    said: String,
}

impl Running {
    /// Starts the machine, by a command that begins with `prefix`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(qemu: &Qemu, machine: &Machine, prefix: &[OsString]) -> Result<Self> {
        let mut words = prefix.iter().cloned().chain([qemu.program.clone().into()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).args(machine.arguments(qemu.version));
        Self::spawn(&machine.name, command)
    }

    /// Starts the machine by any command that ends with it and has its console as output.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(name: &str, mut command: Command) -> Result<Self> {
        // The machine has a process group of its own, because Ctrl-C is for the program that runs
        // it.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = parent_death::signal(&mut command, Signal::KILL)
            .spawn()
            .context("Cannot start QEMU")?;
        let (sender, lines) = channel();
        let outputs: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|out| Box::new(out) as _),
            child.stderr.take().map(|out| Box::new(out) as _),
        ];
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut output = BufReader::new(output);
                let mut line = Vec::new();
                while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    line.clear();
                    if sender.send(text).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { name: name.to_owned(), child, lines, said: String::new() })
    }

    /// QEMU's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the console until a line contains `text`.
    ///
    /// # Errors
    /// If the machine ends first, the wait takes longer than `limit`, or `stop` is set.
    pub fn wait_for(&mut self, text: &str, limit: Duration, stop: &AtomicBool) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    self.note_line(&line);
                    if line.contains(text) {
                        return Ok(line);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!(
                        "{} ended before it said {text:?}; it said: {}",
                        self.name,
                        self.last_words()
                    );
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            ensure!(!stop.load(Ordering::Relaxed), "Interrupted");
            if Instant::now() > deadline {
                bail!(
                    "{} did not say {text:?} within {limit:?}; it said: {}",
                    self.name,
                    self.last_words()
                );
            }
        }
    }

    fn note_line(&mut self, line: &str) {
        self.said += line;
        self.said.push('\n');
    }

    /// Waits until the machine ends.
    ///
    /// # Errors
    /// If it takes longer than `limit`.
    pub fn end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                // The machine's last output. The threads that read it end with the machine.
                while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(100)) {
                    self.note_line(&line);
                }
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "{} did not end within {limit:?}", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The console output so far, up to where a caller has waited.
    #[must_use]
    pub fn said(&self) -> &str {
        &self.said
    }

    fn last_words(&self) -> &str {
        let start = self.said.len().saturating_sub(2000);
        let start = (start..=self.said.len()).find(|at| self.said.is_char_boundary(*at));
        self.said[start.unwrap_or(0)..].trim()
    }

    /// Processor time of QEMU's threads other than virtual processors.
    #[must_use]
    pub fn time_outside_guest(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let stats = tasks.into_iter().flatten().flatten();
        let stats = stats.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        // QEMU names its processor threads `CPU 0/KVM`.
        stats.filter(|stat| !stat.contains(" (CPU ")).map(|stat| processor_time(&stat)).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time of a whole process.
#[must_use]
pub fn time_of_process(pid: u32) -> Duration {
    processor_time(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default())
}

/// User and system time in a line of /proc/PID/stat (proc(5)), in hundredths of a second.
fn processor_time(stat: &str) -> Duration {
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "17 (CPU 0) S) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 100";
        assert_eq!(processor_time(stat), Duration::from_secs(2));
        assert_eq!(processor_time(""), Duration::ZERO);
    }
}
