//! Network interfaces of the host, such as network cards.
//!
//! The supervisor opens what reaches an interface, in the interface's network namespace. This
//! process maps the rings of what it gets, waits and sends; it can neither bind a socket nor change
//! one. How frames come and go is the [`Engine`]'s.

mod config;
mod packet;
pub mod xdp;

use std::os::fd::OwnedFd;

use jail::strangers::Descriptor;
use turn::attach::{AttachError, Attached};
use turn::state::PortState;

pub use self::config::{Engine, InterfaceConfig, PacketRings, Umem, XdpRing};
use crate::attach::{Kind, Place};

/// The maximum number of queues of an interface.
pub const MAX_QUEUES: usize = 8;
/// Bytes of the largest frame: an IP packet with its Ethernet header and a tag.
const MAX_FRAME: usize = u16::MAX as usize + frame::ETHERNET_HEADER + 2 * frame::VLAN_TAG;

impl Kind for InterfaceConfig {
    fn attach(&self, fds: Vec<Descriptor>, place: Place<'_>) -> Result<Attached, AttachError> {
        let queues = fds.into_iter().map(Descriptor::into_ours).collect();
        attach(self, queues, place.state)
    }

    fn has_stranger(&self) -> bool {
        false
    }
}

/// Attaches an interface.
///
/// # Errors
/// [`AttachError`] when descriptors are of another kind, rings cannot be mapped, or counters are
/// missing.
pub fn attach(
    config: &InterfaceConfig,
    queues: Vec<OwnedFd>,
    state: &PortState,
) -> Result<Attached, AttachError> {
    if !(1..=MAX_QUEUES).contains(&usize::from(config.queues)) {
        return Err(AttachError::Descriptors { expected: "1 to 8 queues of an interface" });
    }
    match &config.engine {
        Engine::Packet(rings) => packet::attach(*rings, queues, state),
        Engine::Xdp(umem) => xdp::attach(umem, queues, state),
    }
}
