//! Requests to the daemon at its attach socket, and its replies.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use frame::OffloadSet;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::RegionError;
use crate::attach::{Reply, Request, SOCKET, VERSION, op, reply};
use crate::doorbell::Doorbell;
use crate::exchange::{self, ExchangeError, exchange};
use crate::queue::Memory;
use crate::region::Ends;
use crate::trusted::{self, Joining};

/// The reason why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is not a port's.
    #[error("`{0}` is not a port's name; write switch:port, for example vale0:p1")]
    Name(String),
    /// No daemon listens on the socket.
    #[error("No daemon listens on {}; start `toklat daemon`, or set TOKLAT_DIR", socket.display())]
    NoDaemon {
        /// The socket that was tried.
        socket: PathBuf,
        /// The error of the kernel.
        #[source]
        source: Errno,
    },
    /// Permission for the socket is missing.
    #[error(
        "Not allowed to use {}; become a member of the group that it belongs to (usermod -aG toklat USER, then log in \
         again), or run this as root", socket.display()
    )]
    Denied {
        /// The path of the socket.
        socket: PathBuf,
    },
    /// The daemon refused the request.
    #[error("The daemon refused to open {name}: {message}")]
    Refused {
        /// The port.
        name: String,
        /// An errno.
        errno: i32,
        /// The reason, and the remedy.
        message: String,
    },
    /// The daemon's reply is not valid.
    #[error("The daemon's answer is malformed ({0}); is it of the same version?")]
    Malformed(&'static str),
    /// The region has no room, or cannot be used.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The region has no memory file.
    #[error("A private region cannot be lent to the daemon; make it with Region::create")]
    PrivateRegion,
    /// The port was not opened by name by this process.
    #[error("The port was not opened by its name in this process, and cannot be opened again")]
    NotOpenedHere,
    /// The process cannot be a part of the port's switch.
    #[error("{name} is a port of a trusted switch: {reason}")]
    Trusted {
        /// The port.
        name: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The operating system refused something.
    #[error("The conversation with the daemon failed")]
    Io(#[source] Errno),
}

/// The data that is needed to attach the port again.
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
        let (answer, fds) = ask(&self.directory, &request, &[file])?;
        let Ok([token]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(OpenError::Malformed("number of descriptors"));
        };
        let offloads = OffloadSet::from_bits(answer.offloads);
        let max_frame = answer.max_frame as usize;
        let doorbell = match answer.flags & reply::TRUSTED != 0 {
            false => Doorbell::Token(token),
            true => self.join(memory, answer.port, token)?,
        };
        Ok(Attached { doorbell, max_frame, offloads })
    }

    /// Makes this process a part of the port's switch, which is trusted.
    fn join(&self, memory: &Memory, port: u32, token: OwnedFd) -> Result<Doorbell, OpenError> {
        let file = memory.file.as_ref().ok_or(OpenError::PrivateRegion)?;
        let file = rustix::fs::fstat(file.as_fd()).map_err(OpenError::Io)?.st_ino;
        let port = u16::try_from(port).map_err(|_| OpenError::Malformed("port number"))?;
        let (directory, name, mapping) = (&self.directory, &self.name, &memory.mapping);
        let turn = trusted::join(&Joining { directory, name, port, file, mapping });
        let refused = |reason| OpenError::Trusted { name: name.clone(), reason };
        let turn = turn.map_err(refused)?;
        // The first turn asks for the first kick.
        turn.forward().map_err(OpenError::Io)?;
        Ok(Doorbell::Trusted { token, turn })
    }
}

/// How long the daemon may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Sends a request with its descriptors; returns the reply with its own.
pub(crate) fn ask(
    directory: &Path,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> Result<(Reply, Vec<OwnedFd>), OpenError> {
    ask_on(&connect(directory)?, request, fds)
}

/// Like [`ask`], on an existing connection.
pub(crate) fn ask_on(
    socket: &OwnedFd,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> Result<(Reply, Vec<OwnedFd>), OpenError> {
    let exchanged = exchange(socket, request.as_bytes(), fds, ANSWER_TIME);
    let (reply, fds): (Reply, _) = exchanged.map_err(|error| match error {
        ExchangeError::Io(error) => OpenError::Io(error),
        ExchangeError::Length => OpenError::Malformed("length"),
    })?;
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

pub(crate) fn connect(directory: &Path) -> Result<OwnedFd, OpenError> {
    let socket = directory.join(SOCKET);
    exchange::connect(&socket).map_err(|source| match source {
        Errno::ACCESS | Errno::PERM => OpenError::Denied { socket },
        Errno::MFILE | Errno::NFILE => OpenError::Io(source),
        source => OpenError::NoDaemon { socket, source },
    })
}
