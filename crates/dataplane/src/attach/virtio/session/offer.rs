//! What a port offers.

use frame::Mac;
use nic::virtio::Features;

use crate::attach::virtio::message::CONFIG_SPACE;

/// What a port offers to its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The maximum number of pairs of queues.
    pub queue_pairs: u16,
    /// The address the guest is to use, if the port has one.
    pub mac: Option<Mac>,
    /// The MTU the guest is to use.
    pub mtu: u16,
    /// The link is up.
    pub link: bool,
}

impl Offer {
    /// The virtio features of this offer.
    #[must_use]
    pub fn features(&self) -> Features {
        let mut features = Features::OFFERED;
        features.set(Features::MAC, self.mac.is_some());
        features.set(Features::MQ, self.queue_pairs > 1);
        features
    }

    /// virtio-net's configuration space (virtio 1.2, 5.1.4): address, status, pairs of queues, MTU.
    pub(super) fn config(&self) -> [u8; CONFIG_SPACE] {
        let mut space = [0; CONFIG_SPACE];
        if let Some(mac) = self.mac {
            space[..6].copy_from_slice(&mac.octets());
        }
        space[6..8].copy_from_slice(&u16::from(self.link).to_le_bytes());
        space[8..10].copy_from_slice(&self.queue_pairs.to_le_bytes());
        space[10..12].copy_from_slice(&self.mtu.to_le_bytes());
        space
    }
}
