//! Ports that are attached to nothing.

use dataplane::config::Attachment;

use super::{Future, Open, Opened, Opening, Reach};

/// Needs nothing.
pub struct Null;

impl Open for Null {
    fn reach(&self) -> Reach<'_> {
        Reach::Switch
    }

    fn open<'a>(&'a self, _: Opening<'a>) -> Future<'a, Opened> {
        Box::pin(std::future::ready(Ok(Opened::ours(Attachment::Null, Vec::new()))))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Null)
    }
}
