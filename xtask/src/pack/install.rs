//! `cargo xtask install [--root DIR]`: what `cargo install` would install, and what belongs to it.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Options;
use super::files::{Place, items, lay_out};

/// Installs the program, the library of `toklat run`, manual pages and completions.
pub fn run(options: &Options) -> Result<()> {
    let root =
        options.out.clone().or_else(cargo_home).context("no home: name one by --root DIR")?;
    let workshop = options.workshop("install")?;
    let items = items(Place::Root, &options.sources(&workshop)?)?;
    lay_out(&items, &root)?;
    let programs = root.join("bin");
    println!("Installed {}", programs.join("toklat").display());
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|directory| directory == programs) {
        println!("It is not on your path: export PATH=\"{}:$PATH\"", programs.display());
    }
    Ok(())
}

/// Where cargo installs programs.
fn cargo_home() -> Option<PathBuf> {
    let named = std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
}
