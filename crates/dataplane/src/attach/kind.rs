//! What the data process does for each kind of port.

use std::sync::Arc;

use jail::strangers::Descriptor;
use shmem::budget::Account;
use turn::attach::{AttachError, Attached, null};
use turn::state::PortState;

/// The port that a kind is attached to.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The port's name.
    pub name: &'a str,
    /// The port's counters and cursors.
    pub state: &'a PortState,
    /// The account that the memory of the port's owner is charged to.
    pub account: &'a Arc<Account>,
    /// A predecessor has served the port.
    pub resume: bool,
}

/// What each kind of port provides for the settings that the data process gets.
pub trait Kind {
    /// Makes the port's halves. The default is for guests, whose front ends the process serves, and
    /// for tunnels, which need its table: the process makes their halves itself.
    ///
    /// # Errors
    /// [`AttachError`] when a descriptor is missing or of the wrong kind, or counters are missing.
    fn attach(&self, fds: Vec<Descriptor>, place: Place<'_>) -> Result<Attached, AttachError> {
        let _ = (fds, place);
        Ok(null::vacant())
    }

    /// True if a peer that is not trusted made the attachment's descriptors, or sends to them.
    fn has_stranger(&self) -> bool;

    /// True if the port's owner lends memory that workers read and write.
    fn lends_memory(&self) -> bool {
        false
    }

    /// The number of the descriptor that reports a hang-up of the peer.
    fn hangup_fd(&self) -> Option<usize> {
        None
    }

    /// True if other hosts are behind the port.
    fn is_tunnel(&self) -> bool {
        false
    }
}

/// The only one of these descriptors.
///
/// # Errors
/// [`AttachError::Descriptors`] when there are none or several.
pub(crate) fn one(fds: Vec<Descriptor>, expected: &'static str) -> Result<Descriptor, AttachError> {
    let one: Result<[Descriptor; 1], _> = fds.try_into();
    one.map(|[fd]| fd).map_err(|_| AttachError::Descriptors { expected })
}
