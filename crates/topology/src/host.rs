//! The host's network stack behind one of its interfaces.

use serde::{Deserialize, Serialize};

use crate::check::check_ifname;
use crate::place::in_namespace;
use crate::{Claim, Invalid, Kind, Policy};

/// The host's network stack behind one of its interfaces: what the host sends there enters the
/// switch (needs CAP_NET_ADMIN and CAP_BPF).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The interface's name. The port takes the place of its wire: give the wire a port by
    /// --interface.
    #[cfg_attr(feature = "clap", arg(id = "host", long = "host", value_name = "IFNAME"))]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 15)))]
    pub ifname: String,
    /// The interface's network namespace: a name in /run/netns, a process id or an absolute path.
    /// Default: the daemon's.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub netns: Option<String>,
}

impl Host {
    /// The stack behind the interface of this name, in the daemon's namespace.
    #[must_use]
    pub fn behind(ifname: &str) -> Self {
        Self { ifname: ifname.into(), netns: None }
    }
}

impl Kind for Host {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        check_ifname(port, &self.ifname, "name one that `ip link` shows, such as eth0")
    }

    fn claim(&self) -> Option<Claim> {
        let place = in_namespace(self.netns.as_ref());
        let what = format!("The host's stack behind {}{place}", self.ifname);
        Some(Claim { what, remedy: "only one port can be the host's end of an interface" })
    }

    fn describe(&self) -> String {
        format!("host behind {}{}", self.ifname, in_namespace(self.netns.as_ref()))
    }
}
