//! One process that this one supervises: it is named by a pidfd, signalled through it, and reaped
//! once.
//!
//! A process number may be another process's as soon as the child is reaped, so no signal goes to
//! a number. The pidfd becomes readable when the process has ended, so any event loop can wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions};

use super::spawner::{self, Started};
use super::{ChildSetup, reaper};

/// A process that this one has started or found.
///
/// A child that is dropped is left to the [reaper](super::reap_orphans), and is killed before if
/// it [ends with](Self::ending_with_this) this value. Without a reaper, a child that was killed is
/// waited for.
#[derive(Debug)]
pub struct Supervised {
    pid: Pid,
    pidfd: OwnedFd,
    /// It is a child of this process, and this value reaps it.
    is_child: bool,
    ends_with_this: bool,
    /// How the child ended, once it was reaped.
    status: Mutex<Option<ExitStatus>>,
}

/// The ends of a child's standard streams that its command asked for.
#[derive(Debug)]
pub struct Pipes {
    /// The child reads what is written here.
    pub stdin: Option<ChildStdin>,
    /// What the child writes to its standard output.
    pub stdout: Option<ChildStdout>,
    /// What the child writes to its standard error.
    pub stderr: Option<ChildStderr>,
}

impl Pipes {
    /// The ends of the standard input, output and error, where there are any.
    fn of([stdin, stdout, stderr]: [Option<OwnedFd>; 3]) -> Self {
        Self {
            stdin: stdin.map(Into::into),
            stdout: stdout.map(Into::into),
            stderr: stderr.map(Into::into),
        }
    }
}

impl Supervised {
    /// Starts a child.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(command: &mut Command, setup: &ChildSetup) -> io::Result<(Self, Pipes)> {
        let (child, pipes, _) = Self::start_equipped(setup.equip(command), &setup.needs(), false)?;
        Ok((child, pipes))
    }

    pub(super) fn start_equipped(
        command: &mut Command,
        needs: &[RawFd],
        own_pids: bool,
    ) -> io::Result<(Self, Pipes, Option<io::Result<()>>)> {
        // The reaper looks after the lock is free, so it knows the child, however soon it ends.
        let mut owned = reaper::lock();
        let Started { pid, ends, own_pids } = spawner::spawn(command, needs, own_pids)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            // Killing fails only if the child has ended already. It was not reaped, so the number
            // is its own.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        })?;
        owned.add(pid);
        drop(owned);
        Ok((Self::new(pid, pidfd, true), Pipes::of(ends), own_pids))
    }

    /// Supervises the child that `start` makes by a kind of fork. `None` in the child, which must
    /// not return to code that takes locks.
    pub(crate) fn start_by(
        start: impl FnOnce() -> io::Result<Option<Pid>>,
    ) -> io::Result<Option<Self>> {
        let mut owned = reaper::lock();
        let Some(pid) = start()? else {
            // The lock is a copy that nothing else will take.
            std::mem::forget(owned);
            return Ok(None);
        };
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            // Without a descriptor it is a stranger. It was not reaped, so the number is its own.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        })?;
        owned.add(pid);
        Ok(Some(Self::new(pid, pidfd, true)))
    }

    /// Supervises a child that has started by itself.
    ///
    /// # Errors
    /// The process is not a child of this one, or it has an owner (`EBUSY`); the kernel's error.
    pub fn child(pid: Pid) -> io::Result<Self> {
        let mut owned = reaper::lock();
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Fails unless the process is a child, because only children can be waited for.
        rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options)?;
        if !owned.add(pid) {
            return Err(Errno::BUSY.into());
        }
        drop(owned);
        Ok(Self::new(pid, pidfd, true))
    }

    /// Supervises another's child, or a child that the [reaper](super::reap_orphans) reaps. The
    /// caller makes sure that the number still is that of the process that it means.
    ///
    /// # Errors
    /// There is no such process; the kernel's error.
    pub fn found(pid: Pid) -> io::Result<Self> {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self::new(pid, pidfd, false))
    }

    fn new(pid: Pid, pidfd: OwnedFd, is_child: bool) -> Self {
        Self { pid, pidfd, is_child, ends_with_this: false, status: Mutex::default() }
    }

    /// Kills the process when this value is dropped.
    #[must_use]
    pub fn ending_with_this(mut self) -> Self {
        self.ends_with_this = true;
        self
    }

    /// Lets the process run on when this value is dropped, as at first.
    #[must_use]
    pub fn outliving_this(mut self) -> Self {
        self.ends_with_this = false;
        self
    }

    /// The process's number. No other process has it before a child is reaped.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The process's number, as a positive integer.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Sends a signal. It is lost if the process has ended.
    pub fn send(&self, signal: Signal) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }

    /// Kills the process.
    pub fn kill(&self) {
        self.send(Signal::KILL);
    }

    /// Reaps the child if it has ended, and says how; `None` while it runs.
    ///
    /// # Errors
    /// The process is not a child of this one; the kernel's error.
    pub fn ended(&self) -> io::Result<Option<ExitStatus>> {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if status.is_none() {
            let mut owned = reaper::lock();
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let found = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options)?;
            *status = found.map(|found| status_of(&found));
            if self.is_child && status.is_some() {
                owned.remove(self.pid);
            }
        }
        Ok(*status)
    }

    /// Waits in this thread until the process has ended; reaps a child, and says how it ended.
    ///
    /// # Errors
    /// The process is not a child of this one; the kernel's error.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            match rustix::event::poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Kills the process, waits for its end in this thread, and says how it ended.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn end(&self) -> io::Result<ExitStatus> {
        self.kill();
        self.wait()
    }
}

impl AsFd for Supervised {
    /// The pidfd, which is readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        if self.ends_with_this {
            self.kill();
        }
        if !self.is_child || matches!(self.ended(), Ok(Some(_))) {
            return;
        }
        if self.ends_with_this && !reaper::runs() && self.wait().is_ok() {
            return;
        }
        reaper::lock().remove(self.pid);
    }
}

/// The status as the standard library has it.
fn status_of(found: &rustix::process::WaitIdStatus) -> ExitStatus {
    /// The flag of a status whose process left a core file (wait(2)).
    const CORE: i32 = 0x80;
    ExitStatus::from_raw(match (found.exit_status(), found.terminating_signal()) {
        (Some(code), _) => code << 8,
        (None, Some(signal)) if found.dumped() => signal | CORE,
        (None, signal) => signal.unwrap_or(0),
    })
}
