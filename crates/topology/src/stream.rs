//! Frames over a stream.

use serde::{Deserialize, Serialize};

use crate::{Claim, Invalid, Kind, Policy, place};

/// Exchanges frames over a stream socket, each after its length (QEMU's `-netdev stream`, passt).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// A Unix socket's path, or 127.0.0.1:PORT for TCP. Default: SWITCH-PORT.sock in the runtime
    /// directory.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(id = "stream", long = "stream", value_name = "PLACE"))]
    #[cfg_attr(feature = "clap", arg(num_args = 0..=1, value_hint = clap::ValueHint::AnyPath))]
    pub address: Option<String>,
    /// Connect to a peer that listens (QEMU: server=on), instead of listening for it.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long))]
    pub client: bool,
}

impl Kind for Stream {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        self.address.as_ref().map_or(Ok(()), |address| place::check(port, address))
    }

    fn claim(&self) -> Option<Claim> {
        self.address.as_ref().filter(|_| !self.client).map(|path| Claim::socket(path))
    }

    fn describe(&self) -> String {
        place::describe("stream", self.address.as_ref(), self.client)
    }

    fn has_default_socket(&self) -> bool {
        self.address.is_none() && !self.client
    }

    fn complete(&mut self, _: &str) -> Result<(), Invalid> {
        self.address.as_mut().map_or(Ok(()), place::make_place_absolute)
    }
}
