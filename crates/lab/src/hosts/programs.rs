//! Programs that measurements start, and those that a machine lacks.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use jail::parent_death;
use rustix::process::{Pid, Signal, kill_process};

/// A machine lacks a program, or a part of its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(String);

impl Missing {
    /// The message that `what` is missing, and the remedy unless `remedy` is empty.
    #[must_use]
    pub fn new(what: &str, remedy: &str) -> Self {
        let remedy = if remedy.is_empty() { String::new() } else { format!(": {remedy}") };
        Self(format!("{what} is missing{remedy}"))
    }

    /// Takes the message from the output of a program that reports what is missing.
    #[must_use]
    pub fn said(words: &str) -> Self {
        Self(words.to_owned())
    }

    /// True if an error says that something is missing.
    #[must_use]
    pub fn is(error: &anyhow::Error) -> bool {
        error.is::<Self>()
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// Where a program is: on the path, or where the system has its own.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(system).map(|dir| dir.join(program));
    places.find(|file| file.is_file())
}

/// Makes sure that a program is there.
///
/// # Errors
/// [`Missing`].
pub fn need(program: &str) -> Result<()> {
    ensure!(find(program).is_some(), Missing::new(program, "bench/peers/setup.sh installs it"));
    Ok(())
}

/// A program that ends with the measurement.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Starts a program that ends when this is dropped, and when this process ends in any way. One
    /// that changes its user outlives this process: it ends with its
    /// [namespace](super::namespaces::remove).
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = parent_death::signal(command, Signal::TERM).spawn();
        child.map(Self).map_err(|error| cannot_start(&name, error))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn cannot_start(name: &str, error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::NotFound && !Path::new(name).is_file() {
        return Missing::new(name, "").into();
    }
    anyhow::Error::from(error).context(format!("{name} cannot be started"))
}

/// Runs a program to its end, or to this process's.
///
/// # Errors
/// It is missing, or fails; the error has its words.
pub fn done(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = parent_death::signal(command, Signal::KILL).stdin(Stdio::null()).output();
    let output = output.map_err(|error| cannot_start(&name, error))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", said.trim());
    Ok(output)
}

/// Runs `ip` with these words.
///
/// # Errors
/// As [`done`].
pub fn ip(words: &str) -> Result<Output> {
    done(Command::new("ip").args(words.split(' '))).with_context(|| format!("ip {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_where_they_are() {
        assert!(find("sh").is_some() && need("sh").is_ok());
        assert!(Missing::is(&need("no-such-program-anywhere").unwrap_err()));
    }

    #[test]
    fn a_missing_program_is_told_from_one_that_fails() {
        let absent = done(&mut Command::new("no-such-program-anywhere")).unwrap_err();
        assert!(Missing::is(&absent.context("in a context")));
        let fails = done(Command::new("sh").args(["-c", "echo it is missing >&2; exit 1"]));
        assert!(!Missing::is(&fails.unwrap_err()));
    }
}
