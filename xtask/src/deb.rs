//! The Debian package: the program describes itself (manual pages, completions), cargo-deb packs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::tool::{self, cargo, has_subcommand};

pub fn run() -> Result<()> {
    if !has_subcommand("", "deb") {
        bail!("cargo-deb is missing: cargo install cargo-deb --locked");
    }
    tool::run(&mut cargo(&["build", "--release", "--package", "toklat"]))?;
    let release = tool::root().join("target/release");
    let program = release.join("toklat");
    let package = release.join("package");
    // Pages of commands that are no more must not be packed.
    if package.exists() {
        fs::remove_dir_all(&package).context("Cannot empty target/release/package")?;
    }
    let man = package.join("man");
    let program = program.to_string_lossy();
    tool::run(&mut tool::command(&program, &["man", &man.to_string_lossy()]))?;
    for (shell, file) in [("bash", "toklat.bash"), ("zsh", "_toklat"), ("fish", "toklat.fish")] {
        completions(&program, shell, &package.join(file))?;
    }
    // Container runtimes call the same program by this name.
    std::os::unix::fs::symlink("../../bin/toklat", package.join("toklat-cni"))
        .context("Cannot link target/release/package/toklat-cni")?;
    // What debuggers want is four fifths of the program: a package of its own beside this one.
    tool::run(&mut cargo(&["deb", "--package", "toklat", "--no-build", "--dbgsym"]))
}

fn completions(program: &str, shell: &str, file: &Path) -> Result<()> {
    let output = tool::command(program, &["completions", shell]).output()?;
    if !output.status.success() {
        bail!("toklat completions {shell} failed: {}", output.status);
    }
    fs::write(file, output.stdout).with_context(|| format!("Cannot write {}", file.display()))
}
