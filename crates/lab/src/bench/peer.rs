//! Peers for comparison: the floor program, runners of other switches, or toklat itself in a
//! simpler case.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::lab::Lab;
use super::waiting;
use crate::hosts::programs::Missing;

/// The exit status by which a runner of `bench/peers` says that something is missing.
const MISSING: i32 = 3;

/// Measures something once.
pub type Measure = fn(&Lab) -> Result<f64>;

/// The peer that a row is compared with.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// `bench/floor/forward.c` with these arguments.
    Floor(&'static [&'static str]),
    /// A runner of `bench/peers`, and what it measures.
    Runner(&'static str, &'static str),
    /// toklat itself in a simpler case.
    Toklat(&'static str, Measure),
    /// The best of these by median, not by the luckiest single run.
    BestOf(&'static [(&'static str, Measure)]),
    /// There is no peer: the bar is absolute.
    None,
}

impl Peer {
    /// The peer's name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Floor(_) => "floor",
            Self::Runner(name, _) | Self::Toklat(name, _) => name,
            Self::BestOf(_) => "the best of several",
            Self::None => "-",
        }
    }

    /// The name of one of its [values](Self::count).
    pub fn name_of(&self, value: usize) -> &'static str {
        match self {
            Self::BestOf(several) => several.get(value).map_or("-", |(name, _)| name),
            _ => self.name(),
        }
    }

    /// Returns the command that repeats this measurement alone.
    pub fn command(&self) -> Option<String> {
        match self {
            Self::Floor(args) => Some(format!("bench/floor/forward {}", args.join(" "))),
            Self::Runner(name, what) => Some(format!("bench/peers/{name}.sh {what}")),
            Self::Toklat(..) | Self::BestOf(_) | Self::None => None,
        }
    }

    /// How many values it has: several for a group of peers, or none.
    pub fn count(&self) -> usize {
        match self {
            Self::BestOf(several) => several.len(),
            Self::None => 0,
            Self::Floor(_) | Self::Runner(..) | Self::Toklat(..) => 1,
        }
    }

    /// Measures one of its values once.
    pub fn measure(&self, lab: &Lab, value: usize) -> Result<f64> {
        match self {
            Self::Floor(args) => floor(lab, args),
            Self::Runner(name, what) => lab.once_missing(name, || runner(lab, name, what)),
            Self::Toklat(_, measure) => measure(lab),
            Self::BestOf(several) => several.get(value).context("no such peer")?.1(lab),
            Self::None => bail!("there is no peer"),
        }
    }
}

/// Runs the floor program.
pub fn floor(lab: &Lab, args: &[&str]) -> Result<f64> {
    let mut floor = Command::new(lab.floor()?);
    value(floor.args(args).arg(format!("seconds={}", lab.seconds())))
}

fn runner(lab: &Lab, name: &str, what: &str) -> Result<f64> {
    let mut runner = Command::new(lab.dir().join(format!("{name}.sh")));
    value(runner.arg(what).env("SECONDS_PER_RUN", "2"))
}

/// Runs a command, and reads the value from the JSON object that it prints. Reports how long its
/// threads waited for a processor, if it says that.
fn value(command: &mut Command) -> Result<f64> {
    let done = command.output().context("it could not be started")?;
    let missing =
        (done.status.code() == Some(MISSING)).then(|| String::from_utf8_lossy(&done.stderr));
    if let Some(said) = missing {
        bail!(Missing::said(said.trim()));
    }
    if !done.status.success() {
        bail!("{}", String::from_utf8_lossy(&done.stderr).trim());
    }
    let printed: serde_json::Value =
        serde_json::from_slice(&done.stdout).context("it did not print a JSON object")?;
    printed["waited"].as_f64().into_iter().for_each(waiting::report);
    printed["value"].as_f64().context("it printed no value")
}
