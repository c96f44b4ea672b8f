//! `docs/registers.md`, from the tables of the device models.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use crate::tool::{self, cargo};

const PAGE: &str = "docs/registers.md";

/// Writes the page.
pub fn write() -> Result<()> {
    let page = tool::root().join(PAGE);
    fs::write(&page, generate()?).with_context(|| format!("Cannot write {}", page.display()))
}

/// Fails if the page is not what the tables say.
pub fn check() -> Result<()> {
    let there = fs::read_to_string(tool::root().join(PAGE)).unwrap_or_default();
    if there != generate()? {
        bail!("{PAGE} is not what the models' tables say: cargo xtask registers");
    }
    Ok(())
}

fn generate() -> Result<String> {
    let run = ["run", "--quiet", "--package=toklat-nic", "--example=registers"];
    let out = cargo(&run).stderr(std::process::Stdio::inherit()).output()?;
    ensure!(out.status.success(), "the example `registers` of `nic` fails");
    Ok(String::from_utf8(out.stdout)?)
}
