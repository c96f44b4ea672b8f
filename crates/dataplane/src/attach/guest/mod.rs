//! What the ports of virtual machines share, whichever protocol their front end speaks.

pub mod bells;
pub mod kept;
pub mod memory;
pub mod moderation;
pub mod vectors;

use std::os::fd::BorrowedFd;

use port::Nanos;
use turn::attach::{AttachError, Attached};

use self::kept::Kept;

/// What the control thread does with a front end, whichever protocol it speaks.
pub trait FrontEnd {
    /// The socket that the control thread polls, and whether to poll for room to send, too. `None`
    /// once the front end is disconnected, or if a worker reads its socket.
    fn waits(&self) -> Option<(BorrowedFd<'_>, bool)> {
        None
    }

    /// Makes the halves of the queues that are to run. No other halves may use the same state
    /// memory.
    ///
    /// # Errors
    /// [`AttachError`] when the state memory has no counters for them, or no room.
    fn halves(&mut self, now: Nanos) -> Result<Attached, AttachError>;

    /// True if the port's halves have a running queue.
    fn is_live(&self) -> bool;

    /// Disconnects the front end. The supervisor holds a duplicate of the socket and sees the
    /// hang-up.
    fn end(&mut self);

    /// Called when no worker serves the port any more. Disconnects the front end if only a worker
    /// could answer it.
    fn lost_worker(&mut self) {}

    /// The session's state, as a successor of this process needs it.
    fn to_keep(&self) -> Kept;

    /// The parts of the session that the supervisor keeps.
    fn kept(&mut self) -> &mut Kept;

    /// Faults that were not reported yet: a reason and a sentence each.
    fn new_faults(&mut self) -> Vec<(&'static str, String)>;
}
