//! The word to a manager that a guest serves.

use std::os::fd::BorrowedFd;

use jail::cell::{self, Report};

/// Tells the manager that the guest serves, when the last copy is dropped. Each stack drops its own
/// with its first turn after it has its addresses, so its listeners are there by then.
#[derive(Debug)]
pub(crate) struct Up(pub BorrowedFd<'static>);

impl Drop for Up {
    fn drop(&mut self) {
        cell::send(self.0, &Report::Up);
    }
}
