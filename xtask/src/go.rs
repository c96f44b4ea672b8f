//! Programs of others for tests, built from source by the Go module proxy: GoBGP's daemon, and
//! CNI's own tool.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::tool::{self, command, installed};

/// The modules and their versions.
const GOBGPD: &str = "github.com/osrg/gobgp/v4/cmd/gobgpd@v4.8.0";
const CNITOOL: &str = "github.com/containernetworking/cni/cnitool@v1.3.1";

/// Returns the directory in which programs are built.
fn place() -> PathBuf {
    tool::target().join("go")
}

/// Builds gobgpd, if it is not there.
pub fn make_gobgpd() -> Result<()> {
    make("gobgpd", GOBGPD)
}

/// Builds cnitool, if it is not there.
pub fn make_cnitool() -> Result<()> {
    make("cnitool", CNITOOL)
}

fn make(name: &str, module: &str) -> Result<()> {
    let place = std::path::absolute(place())?;
    if place.join(name).exists() {
        return Ok(());
    }
    if !installed("go") {
        bail!("go is missing; GoBGP needs version 1.25, which a go of 1.21 or later fetches");
    }
    println!("building {name} ({module})");
    tool::run(command("go", &["install", module]).env("GOBIN", place))
}
