//! The control API held against its own description for longer than the test of it does.

use anyhow::Result;

use crate::tool::{self, cargo};

/// Makes requests for this many seconds.
pub fn run(seconds: &str) -> Result<()> {
    let test = ["test", "--package=toklat", "--test=daemon_schema", "--", "--nocapture"];
    tool::run(cargo(&test).env("TOKLAT_SCHEMATHESIS_SECONDS", seconds))
}
