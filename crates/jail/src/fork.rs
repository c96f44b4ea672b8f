//! Processes that are copies of this one.
#![allow(unsafe_code, reason = "fork, _exit and handlers of signals are libc's")]

use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};

/// The side of a fork that this process is on.
pub enum Side {
    /// This is the original process; the new one is its child.
    Parent(Pid),
    /// This is the new process.
    Child,
}

/// Forks this process, which must have one thread.
pub fn fork() -> io::Result<Side> {
    // SAFETY: this process has one thread (`Jail::enter` looks), so the copy holds no lock of a
    // thread that it lacks.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid).map_or(Side::Child, Side::Parent)),
    }
}

/// Ends this process at once, without cleanup, which belongs to the other process.
pub fn end(status: i32) -> ! {
    // SAFETY: the call does not return.
    unsafe { libc::_exit(status) }
}

/// Waits for the end of a child.
pub fn reap(child: Pid) {
    while let Err(Errno::INTR) = rustix::process::waitpid(Some(child), WaitOptions::empty()) {}
}

/// Lets the signals that ask a process to end do so. The first process of a namespace ignores
/// signals without a handler.
pub fn obey_signals() -> io::Result<()> {
    extern "C" fn obey(signal: libc::c_int) {
        end(128 + signal);
    }
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let handler: extern "C" fn(libc::c_int) = obey;
        // SAFETY: the handler makes one system call that is safe in handlers, and does not return.
        if unsafe { libc::signal(signal, handler as libc::sighandler_t) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
