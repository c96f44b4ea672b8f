//! Virtual machines, by vhost-user.

use std::os::fd::OwnedFd;

use dataplane::attach::virtio::VhostUserConfig;
use dataplane::config::Attachment;
use topology::VhostUser;

use super::super::front_ends::Rights;
use super::{Open, Reach, Socket};
use crate::api::ApiError;

const _: () = assert!(VhostUser::MAX_QUEUES as usize == dataplane::state::RINGS);

impl Open for VhostUser {
    fn reach(&self) -> Reach<'_> {
        self.socket().map_or(Reach::Switch, |socket| socket.reach())
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::VhostUser(_) | Attachment::Vacant)
    }

    fn socket(&self) -> Option<Socket<'_>> {
        let Self { path, client, .. } = self;
        Some(Socket { named: path.as_deref(), client: *client, rights: Rights::Accepted })
    }

    fn connected(&self) -> Result<(Attachment, Option<OwnedFd>), ApiError> {
        Ok((VhostUserConfig { queue_pairs: self.queues }.into(), None))
    }
}
