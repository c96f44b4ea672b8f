//! Options of sockets that no library sets.
#![allow(unsafe_code, reason = "setsockopt and getsockopt take pointers")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Sets an option to a number.
pub(super) fn set(socket: &OwnedFd, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    set_bytes(socket, level, option, &value)
}

/// Sets an option to a value of the kernel's format.
pub(super) fn set_bytes<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (at, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes at `at`, and what a program's pointer leads to, during
    // the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An option that is a number.
pub(super) fn get(socket: &OwnedFd, level: i32, option: i32) -> io::Result<libc::c_int> {
    let (mut value, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    let at = std::ptr::from_mut::<libc::c_int>(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes there.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, at, &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}
