//! Ports that clients open by their names.

use dataplane::config::Attachment;

use super::{Open, Reach};

/// A port that waits for its client to come to the attach socket.
pub struct Ring;

impl Open for Ring {
    fn reach(&self) -> Reach<'_> {
        Reach::Switch
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Ring(_) | Attachment::Vacant)
    }
}
