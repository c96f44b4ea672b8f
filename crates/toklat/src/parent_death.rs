//! The parent-death signal (`PR_SET_PDEATHSIG`, prctl(2)): a process ends with who started it, however that ended.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel send `signal` to the process that `command` will start, as soon as the thread that starts it ends: start it
/// from one that stays. A process that changes its user is spared.
#[expect(unsafe_code, reason = "a process can ask for this signal only by itself")]
pub fn signal(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(signal))?;
        // If the parent died before, no signal will come.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: between fork and exec there are two system calls, which allocate nothing and take no lock; nor do these errors.
    unsafe { command.pre_exec(ask) }
}
