//! Running other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The workspace's root.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// The Rust files below a folder, sorted.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder);
    for entry in entries.with_context(|| format!("Cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Where cargo puts what it makes.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// `program` with `args`, to be run in the workspace's root.
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Cargo as rustup chooses it: with `+nightly` first in `args`, the nightly one.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = command("cargo", args);
    if args.first().is_some_and(|first| first.starts_with('+')) {
        // Cargo told us its own toolchain by these; they would win over `+nightly`.
        for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command, and fails if the command fails.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    println!("$ {shown}");
    let status = command.status().with_context(|| format!("{shown} could not be started"))?;
    if !status.success() {
        bail!("{shown} failed ({status})");
    }
    Ok(())
}

/// Runs a command, and returns what it prints, without the end of the last line.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("{shown} could not be started"))?;
    if !output.status.success() {
        bail!("{shown} failed ({})", output.status);
    }
    let said =
        String::from_utf8(output.stdout).with_context(|| format!("{shown} prints no text"))?;
    Ok(said.trim_end_matches('\n').to_owned())
}

/// Runs a command silently; returns true if it succeeds.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// True if a program of this name is on the path.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).is_file())
}

/// True if cargo has this subcommand, on the toolchain `plus` names (empty for the pinned one).
pub fn has_subcommand(plus: &str, subcommand: &str) -> bool {
    let args = [plus, subcommand, "--version"];
    let args: Vec<&str> = args.into_iter().filter(|a| !a.is_empty()).collect();
    succeeds(&mut cargo(&args))
}

fn show(command: &Command) -> String {
    let args = command.get_args().map(|a| a.to_string_lossy());
    std::iter::once(command.get_program().to_string_lossy())
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}
