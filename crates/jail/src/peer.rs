//! The process and user at the other end of a Unix socket.
#![allow(unsafe_code, reason = "rustix takes a peer's process number for one that is never 0")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A peer, as this process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's process; `None` if it has no number here, because it is outside of this process
    /// namespace.
    pub pid: Option<i32>,
    /// The peer's user number. For users that this user namespace does not map, it is the
    /// kernel's overflow uid, 65534.
    pub uid: u32,
}

/// The peer that connected a socket, or listened for it (`SO_PEERCRED`).
///
/// # Errors
/// The kernel's error.
pub fn of(socket: impl AsFd) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of_val(&found) as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `len` bytes are written to `found` at most, which lives during the call.
    let done =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut found).cast(), &raw mut len) };
    match done {
        0 => Ok(Peer { pid: (found.pid > 0).then_some(found.pid), uid: found.uid }),
        _ => Err(io::Error::last_os_error()),
    }
}
