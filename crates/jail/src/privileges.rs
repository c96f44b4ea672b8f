//! Privileges that a process gives up.
#![allow(unsafe_code, reason = "the bounding set and ranges of descriptors are known to libc only")]

use std::io;
use std::os::fd::RawFd;

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The number of capabilities that a kernel can have: its masks have 64 bits.
const CAPABILITIES: libc::c_ulong = 64;

/// True if this thread has all these capabilities in effect.
#[must_use]
pub fn holds(needed: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Empties the bounding set of capabilities, if this process may. Without new privileges the set
/// has no effect. Call it before the change of user, which takes that right away.
pub fn drop_bounds() {
    for capability in 0..CAPABILITIES {
        // SAFETY: takes numbers alone. It fails for one that the kernel does not know, and without
        // CAP_SETPCAP.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

/// Empties the other sets of capabilities.
pub fn drop_capabilities() -> io::Result<()> {
    // Ambient capabilities are subsets of these sets, so they are dropped, too.
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Hides this process's memory from core files and from other processes of the same user.
pub fn hide_memory() -> io::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes the loss of privileges permanent, for any program that this process might run, too.
pub fn forbid_new() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Closes all descriptors except the standard streams and `kept`.
pub fn close_others(kept: &[RawFd]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    let mut from = 3;
    for fd in kept {
        if from < fd {
            close(from, fd - 1)?;
        }
        from = from.max(fd.saturating_add(1));
    }
    close(from, u32::MAX)
}

fn close(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: holders of these descriptors lose them, as the documentation of `Jail::enter` says.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
