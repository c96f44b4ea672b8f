//! A library for `LD_PRELOAD`: it gives the program that loads it `/dev/netmap`.
//!
//! It replaces the C library functions that take descriptors ([`hooks`]). A call that does not
//! concern netmap goes on to the C library after one lookup in a bit table. Crate `netmap` carries
//! out the others. A hook that panics returns `EIO`.
//!
//! | module | what it is |
//! |---|---|
//! | `hooks` | the functions that the library exports |
//! | `real` | those of the C library |
//! | `fds` | which descriptors are netmap's, or ours |
//! | `capture` | libpcap's calls, for handles of ours |
//! | `packet` | packet sockets on ports, and ports by the names of interfaces |
//! | `device`, `extmem` | open, ioctl, mmap; memory of the program's own |
//! | `io` | what the device refuses |
//! | `poll`, `list`, `select`, `epoll` | waiting for netmap's descriptors and others at once |
//! | `user` | the program's memory, read and written so that a bad address is an error |
//!
//! The library's own descriptors have high numbers, and the program cannot close them.
#![allow(
    unsafe_code,
    reason = "functions of the C library take and hand over raw pointers and descriptors"
)]

mod capture;
mod device;
mod epoll;
mod export;
mod extmem;
mod fds;
mod fork;
mod hooks;
mod io;
mod list;
mod marks;

mod packet;
mod poll;
mod real;
mod select;
mod user;

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;

/// Sets `errno`.
fn set_errno(errno: Errno) {
    // SAFETY: the pointer is to the C library's variable of this thread.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// `errno`.
fn errno() -> Errno {
    // SAFETY: as above.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Converts a result to the C library's form: -1 and `errno` for an error. A panic is `EIO`.
fn returned(call: impl FnOnce() -> Result<i32, Errno>) -> i32 {
    returned_uncaught(catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::IO)))
}

/// As [`returned`], for calls that a cancelled thread unwinds through: panics are not caught here.
fn returned_uncaught(result: Result<i32, Errno>) -> i32 {
    match result {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Converts the return value of a C library function to a result.
fn result(value: i32) -> Result<i32, Errno> {
    if value < 0 { Err(errno()) } else { Ok(value) }
}
