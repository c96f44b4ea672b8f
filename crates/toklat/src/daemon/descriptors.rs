//! Descriptors in the reactor, and those that this process inherited.
#![allow(
    unsafe_code,
    reason = "a descriptor known by its number is taken over; the reactor keeps a number"
)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use jail::strangers::Descriptor;
use rustix::io::FdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A type that names the same descriptor for all of its life.
pub trait Own: AsRawFd {}
impl Own for OwnedFd {}
impl Own for Descriptor {}

/// Registers `fd` with the reactor, which tells when it is ready.
///
/// # Errors
/// The kernel's error.
pub fn register<T: Own>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: `fd` owns a descriptor with the same number until it is dropped. The AsyncFd drops it
    // only after it has removed the descriptor from the reactor.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Takes over the inherited descriptor `number`, and keeps it from processes that this one starts.
///
/// Call it once for each number, before anything else is opened.
///
/// # Errors
/// There is no such descriptor.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "Standard streams stay as they are",
        ));
    }
    // SAFETY: the code below checks whether the descriptor is open before it is used for anything
    // else.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, it was open before this program opened anything, and the
    // caller takes it once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
