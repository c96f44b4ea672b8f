//! What the ports of virtual machines share, whichever protocol their front end speaks.

pub mod bells;
pub mod kept;
pub mod memory;
pub mod moderation;
pub mod vectors;

use std::os::fd::BorrowedFd;

use port::Nanos;

use self::kept::Kept;
use super::{AttachError, Attached};

/// What the control thread does with a front end, whichever protocol it speaks.
pub trait FrontEnd {
    /// Where the control thread waits for it, and whether for room to send; `None` once it is
    /// disconnected, or if a worker reads its socket.
    fn waits(&self) -> Option<(BorrowedFd<'_>, bool)> {
        None
    }

    /// Makes halves of what is to run; no others may use the same state memory.
    ///
    /// # Errors
    /// [`AttachError`] when the state memory has no counters for them, or no room.
    fn halves(&mut self, now: Nanos) -> Result<Attached, AttachError>;

    /// True if the port has halves in which something runs.
    fn is_live(&self) -> bool;

    /// Disconnects it. The supervisor, which has a duplicate of the socket, sees it hang up.
    fn end(&mut self);

    /// No worker serves its port any more: disconnects it if only a worker could answer.
    fn lost_worker(&mut self) {}

    /// What a successor of this process needs to continue the session.
    fn to_keep(&self) -> Kept;

    /// What the keeper has of that.
    fn kept(&mut self) -> &mut Kept;

    /// What is to be said of it and was not said before: a reason, and a sentence.
    fn news(&mut self) -> Vec<(&'static str, String)>;
}
