//! A socket that receives bytes, and no descriptors.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{Descriptor, closer, receive, refuses};

/// A stranger's socket that must not receive descriptors.
#[derive(Debug)]
pub struct Inlet {
    socket: Descriptor,
    /// The kernel lets no descriptors through.
    refuses: bool,
    /// Some came.
    breached: AtomicBool,
}

impl Inlet {
    /// A socket that was made to [refuse](super::refuse) descriptors, if this kernel can.
    #[must_use]
    pub fn new(socket: Descriptor) -> Self {
        let refuses = refuses(&socket);
        Self { socket, refuses, breached: AtomicBool::new(false) }
    }

    /// True if the kernel lets no descriptors through, so that each way of receiving is safe.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.refuses
    }

    /// Receives bytes; returns their number, as recv(2) does.
    ///
    /// # Errors
    /// The kernel's error; `EBADMSG` if descriptors came. The bytes with them are lost, and the
    /// caller must [hang up](Descriptor::hang_up) on the sender. While they cannot be closed,
    /// nothing is received.
    #[inline]
    pub fn recv(&self, bytes: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        if self.refuses {
            return rustix::net::recv(&self.socket, bytes, flags).map(|(_, len)| len);
        }
        self.recv_with_room(bytes, flags)
    }

    #[cold]
    fn recv_with_room(&self, bytes: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        // Peeking without room for descriptors leaves them in the socket.
        if flags.contains(RecvFlags::PEEK) {
            return rustix::net::recv(&self.socket, bytes, flags).map(|(_, len)| len);
        }
        let uid = self.socket.uid();
        if self.breached.load(Ordering::Relaxed) && closer().admits(uid).is_err() {
            return Err(Errno::AGAIN);
        }
        let got = receive(&self.socket, uid, bytes, flags)?;
        if got.descriptors.is_empty() && !got.lost {
            return Ok(got.len);
        }
        self.breached.store(true, Ordering::Relaxed);
        Err(Errno::BADMSG)
    }

    /// Like [`Descriptor::hang_up`].
    pub fn hang_up(&self) {
        self.socket.hang_up();
    }
}

impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
