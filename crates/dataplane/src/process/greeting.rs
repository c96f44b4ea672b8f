//! The first answer to a supervisor, which may be of another version.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;

use super::Process;
use crate::control::{self, Answer, ChannelError};

impl Process {
    /// Says who this is. A supervisor of another version learns ours, is disconnected, and connects
    /// again to speak it. Until then it takes nothing from the one that is connected.
    pub(super) fn greet(&mut self, version: u32, from: BorrowedFd<'_>) -> Result<(), ChannelError> {
        let (switch, walls) = (self.switch.clone(), self.inside.walls.clone());
        let hello = Answer::Hello { version: control::VERSION, switch, walls };
        control::send(from, &hello, &[self.state_file.as_fd()])?;
        if version != control::VERSION {
            return Err(ChannelError::Closed);
        }
        self.supervisor = from.try_clone_to_owned().ok();
        self.behind = false;
        Ok(())
    }
}

/// How long a supervisor may leave answers unread before it is disconnected.
const PATIENCE: Duration = Duration::from_secs(2);

/// Accepts a connection from our own user or root.
pub(super) fn accept(listener: &OwnedFd, trusted: &[u32]) -> Option<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let connection = rustix::net::accept_with(listener, flags).ok()?;
    let peer = jail::peer::of(&connection).ok()?;
    sockopt::set_socket_timeout(&connection, sockopt::Timeout::Send, Some(PATIENCE)).ok()?;
    trusted.contains(&peer.uid).then_some(connection)
}
