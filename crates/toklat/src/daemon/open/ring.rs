//! Ports that clients open by their names.

use dataplane::config::Attachment;

use super::Open;

/// Waits for its client, which comes to the attach socket.
pub struct Ring;

impl Open for Ring {
    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Ring(_) | Attachment::Vacant)
    }
}
