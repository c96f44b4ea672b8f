//! What wakes readers that sleep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::failure::Failure;

/// Wakes a reader that sleeps; may be rung by a signal handler.
#[derive(Debug)]
pub struct ReaderWaker {
    fd: OwnedFd,
    /// Its descriptor is readable, or about to be.
    ///
    /// # Protocol: `Bell.rung`
    /// - Writer: a thread or signal handler that rings (sets), the sleeper (clears)
    /// - Reader: the sleeper, before it sleeps
    /// - Ordering: sequentially consistent; set before the descriptor is written, cleared before it
    ///   is read
    /// - Partner: the eventfd
    /// - Without it: a ring between two looks is emptied from the descriptor unseen
    /// - Shown by: `pcap` test `a_sleeper_is_woken_by_a_frame_also_after_another_reader_took_it`
    rung: AtomicBool,
}

impl AsFd for ReaderWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl ReaderWaker {
    /// Makes a waker. `raise` hides its descriptor from the program.
    pub(crate) fn new(raise: fn(OwnedFd) -> OwnedFd) -> Result<Self, Failure> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let fd = raise(fd.map_err(Failure::io)?);
        Ok(Self { fd, rung: AtomicBool::new(false) })
    }

    /// True if the waker was rung since it was last [still](Self::still).
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst)
    }

    /// Rings the waker: makes its descriptor readable.
    pub fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        // A full counter is readable as well.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Makes the waker's descriptor unreadable.
    pub(crate) fn still(&self) {
        self.rung.store(false, Ordering::SeqCst);
        // The descriptor is read even if `rung` was clear, because a ringer may have stopped
        // between its two steps.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }
}
