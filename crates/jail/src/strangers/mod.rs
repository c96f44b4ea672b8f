//! Descriptors of strangers: how they are received, identified and closed.
//!
//! The maker of a descriptor decides how much the kernel works for it on the thread that uses it. A
//! close may wait as long as the maker likes: for a peer that does not read (`SO_LINGER`), for a
//! file system in user space (FUSE), for two million watches of an eventfd. `fstat(2)` may wait for
//! a file system, too. The close of a socket also closes descriptors that are unread in its queue.
//! So there are three rules, which this module alone implements:
//!
//! - **A socket that needs no descriptors gets none.** [`refuse`] makes the kernel fail a send with
//!   descriptors (`SO_PASSRIGHTS`, Linux 6.16). On older kernels, [`Inlet`] receives them with room
//!   for as many as a message can carry: the kernel closes those without room at once, on the
//!   receiving thread.
//! - **A received descriptor is a [`Descriptor`]**, which knows its user. On drop, a [`Closer`]'s
//!   thread closes it, never a thread that serves others. Two closes of a user run at a time. While
//!   both are stuck, that user is [refused](Closer::admits).
//! - **[Its kind](kind()) is determined without entering its file system.**
//!
//! The same holds for our own sockets that strangers write to, because our queues hold what they
//! send.

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

/// Reads what a confined process cannot read any more. Call it first.
pub fn prepare() {
    receive::prepare();
    rights::prepare();
}

/// A descriptor, and the user it is charged to. The [`closer()`] closes a stranger's descriptor.
pub struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    /// The user that the descriptor is charged to; `None` if no stranger can influence it.
    uid: Option<u32>,
}

impl Descriptor {
    /// A descriptor that a stranger with this user id has sent, or may send to.
    #[must_use]
    pub fn of(uid: u32, fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), uid: Some(uid) }
    }

    /// A descriptor of our own, which is closed at once.
    #[must_use]
    pub fn ours(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), uid: None }
    }

    /// Charges the descriptor to another user, once that one is known.
    #[must_use]
    pub fn charged_to(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// The user that the descriptor is charged to; root for one of our own.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid.unwrap_or(0)
    }

    /// Declares that no stranger can influence the descriptor, so that it is closed at once.
    #[must_use]
    pub fn into_ours(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the descriptor is taken only once, because `this` is not dropped.
        unsafe { ManuallyDrop::take(&mut this.fd) }
    }

    /// Another descriptor of the same file, charged to the same user.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: ManuallyDrop::new(self.fd.try_clone()?), uid: self.uid })
    }

    /// Closes the descriptor, then calls `then`. For a stranger's descriptor, a thread that serves
    /// no others does both, and the call may come late or never.
    pub fn close_then(self, then: impl FnOnce() + Send + 'static) {
        let uid = self.uid;
        let fd = self.into_ours();
        match uid {
            Some(uid) => closer().close_then(uid, fd, Box::new(then)),
            None => {
                drop(fd);
                then();
            }
        }
    }

    /// Shuts a stranger's socket down: its peer sees the end of the connection.
    ///
    /// The kernel wakes all watchers of the peer's end, so the closer does it. A socket of our own
    /// is shut down at once.
    pub fn hang_up(&self) {
        match self.uid.map(|uid| (uid, self.fd.try_clone())) {
            Some((uid, Ok(twin))) => closer().hang_up(uid, twin),
            // If there is no descriptor left for the closer, it is better to wake the watchers here
            // than not at all. The call fails only if the socket is already shut down.
            Some((_, Err(_))) | None => shut_down(&self.fd),
        }
    }

    /// Like [`hang_up`](Self::hang_up), but first discards what the peer sent last. The peer then
    /// sees the end of the connection and no reset: QEMU 11.1 aborts on a reset.
    pub fn drain_and_hang_up(&self) {
        match self.uid.map(|uid| (uid, self.fd.try_clone())) {
            Some((uid, Ok(twin))) => closer().drain_and_hang_up(uid, twin),
            Some((_, Err(_))) | None => drain_and_hang_up(&self.fd),
        }
    }
}

/// Ends our side, then discards what is there to read.
fn drain_and_hang_up(socket: &OwnedFd) {
    // Each call fails only if the socket is shut down already.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
    shut_down(socket);
    let mut bytes = [0; 8192];
    // After the shutdown no more bytes arrive, so at most a full socket buffer is left to read.
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
        // SAFETY: the value is taken here only, and never used again.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        match self.uid {
            Some(uid) => closer().close(uid, fd),
            None => drop(fd),
        }
    }
}

impl From<OwnedFd> for Descriptor {
    /// A descriptor that a stranger may influence, charged to root until its user is known.
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
