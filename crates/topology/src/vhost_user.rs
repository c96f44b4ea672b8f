//! Virtual machines, by vhost-user.

use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::place::{self, make_absolute};
use crate::{Claim, Invalid, Kind, Policy};

/// A virtual machine's network card, by the vhost-user protocol (QEMU, Cloud Hypervisor, DPDK).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VhostUser {
    /// The socket that the front end connects to. Default: SWITCH-PORT.sock in the runtime
    /// directory.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(id = "vhost_user", long = "vhost-user"))]
    #[cfg_attr(feature = "clap", arg(value_name = "SOCKET", num_args = 0..=1))]
    #[cfg_attr(feature = "clap", arg(value_hint = clap::ValueHint::AnyPath))]
    pub path: Option<String>,
    /// Connect to a front end that listens (QEMU: server=on), instead of listening for it.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long))]
    pub client: bool,
    /// Maximum number of queue pairs, 1 to 16. The front end chooses how many it uses.
    #[serde(default = "all_queues")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", default_value_t = all_queues()))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u16).range(1..=16)))]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = VhostUser::MAX_QUEUES)))]
    pub queues: u16,
}

const fn all_queues() -> u16 {
    VhostUser::MAX_QUEUES
}

impl VhostUser {
    /// The maximum number of queue pairs.
    pub const MAX_QUEUES: u16 = 16;
}

impl Kind for VhostUser {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        check_range(port, "queues", self.queues.into(), 1, Self::MAX_QUEUES.into())?;
        place::check_named(port, self.path.as_ref())
    }

    fn claim(&self) -> Option<Claim> {
        self.path.as_ref().filter(|_| !self.client).map(|path| Claim::socket(path))
    }

    fn describe(&self) -> String {
        place::describe("vhost-user", self.path.as_ref(), self.client)
    }

    fn has_default_socket(&self) -> bool {
        self.path.is_none() && !self.client
    }

    fn is_guest(&self) -> bool {
        true
    }

    fn complete(&mut self, _: &str) -> Result<(), Invalid> {
        self.path.as_mut().map_or(Ok(()), make_absolute)
    }
}
