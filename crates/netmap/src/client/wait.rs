//! Waiting for wake-ups that several may wait for.
//!
//! Bytes on a token stay there: who takes one away takes it from others who wait on the same token. So
//! each waiter has an epoll set of its own, which tells of every new byte once (`EPOLLET`), whoever
//! reads or does not read it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Most descriptors in a set before it is made anew.
const MOST: usize = 64;

/// An epoll set.
#[derive(Debug)]
pub struct Waiter {
    set: OwnedFd,
    /// The descriptors in it, and what they belong to.
    members: Vec<(RawFd, u64)>,
}

impl Waiter {
    /// An empty set.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn new(raise: impl Fn(OwnedFd) -> OwnedFd) -> Result<Self, Errno> {
        let set = raise(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self { set, members: Vec::new() })
    }

    /// True if it should be made anew.
    #[must_use]
    pub fn is_worn(&self) -> bool {
        self.members.len() >= MOST
    }

    /// Watches `fd`, which belongs to `owner`, a number that is never used twice. What happened before is
    /// told as well.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, owner: u64) -> Result<(), Errno> {
        let member = (fd.as_raw_fd(), owner);
        if self.members.contains(&member) {
            return Ok(());
        }
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(owner);
        match epoll::add(&self.set, fd, data, flags) {
            // A file that is open elsewhere, too, under a number that was used before.
            Err(Errno::EXIST) => epoll::modify(&self.set, fd, data, flags)?,
            other => other?,
        }
        self.members.retain(|(raw, _)| *raw != member.0);
        self.members.push(member);
        Ok(())
    }

    /// Takes what happened out of the set, without waiting; true if something did.
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
