//! The parent-death signal (`PR_SET_PDEATHSIG`, prctl(2)): a process ends with the one that started
//! it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Makes the kernel send `signal` to the process that `command` will start when the thread that
/// starts it ends. Start it from a long-lived thread. The kernel sends no signal to a process that
/// changes its user.
#[expect(unsafe_code, reason = "a process can ask for this signal only by itself")]
pub fn signal(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = getpid();
    // SAFETY: between fork and exec there are two system calls, which allocate nothing and take no
    // lock; nor do these errors.
    unsafe { command.pre_exec(move || ask(signal, parent)) }
}

/// Asks for the signal, for this process, which `parent` has started.
pub(crate) fn ask(signal: Signal, parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(signal))?;
    // If the parent died before, no signal will come.
    if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Protects the process of this command from signals of the terminal, even as it starts. Until it
/// has left the terminal, this process handles such signals, and only notes them.
#[expect(unsafe_code, reason = "by itself it would leave the terminal too late")]
pub fn in_its_own_session(command: &mut Command) -> &mut Command {
    let leave = || rustix::process::setsid().map(|_| ()).map_err(std::io::Error::from);
    // SAFETY: between fork and exec there is one system call, which allocates nothing and takes no
    // lock.
    unsafe { command.pre_exec(leave) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_the_cleaner_has_left_the_terminal_before_it_runs() {
        let mut command = Command::new("sleep");
        command.arg("100");
        let mut child = in_its_own_session(&mut command).spawn().unwrap();
        // The process exists by now, whatever it has done so far.
        let pid = Pid::from_raw(child.id() as i32);
        let session = rustix::process::getsid(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(session.ok(), pid);
    }
}
