//! The settings of a switch and of each kind of port, written once.
//!
//! The topology file, the control API, and most of the messages to a data process consist of the
//! same types. Each kind of port is a struct in its own file, with the settings as fields. The
//! fields' documentation appears in the command line's help, the API's schema and the manual
//! (features `clap` and `schemars`). [`Kind`] has the other properties of a kind.
//! `docs/adding-a-port-kind.md` describes how to add a kind. What holds for ports of any kind are
//! [`rules`].

pub mod bytes;
mod card;
mod check;
mod evpn;
#[cfg(feature = "clap")]
pub mod flags;
mod group;
mod guest;
mod kind;
mod link_spec;
mod nic;
mod place;
mod quota;
pub mod ranges;
pub mod rules;
#[cfg(feature = "schemars")]
pub mod schema;
mod sflow;
mod spec;
mod switch;
pub mod units;
pub mod users;

mod dgram;
mod host;
mod interface;
mod pcap_read;
mod pcap_write;
mod stream;
mod tap;
mod vfio_user;
mod vhost_user;
mod vxlan;

pub use fabric::{Interrupts, LinkStats, Origin, Rules as Policy, VlanMode};

pub use self::bytes::{NoBytes, parse_bytes};
pub use self::card::{Card, PCI_ADDRESS};
pub use self::check::{
    MAX_WORKERS, PORT_NAME, PORT_PATTERN, SWITCH_NAME, SWITCH_PATTERN, check, check_claims,
    check_each, check_name, check_owner, check_port, check_switch,
};
pub use self::dgram::Dgram;
pub use self::evpn::{Evpn, EvpnBfd, EvpnNeighbor};
pub use self::group::{Group, Table, hidden_rules};
pub use self::guest::{GuestSpec, MAX_GUESTS, MAX_THREADS, Restart};
pub use self::host::Host;
pub use self::interface::{Interface, InterfaceEngine};
pub use self::kind::{Claim, Kind, PortKind};
pub use self::link_spec::{LinkSpec, LinkWord, check_links, link_words};
pub use self::nic::{Combine, Doorbell, NicConfig, NicModel};
pub use self::pcap_read::PcapRead;
pub use self::pcap_write::PcapWrite;
pub use self::place::Place;
pub use self::quota::{Limit, NoLimit, Quota, Quotas};
pub use self::sflow::Collector;
pub use self::spec::{PortSpec, SwitchSpec, Topology};
pub use self::stream::Stream;
pub use self::switch::{Idle, SwitchConfig, WorkerConfig};
pub use self::tap::Tap;
pub use self::vfio_user::VfioUser;
pub use self::vhost_user::VhostUser;
pub use self::vxlan::{VlanSegment, Vxlan};

/// An invalid setting, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; {remedy}")]
pub struct Invalid {
    /// What is wrong, with the value.
    pub reason: String,
    /// What to do next.
    pub remedy: String,
}

impl Invalid {
    /// Such a setting.
    #[must_use]
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}
