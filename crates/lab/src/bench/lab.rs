//! The environment of measurements: a scratch directory, the floor program, daemons for the bench.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netring::{Open, Port};
use rustix::process::Signal;

use super::rounds::Conditions;
use super::sources;
use super::stages::Measured;
use super::waiting;
use crate::hosts::programs::Missing;
use client::{Client, Global, units};
use jail::parent_death;
use vm::{Accelerator, Model};

/// A figure, and what went on meanwhile, as soon as that is known.
type Left = (f64, Option<Conditions>);

/// State that all measurements of a run share.
pub struct Lab {
    dir: tempfile::TempDir,
    seconds: f64,
    floor: OnceCell<Result<PathBuf, String>>,
    missing: RefCell<BTreeMap<String, String>>,
    notes: RefCell<BTreeMap<String, String>>,
    /// Figures that were measured and not yet used, with what went on meanwhile.
    left: RefCell<BTreeMap<String, Vec<Left>>>,
    /// What went on when the figure was measured that was used last.
    used: Cell<Option<Conditions>>,
    dispatch: RefCell<Vec<Measured>>,
}

impl Lab {
    /// Makes a scratch directory. Each measurement takes `seconds`.
    pub fn new(seconds: f64) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("toklat-bench").tempdir()?;
        sources::unpack(dir.path())?;
        Ok(Self {
            dir,
            seconds,
            floor: OnceCell::new(),
            missing: RefCell::default(),
            notes: RefCell::default(),
            left: RefCell::default(),
            used: Cell::default(),
            dispatch: RefCell::default(),
        })
    }

    /// The scratch directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// How long a measurement takes.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// As a duration.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Returns a figure of something whose `run` yields several: one that an earlier run left, or
    /// one of a new run.
    pub fn figure<W: Debug, F: Debug>(
        &self,
        of: W,
        what: F,
        run: impl FnOnce() -> Result<BTreeMap<F, f64>>,
    ) -> Result<f64> {
        let name = |what: &F| format!("{} {of:?} {what:?}", std::any::type_name::<W>());
        let left = || self.left.borrow_mut().get_mut(&name(&what)).and_then(Vec::pop);
        if let Some((value, conditions)) = left() {
            self.used.set(conditions);
            return Ok(value);
        }
        for (what, value) in run()? {
            self.left.borrow_mut().entry(name(&what)).or_default().push((value, None));
        }
        Ok(left().context("it was not measured")?.0)
    }

    /// Says what went on during the last measurement, for the figures that it has left. Returns
    /// what went on when its own was measured: that may have been earlier.
    pub fn conditions(&self, last: Conditions) -> Conditions {
        for (_, conditions) in self.left.borrow_mut().values_mut().flatten() {
            conditions.get_or_insert(last);
        }
        self.used.take().unwrap_or(last)
    }

    /// Keeps what the stages of a datagram have taken.
    pub fn keep_dispatch(&self, measured: Measured) {
        let mut all = self.dispatch.borrow_mut();
        match all.iter_mut().find(|it| it.is_of(&measured)) {
            Some(before) => before.add(measured),
            None => all.push(measured),
        }
    }

    /// What the stages of datagrams have taken in all runs.
    pub fn dispatch(&self) -> Vec<Measured> {
        self.dispatch.borrow().clone()
    }

    /// Adds a note to the current row. A later note with the same name replaces an earlier one.
    pub fn note(&self, name: &str, text: String) {
        self.notes.borrow_mut().insert(name.to_owned(), text);
    }

    /// Takes what was noted.
    pub fn notes(&self) -> Vec<String> {
        self.notes.take().into_values().collect()
    }

    /// Returns the floor program, which is compiled at first use.
    pub fn floor(&self) -> Result<&Path> {
        let compile = || sources::compile_floor(self.dir()).map_err(|e| format!("{e:#}"));
        match self.floor.get_or_init(compile) {
            Ok(program) => Ok(program),
            Err(reason) => bail!("{reason}"),
        }
    }

    /// Measures a peer, unless it is known to be missing.
    pub fn once_missing(&self, peer: &str, run: impl FnOnce() -> Result<f64>) -> Result<f64> {
        if let Some(reason) = self.missing.borrow().get(peer) {
            bail!("{reason}");
        }
        run().inspect_err(|error| {
            if Missing::is(error) {
                self.missing.borrow_mut().insert(peer.to_owned(), format!("{error:#}"));
            }
        })
    }

    /// Starts a daemon with one switch, `vale0`, whose settings are `switch` (lines of a topology
    /// file).
    pub fn daemon(&self, switch: &str) -> Result<Daemon> {
        let dir = tempfile::Builder::new().prefix("daemon").tempdir_in(self.dir())?;
        let topology = dir.path().join("net.toml");
        std::fs::write(&topology, format!("[switch.vale0]\n{switch}\n"))?;
        let daemon = Daemon { child: supervisor(dir.path())?, dir, since: Instant::now() };
        daemon.wait()?;
        Ok(daemon)
    }
}

