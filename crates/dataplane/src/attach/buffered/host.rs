//! The host's network stack behind one of its interfaces: a [`tap`], to which programs in
//! the kernel redirect what the host sends on the interface, and from which they hand frames to the
//! interface's ingress.
//!
//! The programs stay attached while any process has their links, or the array that filters jump
//! into. This process holds them as the supervisor does, so the port goes on without the
//! supervisor, and the host has its interface back when both are gone.

use jail::strangers::Descriptor;
use serde::{Deserialize, Serialize};
use turn::attach::{AttachError, Attached};

use super::tap;
use crate::attach::{Kind, Place};

/// The host's network stack behind an interface. Descriptors: the queue of a tap, opened with
/// IFF_VNET_HDR and non-blocking, and the programs' links or array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// The interface's name, kept for the supervisor.
    pub ifname: String,
    /// The interface's network namespace, kept for the supervisor.
    #[serde(default)]
    pub netns: Option<String>,
    /// The interface's number in its namespace, kept for the supervisor.
    pub index: u32,
    /// The tap's name, kept for the supervisor.
    pub tap: String,
    /// The tap's number, kept for the supervisor.
    pub tap_index: u32,
    /// The kernel accepts UDP segmentation requests (since Linux 6.2).
    pub uso: bool,
    /// The programs are attached by clsact filters, not by links; kept for the supervisor.
    #[serde(default)]
    pub clsact: bool,
}

impl Kind for HostConfig {
    fn attach(&self, fds: Vec<Descriptor>, place: Place<'_>) -> Result<Attached, AttachError> {
        let mut fds = fds.into_iter().map(Descriptor::into_ours);
        let queue = fds.by_ref().take(1).collect();
        tap::attach_holding(queue, fds.collect(), self.uso, place.state)
    }

    fn has_stranger(&self) -> bool {
        false
    }
}
