//! The kinds of ports beside rings.
//!
//! ```text
//!   buffered/  taps, sockets, capture files                vxlan/   tunnels
//!   interface/ network interfaces of the host
//!   virtio/, card/  guests, over what they share: guest/
//! ```

pub mod buffered;
pub mod card;
pub mod guest;
pub mod interface;
mod kind;
pub mod virtio;
pub mod vxlan;

pub(crate) use self::kind::one;
pub use self::kind::{Kind, Place};

/// The settings of each kind as the data process gets them, by the kind's name in
/// [`topology::with_kinds`].
///
/// A card's driver is a client in a process of its own, so the data process gets rings, and no
/// card.
pub mod kinds {
    pub use super::buffered::dgram::DgramConfig as Dgram;
    pub use super::buffered::host::HostConfig as Host;
    pub use super::buffered::pcap::{PcapReadConfig as PcapRead, PcapWriteConfig as PcapWrite};
    pub use super::buffered::stream::StreamConfig as Stream;
    pub use super::buffered::tap::TapConfig as Tap;
    pub use super::interface::InterfaceConfig as Interface;
    pub use super::virtio::VhostUserConfig as VhostUser;
    pub use super::vxlan::VxlanConfig as Vxlan;
    pub use topology::{Card, NicConfig as VfioUser};
}

/// Never sent: see [`kinds`]. A port with these settings alone is vacant.
impl Kind for topology::Card {
    fn has_stranger(&self) -> bool {
        false
    }
}
