//! The processes that this one starts: what each gets, what it cannot do, and how it ends.
//!
//! A program of our own [enters](crate::Jail::enter) its jail by itself. Other programs (passt,
//! QEMU) are confined between fork and exec, by attributes that they inherit and cannot undo. They
//! set up namespaces and Landlock by themselves, if they use them.
#![allow(unsafe_code, reason = "what a child is to be without, it can only give up by itself")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit, Signal, getpid, setrlimit};

pub use self::backoff::Backoff;
pub use self::confine::Confinement;
pub use self::reaper::{is_owned, reap_orphans};
pub use self::spawner::start_apart;
pub use self::strangers::Strangers;
pub use self::supervised::{Pipes, Supervised};
use crate::parent_death;

mod backoff;
mod confine;
mod reaper;
mod spawner;
mod strangers;
mod supervised;

/// The maximum number of descriptors that can be handed over.
const MOST_GIVEN: usize = 8;

/// What a child gets, and what it cannot do. It gets the three standard streams as the command
/// says, and the descriptors that are handed over, under the same numbers. No program that it runs
/// gains privileges (`PR_SET_NO_NEW_PRIVS`), and it leaves no core file.
#[derive(Clone, Debug, Default)]
pub struct ChildSetup {
    given: [RawFd; MOST_GIVEN],
    count: usize,
    /// The signal that ends the child when the thread that started it ends, if any.
    ends_by: Option<Signal>,
    /// The most descriptors that the child may have.
    descriptors: Option<u64>,
    /// The network namespace that the child enters, if it is another one.
    network: Option<RawFd>,
}

impl ChildSetup {
    /// A child with the standard streams only, which outlives this process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands a descriptor over.
    ///
    /// # Panics
    /// More than eight descriptors are handed over.
    #[must_use]
    pub fn with(mut self, fd: BorrowedFd<'_>) -> Self {
        assert!(self.count < MOST_GIVEN, "a child is handed eight descriptors at most");
        self.given[self.count] = fd.as_raw_fd();
        self.count += 1;
        self
    }

    /// Ends the child by this signal when the thread that starts it ends, for whatever reason.
    /// Start it from a long-lived thread. The kernel sends no signal to a process that changes its
    /// user.
    #[must_use]
    pub fn ending_by(self, signal: Signal) -> Self {
        Self { ends_by: Some(signal), ..self }
    }

    /// Starts the child in this network namespace, whatever namespace the thread is in that starts
    /// it. Only root may (`CAP_SYS_ADMIN`).
    #[must_use]
    pub fn in_network(self, namespace: BorrowedFd<'_>) -> Self {
        Self { network: Some(namespace.as_raw_fd()), ..self }
    }

    /// Limits the number of its descriptors.
    #[must_use]
    pub fn with_descriptors(self, most: u64) -> Self {
        Self { descriptors: Some(most), ..self }
    }

