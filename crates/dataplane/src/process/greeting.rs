//! The first answer to a supervisor, which may be of another version.

use std::os::fd::{AsFd, BorrowedFd};

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
