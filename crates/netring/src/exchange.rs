//! A message to the daemon and its reply, each with descriptors.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};
use zerocopy::{FromBytes, IntoBytes};

/// The maximum number of descriptors of a message.
const MOST_FDS: usize = 4;

/// The reason why there is no reply.
#[derive(Debug)]
pub enum ExchangeError {
    /// The operating system refused something, or the reply did not come in time.
    Io(Errno),
    /// The reply has another length than it must have.
    Length,
}

/// Connects to the daemon's attach socket.
///
/// # Errors
/// No daemon listens there, permission is missing, or the process has no descriptors left.
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// Sends a message with at most [four](MOST_FDS) descriptors, and waits as long as `patience` for
/// the reply. Signals do not end the wait, nor prolong it.
///
/// # Errors
/// See [`ExchangeError`].
pub fn exchange<T: FromBytes + IntoBytes>(
    socket: impl AsFd,
    message: &[u8],
    lent: &[BorrowedFd<'_>],
    patience: Duration,
) -> Result<(T, Vec<OwnedFd>), ExchangeError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !lent.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(lent));
    }
    let parts = [rustix::io::IoSlice::new(message)];
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL)
    });
    match sent {
        // A daemon without room for the connection replies before it is asked.
        Ok(_) | Err(Errno::PIPE) => receive(socket.as_fd(), Instant::now() + patience),
        Err(error) => Err(ExchangeError::Io(error)),
    }
}

fn receive<T: FromBytes + IntoBytes>(
    socket: BorrowedFd<'_>,
    until: Instant,
) -> Result<(T, Vec<OwnedFd>), ExchangeError> {
    let mut reply = T::new_zeroed();
    let bytes = reply.as_mut_bytes();
    let length = bytes.len();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [rustix::io::IoSliceMut::new(bytes)];
    let got = loop {
        // A time limit of 0 would mean no limit, so at least a millisecond is set.
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(left))
            .map_err(ExchangeError::Io)?;
        let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        match got {
            // A signal to the program is not a reply, so the wait goes on.
            Err(Errno::INTR) if Instant::now() < until => {}
            got => break got.map_err(ExchangeError::Io)?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    match got.bytes == length && !got.flags.contains(ReturnFlags::TRUNC) {
        true => Ok((reply, fds)),
        false => Err(ExchangeError::Length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_reply_that_does_not_come_is_waited_for_no_longer_than_said() {
        let (near, _far) = pair();
        let limit = Duration::from_millis(20);
        let asked = Instant::now();
        let said = exchange::<u64>(&near, b"?", &[], limit);
        assert!(matches!(said, Err(ExchangeError::Io(Errno::AGAIN))), "{said:?}");
        assert!(asked.elapsed() >= limit);
    }

    #[test]
    fn replies_of_another_length_are_refused_and_descriptors_come_along() {
        let (near, far) = pair();
        for (reply, is_whole) in [(&[7; 8][..], true), (&[7; 9], false), (&[7; 7], false)] {
            rustix::net::send(&far, reply, SendFlags::empty()).unwrap();
            let said = exchange::<u64>(&near, b"?", &[far.as_fd()], Duration::from_secs(60));
            assert_eq!(said.is_ok(), is_whole, "{reply:?}");
        }
    }
}
