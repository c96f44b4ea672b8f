//! Descriptors of strangers: how they are received, how their kind is asked, how they are closed.
//!
//! The kernel works for whoever made a descriptor, on the thread that uses it. To close one may wait as
//! long as its maker likes: for a peer that does not read (`SO_LINGER`), for a file system in user space
//! (FUSE), for two million watches of an eventfd; `fstat(2)` may wait for a file system, too. A socket's
//! close also closes what lies unread in its queue. So three rules hold, and this module is the one place
//! that knows them:
//!
//! - **Where none are to come, none do.** [`refuse`] has the kernel fail whoever sends some
//!   (`SO_PASSRIGHTS`, Linux 6.16). Before 6.16, [`Inlet`] receives them with room for as many as a message
//!   can carry: the kernel closes those without room at once, on the receiving thread.
//! - **What came is a [`Descriptor`]**, which knows whose it is. Dropped, it is closed by a [`Closer`]'s thread, and
//!   by no thread that serves anybody. Two closes of a user are under way at a time; while both of them
//!   are stuck, that user is [refused](Closer::admits).
//! - **[Its kind](kind()) is asked without entering its file system.**
//!
//! The same holds for sockets of our own that strangers write to: what they send lies in our queues.

mod closer;
mod inlet;
mod kind;
mod receive;
mod rights;

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

pub use self::closer::{CLOSER_NAME, Closer, Closing, TooMany, closer};
pub use self::inlet::Inlet;
pub use self::kind::{Kind, is_event, is_unix_stream, kind};
pub use self::receive::{MOST, Received, receive};
pub use self::rights::{SWITCH, accept, refuse, refuses};

#[cfg(test)]
mod tests;

/// Reads what cannot be read any more once the process is confined. Call it first.
pub fn prepare() {
    receive::prepare();
    rights::prepare();
}

/// A descriptor, and whose it is: that of a stranger is closed by the [`closer()`].
pub struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    /// The user it is charged to; `None` for one that no stranger has a hand in.
    uid: Option<u32>,
}

impl Descriptor {
    /// One that a stranger of this user sent, or may send to.
    #[must_use]
    pub fn of(uid: u32, fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), uid: Some(uid) }
    }

    /// One of our own, which is closed at once.
    #[must_use]
    pub fn ours(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), uid: None }
    }

    /// Charges it to another user, who is known by now.
    #[must_use]
    pub fn charged_to(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// The user it is charged to; root for one of our own.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid.unwrap_or(0)
    }

    /// Says that no stranger has a hand in it: it is closed at once.
    #[must_use]
    pub fn into_ours(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, as this is not dropped.
        unsafe { ManuallyDrop::take(&mut this.fd) }
    }

    /// Another descriptor of the same file, charged to the same user.
    ///
    /// # Errors
    /// There is none left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: ManuallyDrop::new(self.fd.try_clone()?), uid: self.uid })
    }

    /// Shuts a stranger's socket down: its peer sees the end of the connection, and no more comes.
    ///
    /// The kernel wakes all who watch the peer's end, so the closer does it. A socket of our own is shut
    /// down at once.
    pub fn hang_up(&self) {
        match self.uid.map(|uid| (uid, self.fd.try_clone())) {
            Some((uid, Ok(twin))) => closer().hang_up(uid, twin),
            // Without a descriptor to spare, waking the watchers is the lesser evil. Fails only if it is
            // closed already.
            Some((_, Err(_))) | None => shut_down(&self.fd),
        }
    }

    /// As [`hang_up`](Self::hang_up), so that the peer finds the connection's end and not that its last
    /// words were not read: QEMU 11.1 ends itself over that.
    pub fn take_leave(&self) {
        match self.uid.map(|uid| (uid, self.fd.try_clone())) {
            Some((uid, Ok(twin))) => closer().take_leave(uid, twin),
            Some((_, Err(_))) | None => take_leave(&self.fd),
        }
    }
}

/// Ends what we write, then reads what there is away.
fn take_leave(socket: &OwnedFd) {
    // Each fails only if it is closed already.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
    shut_down(socket);
    let mut bytes = [0; 8192];
    // No more comes in; as much as a socket's buffer holds is there.
    for _ in 0..1024 {
        match rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(_) => break,
            Ok(_) => {}
        }
    }
}

fn shut_down(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: taken here only, and never used again.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        match self.uid {
            Some(uid) => closer().close(uid, fd),
            None => drop(fd),
        }
    }
}

impl From<OwnedFd> for Descriptor {
    /// One that somebody else may have a hand in, charged to root until it is known to whom.
    fn from(fd: OwnedFd) -> Self {
        Self::of(0, fd)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({}", self.fd.as_raw_fd())?;
        self.uid.map_or(Ok(()), |uid| write!(f, " of user {uid}"))?;
        f.write_str(")")
    }
}
