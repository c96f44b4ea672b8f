//! Options of sockets that no library sets.
#![allow(unsafe_code, reason = "setsockopt and getsockopt take pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

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
    let [number] = get_words(socket, level, option)?;
    Ok(number.cast_signed())
}

/// Reads an option as words. Words that the kernel does not write are zero.
pub(super) fn get_words<const N: usize>(
    socket: impl AsFd,
    level: i32,
    option: i32,
) -> io::Result<[u32; N]> {
    let mut words = [0; N];
    let mut len = size_of_val(&words) as libc::socklen_t;
    let (at, socket) = ((&raw mut words).cast(), socket.as_fd().as_raw_fd());
    // SAFETY: the kernel writes at most `len` bytes there.
    match unsafe { libc::getsockopt(socket, level, option, at, &raw mut len) } {
        0 => Ok(words),
        _ => Err(io::Error::last_os_error()),
    }
}
