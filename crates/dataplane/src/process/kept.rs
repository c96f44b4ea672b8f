//! The persistent state of front ends' sessions, which the supervisor keeps for a successor of this
//! process.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use jail::strangers::Descriptor;
use rustix::io::Errno;

use super::Process;
use crate::attach::guest::FrontEnd;
use crate::attach::guest::kept::Kept;
use crate::config::PortId;
use crate::control::{self, Answer, ChannelError};

/// The persistent state of ports that are about to be added again.
pub(super) type Restored = HashMap<PortId, Kept>;

impl Process {
    /// Ends once its frames are delivered. A successor goes on with what is kept.
    pub(super) fn stop(&mut self) -> Result<Answer, String> {
        self.stopping = true;
        self.drain();
        Ok(Answer::Done)
    }

    /// Sends changes of a session's state to the supervisor, so that they outlive this process.
    pub(super) fn keep(&mut self, id: PortId, guest: &mut dyn FrontEnd) {
        let Some(supervisor) = self.supervisor.as_ref().filter(|_| !self.behind) else { return };
        let now = guest.to_keep();
        match report_changes(supervisor.as_fd(), id, guest.kept(), &now) {
            Ok(()) => *guest.kept() = now,
            // The supervisor is slow or stopped. No other port waits for it.
            Err(ChannelError::Io(Errno::AGAIN | Errno::TOOMANYREFS)) => self.behind = true,
            // The connection is given up. The next supervisor asks for the whole state.
            Err(_) => self.supervisor = None,
        }
    }

    /// Sends a supervisor the whole state.
    pub(super) fn list_kept(&mut self, to: BorrowedFd<'_>) -> Result<(), ChannelError> {
        let records = self.ports.iter_mut().enumerate();
        for (id, record) in records.filter_map(|(id, record)| Some((id, record.as_mut()?))) {
            if let Some(guest) = &mut record.guest {
                let guest = guest.front_end_mut();
                let kept = guest.to_keep();
                report_changes(to, id as PortId, &Kept::new(), &kept)?;
                *guest.kept() = kept;
            }
        }
        Ok(())
    }

    /// Accepts a part of the state that a port's predecessor has kept.
    pub(super) fn restore(
        &mut self,
        id: PortId,
        uid: u32,
        key: String,
        value: serde_json::Value,
        mut descriptors: Vec<Descriptor>,
    ) -> Result<Answer, String> {
        let kept = self.restored.entry(id).or_default();
        let descriptor = descriptors.pop().map(|descriptor| descriptor.charged_to(uid));
        kept.insert(key, (value, descriptor.map(Arc::new)));
        Ok(Answer::Done)
    }
}

/// Tells the supervisor which parts of a port's state are new, changed, or not needed any more.
fn report_changes(
    to: BorrowedFd<'_>,
    id: PortId,
    old: &Kept,
    new: &Kept,
) -> Result<(), ChannelError> {
    let same = |a: &Option<Arc<Descriptor>>, b: &Option<Arc<Descriptor>>| match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    let changed = new.iter().filter(|(key, (value, fd))| {
        old.get(*key).is_none_or(|(old_value, old_fd)| old_value != value || !same(old_fd, fd))
    });
    // "session", which names the others, sorts after them.
    for (key, (value, fd)) in changed {
        let uid = fd.as_ref().map_or(0, |fd| fd.uid());
        let keep = Answer::Keep { id, uid, key: key.clone(), value: value.clone() };
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        control::send(to, &keep, &fds)?;
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        control::send(to, &Answer::Forget { id, key: key.clone() }, &[])?;
    }
    Ok(())
}
