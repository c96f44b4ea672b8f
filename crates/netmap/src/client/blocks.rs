//! Where the cursors of a descriptor are, if a program has put them into blocks of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The addresses of a descriptor's blocks, and whether a loop runs.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub(super) program: AtomicU64,
    pub(super) core: AtomicU64,
    pub(super) stop: OnceLock<OwnedFd>,
    pub(super) running: AtomicBool,
    pub(super) stopping: AtomicBool,
}

impl Blocks {
    /// True if the program has put the cursors into blocks.
    pub(super) fn is_some(&self) -> bool {
        self.program.load(Ordering::Relaxed) != 0
    }

    /// Returns the descriptor that ends the sleep of a loop.
    pub(super) fn stop_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stop.get().map(AsFd::as_fd)
    }
}
