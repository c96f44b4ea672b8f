//! Reading from and writing to netmap's descriptors, which the device refuses. What a token holds
//! is the library's and the daemon's.
#![allow(
    clippy::missing_safety_doc,
    reason = "what each function demands is what the C library's of the same name does"
)]

use std::ffi::{c_int, c_void};

use libc::{iovec, size_t, ssize_t};
use rustix::io::Errno;

use crate::export::export;
use crate::{marks, real, set_errno};

/// Returns true, with `EINVAL`, for a netmap descriptor.
pub fn refuses(fd: c_int) -> bool {
    let is_ours = marks::NETMAP.has(fd);
    if is_ours {
        set_errno(Errno::INVAL);
    }
    is_ours
}

/// Looks up the C library's functions: signal handlers may call them, but not look them up.
pub fn prepare() {
    // SAFETY: the kernel refuses the descriptor, and looks at nothing else.
    unsafe {
        real::read(-1, std::ptr::null_mut(), 0);
        real::readv(-1, std::ptr::null(), 0);
        real::write(-1, std::ptr::null(), 0);
        real::writev(-1, std::ptr::null(), 0);
    }
}

export! {
    fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        if refuses(fd) { -1 } else { unsafe { real::read(fd, bytes, len) } }
    }
    fn __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        if refuses(fd) { -1 } else { unsafe { real::__read_chk(fd, bytes, len, room) } }
    }
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        if refuses(fd) { -1 } else { unsafe { real::readv(fd, parts, count) } }
    }
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the caller keeps this function's contract.
        if refuses(fd) { -1 } else { unsafe { real::writev(fd, parts, count) } }
    }
}
