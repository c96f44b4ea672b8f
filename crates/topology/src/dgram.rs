//! Frames in datagrams.

use serde::{Deserialize, Serialize};

use crate::place::{self, Place};
use crate::{Claim, Invalid, Kind, Policy};

/// Exchanges frames in datagrams (QEMU's `-netdev dgram`), between two Unix sockets or two UDP
/// ports of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Dgram {
    /// The local end: a path, or 127.0.0.1:PORT.
    #[cfg_attr(feature = "clap", arg(id = "dgram", long = "dgram", value_name = "PLACE"))]
    #[cfg_attr(feature = "clap", arg(value_hint = clap::ValueHint::AnyPath))]
    pub local: String,
    /// The other end.
    #[cfg_attr(feature = "clap", arg(long, value_name = "PLACE"))]
    #[cfg_attr(feature = "clap", arg(value_hint = clap::ValueHint::AnyPath))]
    pub remote: String,
}

impl Kind for Dgram {
    fn check(&self, port: &str, _: &Policy) -> Result<(), Invalid> {
        let Self { local, remote } = self;
        place::check(port, local)?;
        place::check(port, remote)?;
        let is_path = |text: &str| matches!(Place::of(text), Place::Path(_));
        if is_path(local) == is_path(remote) && local != remote {
            return Ok(());
        }
        let reason = format!("{port}: datagrams cannot go from {local:?} to {remote:?}");
        Err(Invalid::new(reason, "give two paths, or two addresses with their ports"))
    }

    fn claim(&self) -> Option<Claim> {
        Some(Claim::socket(&self.local))
    }

    fn describe(&self) -> String {
        format!("datagrams, {} to {}", self.local, self.remote)
    }

    fn complete(&mut self, _: &str) -> Result<(), Invalid> {
        place::make_place_absolute(&mut self.local)?;
        place::make_place_absolute(&mut self.remote)
    }
}
