//! Requests to the daemon at its attach socket, and its replies.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use frame::OffloadSet;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::RegionError;
use crate::attach::{Reply, Request, SOCKET, VERSION, op};
use crate::doorbell::Doorbell;
use crate::queue::Memory;
use crate::region::Ends;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is not a port's.
    #[error("`{0}` is not a port's name; write switch:port, for example vale0:p1")]
    Name(String),
    /// No daemon listens on the socket.
    #[error("No daemon listens on {}; start `toklat daemon`, or set TOKLAT_DIR", socket.display())]
    NoDaemon {
        /// Where it was looked for.
        socket: PathBuf,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// Permission for the socket is missing.
    #[error(
        "Not allowed to use {}; become a member of the group that it belongs to (usermod -aG toklat USER, then log in \
         again), or run this as root", socket.display()
    )]
    Denied {
        /// Where it is.
        socket: PathBuf,
    },
    /// The daemon said no.
    #[error("The daemon refused to open {name}: {message}")]
    Refused {
        /// The port.
        name: String,
        /// An errno.
        errno: i32,
        /// Why, and what to do.
        message: String,
    },
    /// The daemon's reply is not valid.
    #[error("The daemon's answer is malformed ({0}); is it of the same version?")]
    Malformed(&'static str),
    /// The region is missing something.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The region has no memory file.
    #[error("A private region cannot be lent to the daemon; make it with Region::create")]
    PrivateRegion,
    /// The port was not opened by name by this process.
    #[error("The port was not opened by its name in this process, and cannot be opened again")]
    NotOpenedHere,
    /// The operating system refused something.
    #[error("The conversation with the daemon failed")]
    Io(#[source] Errno),
}

/// What is needed to attach again.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) directory: PathBuf,
    pub(crate) name: String,
    pub(crate) flags: u32,
    pub(crate) offloads: OffloadSet,
}

/// What the daemon has granted for a port's rings.
pub(crate) struct Attached {
    pub(crate) doorbell: Doorbell,
    /// Bytes of the largest frame.
    pub(crate) max_frame: usize,
    pub(crate) offloads: OffloadSet,
}

impl Opened {
    /// Lends the rings to the daemon.
    pub(crate) fn attach(&self, memory: &Memory, ends: Ends) -> Result<Attached, OpenError> {
        let request = Request {
            flags: self.flags,
            geometry: memory.geometry,
            buf_usable: memory.usable,
            tx: ends.tx,
            rx: ends.rx,
            offloads: self.offloads.bits().into(),
            ..Request::new(op::OPEN, &self.name)
        };
        let region = memory.region.as_ref().ok_or(OpenError::NotOpenedHere)?;
        let file = region.file().ok_or(OpenError::PrivateRegion)?;
        let (reply, fds) = ask(&self.directory, &request, &[file])?;
        let Ok([token]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(OpenError::Malformed("number of descriptors"));
        };
        let offloads = OffloadSet::from_bits(reply.offloads as u8);
        let max_frame = reply.max_frame as usize;
        Ok(Attached { doorbell: Doorbell::Token(token), max_frame, offloads })
    }
}

/// How long the daemon may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Most descriptors of a reply.
const MOST_FDS: usize = 4;

/// Sends a request with its descriptors; returns the reply with its own.
pub(crate) fn ask(
    directory: &Path,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> Result<(Reply, Vec<OwnedFd>), OpenError> {
    ask_on(&connect(&directory.join(SOCKET))?, request, fds)
}

/// As [`ask`], on an existing connection.
pub(crate) fn ask_on(
    socket: &OwnedFd,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> Result<(Reply, Vec<OwnedFd>), OpenError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let bytes = [rustix::io::IoSlice::new(request.as_bytes())];
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)
    });
    match sent {
        // A daemon without room for the connection replies before it is asked.
        Ok(_) | Err(Errno::PIPE) => (),
        Err(error) => return Err(OpenError::Io(error)),
    }
    let (reply, fds) = receive_reply(socket)?;
    if reply.version != VERSION {
        return Err(OpenError::Malformed("version"));
    }
    if reply.status != 0 {
        let (name, message) = (request.name().unwrap_or_default(), reply.message());
        let (name, message) = (name.to_owned(), message.to_owned());
        return Err(OpenError::Refused { name, errno: reply.status, message });
    }
    Ok((reply, fds))
}

pub(crate) fn connect(path: &Path) -> Result<OwnedFd, OpenError> {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .map_err(OpenError::Io)?;
    let failed = |source| match source {
        Errno::ACCESS | Errno::PERM => OpenError::Denied { socket: path.to_owned() },
        source => OpenError::NoDaemon { socket: path.to_owned(), source },
    };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(failed)?;
    Ok(socket)
}

fn receive_reply(socket: &OwnedFd) -> Result<(Reply, Vec<OwnedFd>), OpenError> {
    let mut bytes = [0; size_of::<Reply>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [rustix::io::IoSliceMut::new(&mut bytes)];
    let until = Instant::now() + ANSWER_TIME;
    let got = loop {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(left))
            .map_err(OpenError::Io)?;
        let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        match got {
            // A signal of the program's own is no answer.
            Err(Errno::INTR) if Instant::now() < until => {}
            got => break got.map_err(OpenError::Io)?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    if got.bytes != bytes.len() || got.flags.contains(ReturnFlags::TRUNC) {
        return Err(OpenError::Malformed("length"));
    }
    let reply = Reply::read_from_bytes(&bytes).map_err(|_| OpenError::Malformed("length"))?;
    Ok((reply, fds))
}
