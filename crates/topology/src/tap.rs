//! Tap interfaces.

use serde::{Deserialize, Serialize};

use crate::check::{check_ifname, check_range};
use crate::place::in_namespace;
use crate::{Claim, Invalid, Kind, Policy};

/// A tap interface that the daemon creates (needs CAP_NET_ADMIN).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// The interface's name. On the command line, the default is the port's name.
    #[cfg_attr(feature = "clap", arg(id = "tap", long = "tap", value_name = "IFNAME"))]
    #[cfg_attr(feature = "clap", arg(num_args = 0..=1, default_missing_value = ""))]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 15)))]
    pub ifname: String,
    /// The interface's network namespace: a name in /run/netns, a process id or an absolute path.
    /// Default: the daemon's.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub netns: Option<String>,
    /// The number of queues, 1 to 8.
    #[serde(default = "one_queue")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", default_value_t = one_queue()))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u16).range(1..=8)))]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = Tap::MAX_QUEUES)))]
    pub queues: u16,
}

const fn one_queue() -> u16 {
    1
}

impl Tap {
    /// The maximum number of queues.
    pub const MAX_QUEUES: u16 = 8;

    /// One of this name, in the daemon's namespace, with one queue.
    #[must_use]
    pub fn called(ifname: &str) -> Self {
        Self { ifname: ifname.into(), netns: None, queues: one_queue() }
    }
}

impl Kind for Tap {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        check_range(port, "queues", self.queues.into(), 1, Self::MAX_QUEUES.into())?;
        check_ifname(port, &self.ifname, "use up to 15 letters and digits, such as tap0")
    }

    fn claim(&self) -> Option<Claim> {
        let place = in_namespace(self.netns.as_ref());
        let what = format!("Interface {}{place}", self.ifname);
        Some(Claim { what, remedy: "give each port a tap of its own" })
    }

    fn describe(&self) -> String {
        format!("tap {}{}", self.ifname, in_namespace(self.netns.as_ref()))
    }

    fn complete(&mut self, port: &str) -> Result<(), Invalid> {
        if self.ifname.is_empty() {
            port.clone_into(&mut self.ifname);
        }
        Ok(())
    }
}
