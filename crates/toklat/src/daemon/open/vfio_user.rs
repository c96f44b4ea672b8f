//! Emulated network cards, by vfio-user.

use std::io;
use std::os::fd::OwnedFd;

use dataplane::config::{Attachment, Doorbell};
use shmem::{Memfd, Pages};
use topology::VfioUser;

use super::super::front_ends::Rights;
use super::super::system;
use super::{Open, Reach, Socket};
use crate::api::ApiError;

/// Bytes of the e1000 family's registers.
const REGISTERS: usize = 128 << 10;

impl Open for VfioUser {
    fn reach(&self) -> Reach<'_> {
        self.socket().map_or(Reach::Switch, |socket| socket.reach())
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::VfioUser(_) | Attachment::Vacant)
    }

    fn socket(&self) -> Option<Socket<'_>> {
        Some(Socket { named: self.path.as_deref(), client: false, rights: Rights::Accepted })
    }

    /// With shared doorbells, the attachment includes a memory file for them.
    fn connected(&self) -> Result<(Attachment, Option<OwnedFd>), ApiError> {
        let attachment = Attachment::VfioUser(self.nic);
        if self.nic.doorbell == Doorbell::Trap {
            return Ok((attachment, None));
        }
        let file = Memfd::create("toklat-doorbells", REGISTERS, Pages::Small);
        let failed = |e| system("Cannot make memory for doorbells", io::Error::other(e));
        Ok((attachment, Some(file.map_err(failed)?.into_fd())))
    }
}