/// Starts a supervisor whose runtime directory is `dir`.
fn supervisor(dir: &Path) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["daemon", "--topology"]).arg(dir.join("net.toml"));
    command.env("TOKLAT_DIR", dir).env("TOKLAT_LOG", "warn").stdin(Stdio::null());
    parent_death::signal(&mut command, Signal::TERM)
        .spawn()
        .context("the daemon could not be started")
}

/// A daemon for the bench. It ends when this is dropped, and when this process ends in any way.
pub struct Daemon {
    child: Child,
    dir: tempfile::TempDir,
    since: Instant,
}

impl Daemon {
    fn wait(&self) -> Result<()> {
        wait_until(Duration::from_secs(10), || {
            self.client().and_then(|mut c| Ok(c.get::<api::Status>("/v1/status")?)).is_ok()
                && self.stats().is_ok_and(|stats| !stats.workers.is_empty())
        })
        .context("the daemon did not come up")
    }

    /// Kills the supervisor, and starts another one in its place.
    pub fn kill_and_start_again(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = supervisor(self.dir.path())?;
        self.wait()
    }

    /// Returns the options to open a port of the daemon's switch.
    pub fn open(&self, port: &str) -> Open {
        Open::new(&format!("vale0:{port}")).directory(self.dir.path())
    }

    /// Opens a port of default size.
    pub fn port(&self, port: &str) -> Result<Port> {
        Ok(self.open(port).open()?)
    }

    /// A client of its control API.
    pub fn client(&self) -> Result<Client> {
        let global = Global { dir: Some(self.dir.path().to_owned()), json: false };
        Ok(Client::connect(&global)?.without_progress())
    }

    /// The daemon's runtime directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The daemon's process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the counters of the daemon's switch.
    pub fn stats(&self) -> Result<api::SwitchStats> {
        let stats: api::Stats = self.client()?.get("/v1/stats")?;
        stats.switches.into_iter().next().context("the switch is not there")
    }

    /// Adds a port of this kind without flood limit, as the peers have none.
    pub fn add_port(&self, name: &str, kind: &serde_json::Value) -> Result<()> {
        self.add_port_of(name, kind, &[])
    }

    /// Adds a port like the previous function, for an owner with these addresses.
    pub fn add_port_of(
        &self,
        name: &str,
        kind: &serde_json::Value,
        macs: &[frame::Mac],
    ) -> Result<()> {
        let body =
            serde_json::json!({ "name": name, "kind": kind, "flood_limit": null, "macs": macs });
        let _: api::PortInfo =
            self.client()?.send(hyper::Method::POST, "/v1/switches/vale0/ports", &body)?;
        Ok(())
    }

    /// Changes a port of its switch.
    pub fn change_port(&self, name: &str, patch: &serde_json::Value) -> Result<()> {
        let path = format!("/v1/switches/vale0/ports/{name}");
        let _: api::PortInfo = self.client()?.send(hyper::Method::PATCH, &path, patch)?;
        Ok(())
    }

    /// Coalesces a port's interrupts as `toklat vm run` does.
    pub fn set_default_coalescing(&self, port: &str, model: Model) -> Result<()> {
        let usual = model.usual_interrupts(Accelerator::choose().0).unwrap_or("off");
        self.set_coalescing(port, usual)
    }

    /// Coalesces a port's interrupts as `--interrupts` says.
    pub fn set_coalescing(&self, port: &str, how: &str) -> Result<()> {
        let interrupts = units::interrupts(how).map_err(anyhow::Error::msg)?;
        self.change_port(port, &serde_json::json!({ "interrupts": interrupts }))
    }

    /// The process id of its data process.
    pub fn data_process(&self) -> Result<i32> {
        let switches: Vec<api::SwitchInfo> = self.client()?.get("/v1/switches")?;
        let pid = switches.first().and_then(|switch| switch.pid);
        Ok(pid.context("the switch has no data process")? as i32)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(data) = self.data_process() {
            waiting::report_process(data, self.since.elapsed());
        }
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // SIGTERM, so that the daemon ends its data process.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Checks every 5 ms until `done` returns true.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + limit;
    while !done() {
        if Instant::now() > end {
            bail!("it took more than {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_an_earlier_run_left_has_the_conditions_of_that_run() {
        let lab = Lab::new(0.1).unwrap();
        let at = |ns: f64| Conditions { before: Some(ns), after: Some(ns), waited: 0.0 };
        let run = || Ok(BTreeMap::from([("rate", 1.0), ("cost", 2.0)]));
        let figure = |what| lab.figure("guests", what, run).unwrap();
        assert_eq!((figure("rate"), lab.conditions(at(100.0))), (1.0, at(100.0)));
        assert_eq!((figure("cost"), lab.conditions(at(500.0))), (2.0, at(100.0)));
        assert_eq!((figure("cost"), lab.conditions(at(600.0))), (2.0, at(600.0)), "a new run");
        assert_eq!((figure("rate"), lab.conditions(at(700.0))), (1.0, at(600.0)));
    }
}
