//! The program's side: copies requests in and out, and syncs rings.
//!
//! All memory that the program names by address goes through [`UserMemory`], so that a bad address
//! is an error and not a crash. Rings are accessed in the mapping of their region, by checked
//! numbers.

mod blocks;
mod bound;
mod card;
mod control;
mod daemon;
mod hold;
mod kloop;
mod legacy;
mod options;
mod ring;
mod wait;
mod watch;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;

pub use self::bound::{Bound, Ready};
pub use self::control::{Question, control};
pub use self::daemon::{ask, identify, open};
pub use self::kloop::{Start, check_blocks, start_arguments};
pub use self::legacy::{legacy_info, legacy_register};
pub use self::options::Local;
pub use self::wait::Waiter;

/// The program's memory, by address.
pub trait UserMemory {
    /// Reads bytes at an address.
    ///
    /// # Errors
    /// `EFAULT` for an address that cannot be read.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Writes bytes at an address.
    ///
    /// # Errors
    /// `EFAULT` for an address that cannot be written.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno>;
}

/// A program that keeps cursors in blocks of its own, and its event descriptors.
pub trait Program: UserMemory {
    /// Loads a word (acquire). The address was readable and writable when it was passed.
    fn load(&self, at: u64) -> u32;

    /// Stores a word (release) at such an address.
    fn store(&self, at: u64, value: u32);

    /// Signals one of the program's event descriptors.
    fn signal(&self, fd: i32);

    /// Waits until one of the program's event descriptors is signalled, and consumes the signal.
    /// Also returns when one of `own` is readable.
    fn wait(&self, fds: &[i32], own: &[BorrowedFd<'_>], time: Duration);
}

/// This process's number, or 0 before its first use.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns this process's number, without a system call each time.
fn process() -> u32 {
    match PROCESS.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            PROCESS.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Notes that this process is the child of a fork.
pub fn forked() {
    PROCESS.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