    /// Prepares `command` to start such a child. The descriptors that are handed over, and the
    /// network namespace, must be open until it starts.
    pub fn equip<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let (outfit, parent) = (self.clone(), getpid());
        let put_on = move || {
            if let Some(signal) = outfit.ends_by {
                parent_death::ask(signal, parent)?;
            }
            outfit.enter_network()?;
            outfit.limit()?;
            outfit.hand_over()
        };
        // SAFETY: between fork and exec the child only makes system calls. Neither they nor the
        // errors that are returned allocate memory or take a lock.
        unsafe { command.pre_exec(put_on) }
    }

    /// The numbers of the descriptors that the child must find when it starts.
    fn needs(&self) -> Vec<RawFd> {
        self.given[..self.count].iter().copied().chain(self.network).collect()
    }

    fn enter_network(&self) -> io::Result<()> {
        let Some(namespace) = self.network else { return Ok(()) };
        // SAFETY: the descriptor is open, as `equip` requires.
        let namespace = unsafe { BorrowedFd::borrow_raw(namespace) };
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        Ok(rustix::thread::move_into_link_name_space(namespace, kind)?)
    }

    fn limit(&self) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        if let Some(most) = self.descriptors {
            // The limit must not exceed the present one.
            let has = rustix::process::getrlimit(Resource::Nofile);
            let most = Some(has.maximum.map_or(most, |maximum| maximum.min(most)));
            setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
        }
        Ok(())
    }

    /// Marks all descriptors for closing at exec, except the standard streams and those that are
    /// handed over. Until exec, std reports failures through one of them.
    fn hand_over(&self) -> io::Result<()> {
        // SAFETY: the call only marks descriptors, and closes none.
        let marked = unsafe {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
        };
        if marked != 0 {
            return Err(io::Error::last_os_error());
        }
        for fd in &self.given[..self.count] {
            // SAFETY: the descriptors are open, as `equip` requires.
            rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(*fd) }, FdFlags::empty())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Stdio;

    use super::*;

    /// The output of a child with this outfit.
    fn said(outfit: &ChildSetup, script: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        let output = outfit.equip(&mut command).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A descriptor that each child would inherit.
    fn leaky() -> std::os::fd::OwnedFd {
        let fd = rustix::pipe::pipe().unwrap().0;
        rustix::io::fcntl_setfd(&fd, FdFlags::empty()).unwrap();
        fd
    }

    #[test]
    fn a_child_has_the_descriptors_that_it_was_handed_and_no_others() {
        let (stranger, given) = (leaky(), leaky());
        let script = "readlink /proc/$$/fd/*";
        let has = |said: String| {
            let has = |fd: &std::os::fd::OwnedFd| {
                let pipe = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
                let pipe = pipe.unwrap().to_str().unwrap().to_owned();
                said.lines().any(|line| line == pipe)
            };
            (has(&stranger), has(&given))
        };
        assert_eq!(has(said(&ChildSetup::new().with(given.as_fd()), script)), (false, true));
        assert_eq!(has(said(&ChildSetup::new(), script)), (false, false));
    }

    #[test]
    fn a_child_gains_no_privilege_and_leaves_no_core_and_has_few_descriptors() {
        let status =
            said(&ChildSetup::new(), "grep NoNewPrivs /proc/self/status; ulimit -c; ulimit -Hc");
        let words: Vec<_> = status.split_whitespace().collect();
        assert_eq!(words, ["NoNewPrivs:", "1", "0", "0"]);
        let outfit = ChildSetup::new().with_descriptors(64);
        assert_eq!(said(&outfit, "ulimit -n; ulimit -Hn"), "64\n64");
    }

    fn sleeping(setup: &ChildSetup) -> Supervised {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null());
        Supervised::start(&mut command, setup).unwrap().0.ending_with_this()
    }

    fn signal(child: &Supervised) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap())
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it_and_when_it_is_dropped() {
        let setup = ChildSetup::new().ending_by(Signal::KILL);
        let start = {
            let setup = setup.clone();
            move || sleeping(&setup)
        };
        let orphan = std::thread::spawn(start).join().unwrap();
        assert_eq!(signal(&orphan), Some(9));
        let child = sleeping(&setup);
        assert_eq!(child.ended().unwrap(), None);
        let pid = child.pid();
        drop(child);
        assert!(rustix::process::test_kill_process(pid).is_err(), "it is gone");
    }

    #[test]
    fn a_child_is_reaped_once_and_says_how_it_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 7"]).stdin(Stdio::null());
        let (child, _) = Supervised::start(&mut command, &ChildSetup::new()).unwrap();
        assert!(is_owned(child.pid()));
        assert_eq!(child.wait().unwrap().code(), Some(7));
        assert!(!is_owned(child.pid()));
        assert_eq!(child.ended().unwrap().unwrap().code(), Some(7));
        assert_eq!(child.end().unwrap().code(), Some(7));
    }

    #[test]
    fn a_process_that_is_no_child_or_has_an_owner_is_not_taken_for_a_child() {
        let child = sleeping(&ChildSetup::new());
        assert!(Supervised::child(child.pid()).is_err(), "it has an owner");
        let parent = rustix::process::getppid().unwrap();
        assert!(Supervised::child(parent).is_err(), "it is no child");
        let found = Supervised::found(child.pid()).unwrap();
        found.kill();
        assert_eq!(signal(&child), Some(9));
    }
}
