//! Waits for wake-ups that several waiters share.
//!
//! Bytes on a token stay there: a waiter that reads one would take it from the others. So each
//! waiter has its own epoll set, which reports every new byte once (`EPOLLET`), whether or not it
//! is read.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Maximum number of descriptors before a set is replaced.
const MOST: usize = 64;

/// An epoll set.
#[derive(Debug)]
pub struct Waiter {
    set: OwnedFd,
    /// The descriptors in the set, with their owners.
    members: Vec<(RawFd, u64)>,
}

impl Waiter {
    /// Makes an empty set.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(raise: impl Fn(OwnedFd) -> OwnedFd) -> Result<Self, Errno> {
        let set = raise(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self { set, members: Vec::new() })
    }

    /// Returns true if the set should be replaced.
    #[must_use]
    pub fn is_worn(&self) -> bool {
        self.members.len() >= MOST
    }

    /// Watches `fd` for `owner`, a number that is never reused. Earlier events are reported as
    /// well.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, owner: u64) -> Result<(), Errno> {
        let member = (fd.as_raw_fd(), owner);
        if self.members.contains(&member) {
            return Ok(());
        }
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(owner);
        match epoll::add(&self.set, fd, data, flags) {
            // The descriptor's number was reused, and the old file is still open elsewhere.
            Err(Errno::EXIST) => epoll::modify(&self.set, fd, data, flags)?,
            other => other?,
        }
        self.members.retain(|(raw, _)| *raw != member.0);
        self.members.push(member);
        Ok(())
    }

    /// Consumes all events of the set without waiting; returns true if there were any.
    pub fn take(&self) -> bool {
        let none = EventData::new_u64(0);
        let mut events = [Event { flags: EventFlags::empty(), data: none }; 16];
        let now = Duration::ZERO.try_into().ok();
        matches!(epoll::wait(&self.set, &mut events[..], now.as_ref()), Ok(1..))
    }
}

impl AsFd for Waiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
