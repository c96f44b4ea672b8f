//! Frames over a stream socket.

use std::os::fd::OwnedFd;

use dataplane::attach::buffered::stream::StreamConfig;
use dataplane::config::Attachment;
use topology::Stream;

use super::super::front_ends::Rights;
use super::{Open, Reach, Socket};
use crate::api::ApiError;

impl Open for Stream {
    fn reach(&self) -> Reach<'_> {
        self.socket().map_or(Reach::Switch, |socket| socket.reach())
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Stream(_) | Attachment::Vacant)
    }

    fn socket(&self) -> Option<Socket<'_>> {
        let Self { address, client } = self;
        Some(Socket { named: address.as_deref(), client: *client, rights: Rights::Refused })
    }

    fn connected(&self) -> Result<(Attachment, Option<OwnedFd>), ApiError> {
        Ok((StreamConfig {}.into(), None))
    }
}
