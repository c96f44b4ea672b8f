//! The peer of virtual machines on a switch: a Linux bridge between taps, in its own network
//! namespace.

use std::ffi::OsString;

use anyhow::ensure;

use client::Result;

use crate::hosts::namespaces;
use crate::hosts::programs::ip;

/// A bridge and its taps; removed on drop.
#[derive(Debug)]
pub struct Bridge {
    namespace: String,
}

/// Names of the taps.
const TAPS: [&str; 2] = ["tap0", "tap1"];

impl Bridge {
    /// Makes a bridge. Needs root.
    ///
    /// # Errors
    /// There is no root, no `ip`, or no support for taps.
    pub fn new() -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "tap and bridge are root's to make");
        let bridge = Self { namespace: format!("toklat-bridge-{}", std::process::id()) };
        ip(&format!("netns add {}", bridge.namespace))?;
        bridge.ip("link add br0 type bridge")?;
        bridge.ip("link set br0 up")?;
        for tap in TAPS {
            bridge.ip(&format!("tuntap add {tap} mode tap vnet_hdr"))?;
            bridge.ip(&format!("link set {tap} master br0 up"))?;
        }
        Ok(bridge)
    }

    /// The names of the taps.
    #[must_use]
    pub fn taps(&self) -> [&'static str; 2] {
        TAPS
    }

    /// The network namespace of the bridge and its taps.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the prefix of commands that run in the namespace.
    #[must_use]
    pub fn prefix(&self) -> Vec<OsString> {
        ["ip", "netns", "exec", &self.namespace].map(OsString::from).into()
    }

    fn ip(&self, rest: &str) -> Result {
        ip(&format!("-n {} {rest}", self.namespace)).map(drop)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        namespaces::remove(&self.namespace);
    }
}
