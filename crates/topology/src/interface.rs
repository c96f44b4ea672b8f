//! Network interfaces of the host.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::check::{check_ifname, check_range};
use crate::place::in_namespace;
use crate::{Claim, Invalid, Kind, Policy};

/// A network interface of the host, such as a network card (the daemon needs CAP_NET_RAW).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// Its name; on the command line, the port's if it is left out.
    #[cfg_attr(feature = "clap", arg(id = "interface", long = "interface", value_name = "IFNAME"))]
    #[cfg_attr(feature = "clap", arg(num_args = 0..=1, default_missing_value = ""))]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 15)))]
    pub ifname: String,
    /// The network namespace it is in: a name in /run/netns, a process id or an absolute path.
    /// Without, the daemon's.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub netns: Option<String>,
    /// How many queues share its frames, 1 to 8.
    #[serde(default = "one_queue")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", default_value_t = one_queue()))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u16).range(1..=8)))]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = Interface::MAX_QUEUES)))]
    pub queues: u16,
    /// How frames come and go: xdp (AF_XDP, all receive queues), packet (packet sockets, which
    /// carry offloads), or auto, which takes xdp where the card has zero-copy.
    #[serde(default)]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "auto|xdp|packet", default_value = "auto")
    )]
    pub engine: InterfaceEngine,
}

/// How frames come from an interface and go to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InterfaceEngine {
    /// AF_XDP where the card has zero-copy, packet sockets elsewhere.
    #[default]
    Auto,
    /// AF_XDP sockets.
    Xdp,
    /// Packet sockets.
    Packet,
}

impl FromStr for InterfaceEngine {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "xdp" => Ok(Self::Xdp),
            "packet" => Ok(Self::Packet),
            _ => Err("say auto, xdp or packet"),
        }
    }
}

const fn one_queue() -> u16 {
    1
}

impl Interface {
    /// Most queues.
    pub const MAX_QUEUES: u16 = 8;

    /// The one of this name, in the daemon's namespace, with one queue.
    #[must_use]
    pub fn called(ifname: &str) -> Self {
        Self {
            ifname: ifname.into(),
            netns: None,
            queues: one_queue(),
            engine: InterfaceEngine::Auto,
        }
    }
}

impl Kind for Interface {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        check_range(port, "queues", self.queues.into(), 1, Self::MAX_QUEUES.into())?;
        check_ifname(port, &self.ifname, "name one that `ip link` shows, such as eth0")
    }

    fn claim(&self) -> Option<Claim> {
        let place = in_namespace(self.netns.as_ref());
        let what = format!("Interface {}{place}", self.ifname);
        Some(Claim { what, remedy: "give each port an interface of its own" })
    }

    fn describe(&self) -> String {
        format!("interface {}{}", self.ifname, in_namespace(self.netns.as_ref()))
    }

    fn complete(&mut self, port: &str) -> Result<(), Invalid> {
        if self.ifname.is_empty() {
            port.clone_into(&mut self.ifname);
        }
        Ok(())
    }
}
