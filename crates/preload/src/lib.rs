//! A library for `LD_PRELOAD`: `/dev/netmap` exists for the program that it is loaded into.
//!
//! The C library's functions that programs reach descriptors by are taken over ([`hooks`]). A call that
//! has nothing to do with netmap goes on to the C library after one look at a table of bits; the others
//! are carried out by crate `netmap`. A hook that panics returns `EIO`.
//!
//! | module | what it is |
//! |---|---|
//! | `hooks` | the functions that the library exports |
//! | `real` | those of the C library |
//! | `fds` | which descriptors are netmap's, or ours |
//! | `capture` | libpcap's calls, for handles of ours |
//! | `packet` | packet sockets on ports, and ports by the names of interfaces |
//! | `device`, `extmem` | open, ioctl, mmap; memory of the program's own |
//! | `poll`, `select`, `epoll` | waiting for netmap's descriptors and others at once |
//! | `user` | the program's memory, read and written so that a bad address is an error |
//!
//! Descriptors of the library's own have high numbers, and the program cannot close them.
#![allow(
    unsafe_code,
    reason = "functions of the C library take and hand over raw pointers and descriptors"
)]

mod capture;
mod device;
mod epoll;
mod extmem;
mod fds;
mod fork;
mod hooks;

mod packet;
mod poll;
mod real;
mod select;
mod user;

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;

/// Sets `errno`.
fn set_errno(errno: Errno) {
    // SAFETY: the C library's own place for it, of this thread.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// `errno`.
fn errno() -> Errno {
    // SAFETY: as above.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// What the C library's functions return for a result: -1, and `errno`, for an error; a panic is `EIO`.
fn returned(call: impl FnOnce() -> Result<i32, Errno>) -> i32 {
    told(catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::IO)))
}

/// As [`returned`], of a call that a cancelled thread unwinds through: that cannot be caught.
fn told(result: Result<i32, Errno>) -> i32 {
    match result {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// The result of a function of the C library's.
fn result(value: i32) -> Result<i32, Errno> {
    if value < 0 { Err(errno()) } else { Ok(value) }
}
