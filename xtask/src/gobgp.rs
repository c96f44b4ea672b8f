//! GoBGP's daemon for tests of EVPN, built from source by the Go module proxy.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::tool::{self, command, installed, root};

/// The module and its version.
const PROGRAM: &str = "github.com/osrg/gobgp/v4/cmd/gobgpd@v4.8.0";

/// Returns the directory in which the program is built.
fn place() -> PathBuf {
    root().join("target/gobgp")
}

/// Builds gobgpd, if it is not there.
pub fn make() -> Result<()> {
    let place = place();
    if place.join("gobgpd").exists() {
        return Ok(());
    }
    if !installed("go") {
        bail!("go is missing; GoBGP needs version 1.25, which a go of 1.21 or later fetches");
    }
    println!("building gobgpd ({PROGRAM})");
    tool::run(command("go", &["install", PROGRAM]).env("GOBIN", place))
}
