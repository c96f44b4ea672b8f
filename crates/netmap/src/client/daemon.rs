//! Asks the daemon, over one connection per question, so that no descriptor is kept that a program
//! could close.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use netring::attach::{SOCKET, runtime_directory};
use netring::exchange::{self, ExchangeError, exchange};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::wire::{Answer, Ask, VERSION, kind};

/// Time limit for the daemon's answer: it may have to start a switch.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// Asks the daemon. At most two descriptors go with the question.
///
/// # Errors
/// `ENXIO` if there is no daemon, `EACCES` if access is denied, otherwise the daemon's answer.
pub fn ask(question: &Ask, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), Errno> {
    let socket = connect()?;
    let exchanged = exchange(socket, question.as_bytes(), fds, ANSWER_TIME);
    let (answer, fds): (Answer, _) = exchanged.map_err(|error| match error {
        ExchangeError::Io(_) => Errno::NXIO,
        ExchangeError::Length => Errno::PROTO,
    })?;
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
    exchange::connect(&runtime_directory().join(SOCKET)).map_err(|error| match error {
        Errno::ACCESS | Errno::PERM => Errno::ACCESS,
        Errno::MFILE | Errno::NFILE => error,
        _ => Errno::NXIO,
    })
}
