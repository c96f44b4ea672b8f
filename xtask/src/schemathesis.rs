//! The control API held against its own description for longer than the test of it does.

use anyhow::Result;

use crate::artifacts;
use crate::tool::{self, cargo};

/// Makes requests for this many seconds.
pub fn run(seconds: &str) -> Result<()> {
    artifacts::run(&["schemathesis"])?;
    let test = ["test", "--package=toklat", "--test=control", "--", "--nocapture", "daemon_schema"];
    tool::run(cargo(&test).env("TOKLAT_SCHEMATHESIS_SECONDS", seconds))
}
