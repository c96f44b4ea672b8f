//! The program's side: requests copied in and out, and rings synced.
//!
//! All memory of the program's that is named by an address is read and written through [`UserMemory`],
//! so that a bad address is an error and not a crash. Rings are reached through the mapping of their
//! region, by checked numbers.

mod bound;
mod control;
mod daemon;
mod legacy;
mod options;
mod ring;
mod wait;

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

pub use self::bound::{Bound, Ready};
pub use self::control::control;
pub use self::daemon::{ask, identify, open};
pub use self::legacy::{legacy_info, legacy_register};
pub use self::wait::Waiter;

/// Memory of the program's, by address.
pub trait UserMemory {
    /// Reads.
    ///
    /// # Errors
    /// `EFAULT` for an address that cannot be read.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Writes.
    ///
    /// # Errors
    /// `EFAULT` for an address that cannot be written.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno>;
}

/// This process, or 0 before it is asked for.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// This process's number, without a system call each time.
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

/// This process is the child of a fork.
pub fn forked() {
    PROCESS.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
