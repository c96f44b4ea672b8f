//! How the two sides of a port wake each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::PortError;
use crate::trusted::Forward;

/// Where to send kicks, and where kicks arrive.
#[derive(Debug)]
pub(crate) enum Doorbell {
    /// A byte on the token, in both directions.
    Token(OwnedFd),
    /// An eventfd in each direction.
    Pipe {
        /// The eventfd that wakes this side.
        own: OwnedFd,
        /// The eventfd that wakes the other end.
        peer: OwnedFd,
        /// Keeps this end open at the daemon, if there is one.
        token: Option<OwnedFd>,
    },
    /// A byte on the token wakes us. Kicked, the other side is this thread, for a turn.
    Trusted {
        /// Where we are woken.
        token: OwnedFd,
        /// The other side.
        turn: Arc<dyn Forward>,
    },
    /// The other side is in this process and needs no waking.
    Inline(&'static OwnedFd),
}

impl Doorbell {
    /// For a port whose switch is in the same process. The descriptor never becomes ready.
    pub(crate) fn inline() -> Result<Self, Errno> {
        static SILENT: OnceLock<OwnedFd> = OnceLock::new();
        if let Some(silent) = SILENT.get() {
            return Ok(Self::Inline(silent));
        }
        let made = new_eventfd()?;
        Ok(Self::Inline(SILENT.get_or_init(|| made)))
    }

    /// For an end of a pipe. Makes its descriptors non-blocking.
    pub(crate) fn pipe(own: OwnedFd, peer: OwnedFd, token: Option<OwnedFd>) -> Result<Self, Errno> {
        for fd in [&own, &peer] {
            rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        }
        Ok(Self::Pipe { own, peer, token })
    }

    /// Gives other numbers to the doorbell's descriptors.
    pub(crate) fn map_descriptors(self, mut to: impl FnMut(OwnedFd) -> OwnedFd) -> Self {
        match self {
            Self::Token(token) => Self::Token(to(token)),
            Self::Pipe { own, peer, token } => {
                Self::Pipe { own: to(own), peer: to(peer), token: token.map(to) }
            }
            Self::Trusted { token, turn } => Self::Trusted { token: to(token), turn },
            Self::Inline(silent) => Self::Inline(silent),
        }
    }

    /// Wakes the other side.
    #[cold]
    pub(crate) fn kick(&self) -> Result<(), PortError> {
        let done = match self {
            Self::Token(token) => {
                rustix::net::send(token, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
            Self::Pipe { peer, .. } => rustix::io::write(peer, &1_u64.to_ne_bytes()),
            Self::Trusted { turn, .. } => return turn.forward().map_err(gone_or_io),
            Self::Inline(_) => Ok(0),
        };
        match done {
            // If the token is full, a kick is already pending.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(PortError::Gone),
            Err(errno) => Err(PortError::Io(errno)),
        }
    }

    /// Reads the kicks that have arrived.
    pub(crate) fn drain(&self) -> Result<(), PortError> {
        let mut bytes = [0; 64];
        let done = match self {
            Self::Token(token) | Self::Trusted { token, .. } => loop {
                match rustix::net::recv(token, &mut bytes[..], RecvFlags::DONTWAIT) {
                    Ok((_, 0)) => return Err(PortError::Gone),
                    Ok((_, 64)) => {}
                    other => break other.map(|(_, len)| len),
                }
            },
            Self::Pipe { own, .. } => rustix::io::read(own, &mut bytes[..8]),
            Self::Inline(_) => Ok(0),
        };
        match done {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::CONNRESET) => Err(PortError::Gone),
            Err(errno) => Err(PortError::Io(errno)),
        }
    }

    /// Sleeps until the other side kicks; false after a timeout or a signal.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> Result<bool, PortError> {
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        let fd = self.as_fd();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(PortError::Io(errno)),
        }
    }
}

fn gone_or_io(errno: Errno) -> PortError {
    if errno == Errno::NXIO { PortError::Gone } else { PortError::Io(errno) }
}

/// A non-blocking eventfd.
pub(crate) fn new_eventfd() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Token(token) | Self::Trusted { token, .. } => token.as_fd(),
            Self::Pipe { own, .. } => own.as_fd(),
            Self::Inline(silent) => silent.as_fd(),
        }
    }
}
