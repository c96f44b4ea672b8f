//! Messages with descriptors over SEQPACKET sockets, without blocking the runtime.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use jail::strangers::{self, Descriptor};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::descriptors;

/// Backlog of a listening socket.
pub const BACKLOG: i32 = 1024;
/// The maximum number of descriptors of a message, in both protocols.
pub const MAX_FDS: usize = dataplane::control::MAX_DESCRIPTORS;

/// A message as it arrived.
#[derive(Debug)]
pub struct Message {
    /// The message's bytes; empty at the end of the connection.
    pub bytes: Vec<u8>,
    /// The descriptors that came with the message.
    pub fds: Vec<Descriptor>,
    /// The message was longer than the receiver allows, or had more descriptors, so this is only a
    /// part.
    pub truncated: bool,
}

/// A connected SEQPACKET socket.
#[derive(Debug)]
pub struct Seqpacket(AsyncFd<Descriptor>);

impl Seqpacket {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(socket: Descriptor) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(descriptors::register(socket, Interest::READABLE | Interest::WRITABLE)?))
    }

    /// Connects to the socket at `path`. Unix sockets connect at once or fail.
    ///
    /// # Errors
    /// The kernel's error: `ConnectionRefused` if no process listens.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::new(Descriptor::from(socket))
    }

    /// Like [`Descriptor::drain_and_hang_up`].
    pub fn drain_and_hang_up(&self) {
        self.0.get_ref().drain_and_hang_up();
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The kernel's error; `EMSGSIZE` for one that is longer than the socket's buffer.
    pub async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.0
            .async_io(Interest::WRITABLE, |socket| {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
                Ok(())
            })
            .await
    }

    /// Receives one message of at most `max` bytes, and all descriptors that come with it, charged
    /// to the peer's user.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn receive(&self, max: usize) -> io::Result<Message> {
        let mut bytes = vec![0; max];
        let received = self.0.async_io(Interest::READABLE, |socket| {
            Ok(strangers::receive(socket, socket.uid(), &mut bytes, RecvFlags::DONTWAIT)?)
        });
        let received = received.await?;
        bytes.truncate(received.bytes);
        let truncated = received.truncated || received.descriptors.len() > MAX_FDS;
        Ok(Message { bytes, fds: received.descriptors, truncated })
    }
}

impl AsFd for Seqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// A listening SEQPACKET socket.
#[derive(Debug)]
pub struct Listener(AsyncFd<OwnedFd>);

impl Listener {
    /// Takes over a listening socket.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(descriptors::register(socket, Interest::READABLE)?))
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The kernel's error, such as `EMFILE`.
    pub async fn accept(&self) -> io::Result<Descriptor> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = |listener: &OwnedFd| Ok(rustix::net::accept_with(listener, flags)?);
        let socket = Descriptor::from(self.0.async_io(Interest::READABLE, accept).await?);
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        Ok(socket.charged_to(peer.uid.as_raw()))
    }
}

/// Makes a listening socket at `path`, and replaces what a dead daemon left there.
///
/// # Errors
/// The kernel's error; `AddrInUse` if a port has its socket there.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let (socket, other) = (socket()?, socket()?);
    // Only sockets of this type are the daemon's own.
    rustix::io::ioctl_fionbio(&other, true)?;
    let found = rustix::net::connect(&other, &SocketAddrUnix::new(path)?);
    if found == Err(Errno::PROTOTYPE) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Seqpacket, Seqpacket) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (a, b) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        (Seqpacket::new(a.into()).unwrap(), Seqpacket::new(b.into()).unwrap())
    }

    #[test]
    fn a_port_keeps_its_socket_and_what_is_left_of_a_daemon_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a-b.data.sock");
        let port = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(port);
        std::fs::remove_file(&path).unwrap();
        drop(listen(&path).unwrap());
        let _again = listen(&path).unwrap();
        socket().and_then(|s| Ok(rustix::net::connect(s, &SocketAddrUnix::new(&path)?)?)).unwrap();
    }

    #[tokio::test]
    async fn a_message_arrives_whole_with_its_descriptors() {
        let (a, b) = pair();
        a.send(b"hello", &[a.as_fd(), b.as_fd()]).await.unwrap();
        let got = b.receive(100).await.unwrap();
        assert_eq!((got.bytes.as_slice(), got.fds.len(), got.truncated), (&b"hello"[..], 2, false));
    }

    #[tokio::test]
    async fn what_is_too_long_or_has_too_many_descriptors_says_so() {
        let (a, b) = pair();
        a.send(b"hello", &[]).await.unwrap();
        assert!(b.receive(4).await.unwrap().truncated);
        let fds = vec![a.as_fd(); MAX_FDS];
        a.send(b"x", &fds).await.unwrap();
        assert!(!b.receive(4).await.unwrap().truncated);
        // The sender has a larger buffer, and sends twice as many descriptors as allowed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let many = vec![a.as_fd(); 2 * MAX_FDS];
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let flags = SendFlags::empty();
        rustix::net::sendmsg(&a, &[IoSlice::new(b"x")], &mut control, flags).unwrap();
        let got = b.receive(4).await.unwrap();
        assert!(got.truncated, "all of them came, for the closer to close");
        assert_eq!(got.fds.len(), 2 * MAX_FDS);
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_an_empty_message() {
        let (a, b) = pair();
        drop(a);
        assert!(b.receive(10).await.unwrap().bytes.is_empty());
    }
}
