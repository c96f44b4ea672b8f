//! Asks the daemon, over one connection per question, so that no descriptor is kept that a program
//! could close.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netring::attach::{SOCKET, runtime_directory};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::{Answer, Ask, VERSION, kind};

/// Time limit for the daemon's answer: it may have to start a switch.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Most descriptors of an answer.
const MOST_FDS: usize = 4;

/// Asks the daemon. At most two descriptors go with the question.
///
/// # Errors
/// `ENXIO` if there is no daemon, `EACCES` if access is denied, otherwise the daemon's answer.
pub fn ask(question: &Ask, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), Errno> {
    let socket = connect()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let bytes = [rustix::io::IoSlice::new(question.as_bytes())];
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &bytes, &mut control, SendFlags::NOSIGNAL)
    })
    .map_err(|_| Errno::NXIO)?;
    let (answer, fds) = receive(&socket)?;
    if answer.version != VERSION {
        return Err(Errno::PROTO);
    }
    Ok((answer, fds))
}

/// Opens a new token.
///
/// # Errors
/// As [`ask`].
pub fn open() -> Result<OwnedFd, Errno> {
    let (answer, fds) = ask(&Ask::new(kind::OPEN, 0), &[])?;
    if answer.status != 0 {
        return Err(Errno::from_raw_os_error(answer.status));
    }
    let [token] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Errno::PROTO)?;
    Ok(token)
}

/// Asks what a token is bound to; `None` for a descriptor that is no token of this daemon.
///
/// # Errors
/// As [`ask`].
pub fn identify(token: BorrowedFd<'_>) -> Result<Option<(Answer, Vec<OwnedFd>)>, Errno> {
    let (answer, fds) = ask(&Ask::new(kind::IDENTIFY, 0), &[token])?;
    Ok((answer.status == 0).then_some((answer, fds)))
}

fn connect() -> Result<OwnedFd, Errno> {
    let path = runtime_directory().join(SOCKET);
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path).map_err(|_| Errno::NXIO)?;
    rustix::net::connect(&socket, &address).map_err(|error| match error {
        Errno::ACCESS | Errno::PERM => Errno::ACCESS,
        _ => Errno::NXIO,
    })?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIME))?;
    Ok(socket)
}

fn receive(socket: &OwnedFd) -> Result<(Answer, Vec<OwnedFd>), Errno> {
    let mut bytes = [0; size_of::<Answer>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        let mut parts = [rustix::io::IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(|_| Errno::NXIO)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    let whole = got.bytes == bytes.len();
    let answer = Answer::read_from_bytes(&bytes).ok().filter(|_| whole).ok_or(Errno::PROTO)?;
    Ok((answer, fds))
}
