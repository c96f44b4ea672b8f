//! Requests to the daemon at its attach socket, and its replies.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use frame::OffloadSet;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::RegionError;
use crate::attach::{Reply, Request, SOCKET, VERSION, op};
use crate::doorbell::Doorbell;
use crate::exchange::{self, ExchangeError, exchange};
use crate::queue::Memory;
use crate::region::Ends;

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
