//! `toklat bench`: measures this project. Each figure stands beside a floor or a peer, which is
//! measured in turn in the same run.
//!
//! [`rows`] defines what a row measures, [`bar`] what it must clear, [`rounds`] when samples are
//! taken and which count, and [`figure`] how they become a figure. [`peer`] has the floor program
//! and the runners of peers.

mod bar;
mod broadcast;
mod calls;
mod cards;
mod confined;
mod confined_rows;
mod dispatch;
mod distance;
mod fences;
mod figure;
mod guests;
mod hosts;
mod inline;
mod isolated;
mod lab;
mod life;
mod links;
mod livelock;
mod netmap;
mod nic;
mod peer;
mod pipe;
mod ports;
mod rounds;
mod rows;
mod sources;
mod stacks;
mod stacks_linux;
mod stacks_rows;
mod stages;
mod taps;
mod traffic;
mod vhost;
mod vm_rows;
mod waiting;

use std::io::Write;

use anyhow::{Context, bail};

use self::figure::{COLUMNS, Figure, about_intervals};
use self::lab::Lab;
use self::rounds::{Conditions, Reading};
use self::rows::{Row, SUMMARIES};
use self::stages::Measured;
use client::table::Table;
use client::{Global, Result};
use vm::Accelerator;

/// What is measured.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Measure the switch: throughput, round trips, floods, many ports, restarts
    Switch(RowsArgs),
    /// Measure virtual machines: vhost-user ports, Linux guests
    Vm(RowsArgs),
    /// Measure unmodified netmap and libpcap programs under `toklat run`, Python, and interfaces as
    /// ports
    Netmap(RowsArgs),
    /// Measure emulated network cards: models, drivers, Linux guests
    Nic(RowsArgs),
    /// Measure light guests: TCP and web, against Linux's stack
    Guest(RowsArgs),
    /// Measure links and rules: rates, queues, delays, fair queueing; judging, connections
    Links(RowsArgs),
    /// Measure switches of several hosts: tunnels, EVPN, against the kernel's VXLAN and FRR
    Hosts(RowsArgs),
}

/// Which rows to measure, and how often.
#[derive(Clone, Debug, clap::Args)]
pub struct RowsArgs {
    /// Only the rows whose id begins with this; see --list
    #[arg(long, value_name = "ID")]
    row: Vec<String>,
    /// Rounds over all rows, each row once in each; the median is reported
    #[arg(long, default_value_t = rounds::ENOUGH, value_name = "N", value_parser = clap::value_parser!(u32).range(i64::from(rounds::ENOUGH)..=99))]
    reps: u32,
    /// Fail if a row misses its bar, or has one and could not be measured
    #[arg(long)]
    judge: bool,
    /// One short round: shows that everything runs; its figures mean little
    #[arg(long)]
    quick: bool,
    /// List the rows and their bars, and measure nothing
    #[arg(long)]
    list: bool,
    /// Draw into this file, as SVG: rows of nic.table by the cost of traps, or the stages of
    /// guest.dispatch
    #[arg(long, value_name = "FILE")]
    svg: Option<std::path::PathBuf>,
}

impl BenchCommand {
    /// Measures and prints.
    ///
    /// # Errors
    /// If no row has the id that was asked for, or results cannot be printed. A row that cannot be
    /// measured says so in its place. With `--judge`, also if a bar is not cleared.
    pub fn run(&self, global: &Global) -> Result {
        match self {
            Self::Switch(args) => args.run(&[rows::ROWS], global),
            Self::Netmap(args) => args.run(&[netmap::ROWS, nic::netmap::ROWS, cards::ROWS], global),
            Self::Guest(args) => {
                args.run(&[stacks_rows::ROWS, confined_rows::ROWS, dispatch::ROWS], global)
            }
            Self::Links(args) => args.run(&[links::ROWS, fences::ROWS], global),
            Self::Hosts(args) => args.run(&[hosts::rows::ROWS], global),
            Self::Vm(args) => args.run(&[vm_rows::ROWS], global),
            Self::Nic(args) => {
                use nic::rows::{ALONE, BY_SOCKET, ONE_ACCESS, PCNET, TABLE};
                args.run(
                    &[ALONE, PCNET, ONE_ACCESS, TABLE, BY_SOCKET, nic::linux_rows::ROWS],
                    global,
                )
            }
        }
    }
}

impl RowsArgs {
    fn run(&self, rows: &[&'static [Row]], global: &Global) -> Result {
        let asked = |row: &&Row| {
            self.row.is_empty() || self.row.iter().any(|id| row.id.starts_with(id.as_str()))
        };
        let rows: Vec<&Row> = rows.iter().copied().flatten().filter(asked).collect();
        if rows.is_empty() {
            bail!("no row begins with {}; --list shows them", self.row.join(" or "));
        }
        if self.list {
            return list(&rows);
        }
        let lab = Lab::new(if self.quick { 0.1 } else { 0.5 })?;
        let rounds = if self.quick { 1 } else { self.reps };
        let samples =
            rounds::measure(&mut Run { lab: &lab, rows: &rows, rounds }, rows.len(), rounds);
        eprint!("\r\x1b[K");
        let has_kvm = Accelerator::choose().0 == Accelerator::Kvm;
        let figures = rows.iter().zip(&samples);
        let figures: Vec<_> = figures.map(|(row, it)| Figure::new(row, it, has_kvm)).collect();
        show(&figures, rounds, global)?;
        self.show_stages(&lab.dispatch(), &figures, global)?;
        match figure::judge(&figures).filter(|_| self.judge) {
            Some(said) => bail!("{said}"),
            None => Ok(()),
        }
    }

    /// Prints the stages of packet dispatch, if they were measured. Draws what can be drawn.
    fn show_stages(&self, measured: &[Measured], figures: &[Figure], global: &Global) -> Result {
        let stages = dispatch::Report::of(measured);
        if let Some(stages) = &stages {
            let mut out = std::io::stdout().lock();
            match global.json {
                false => write!(out, "\n{}", stages.table())?,
                true => {
                    stages.figures().iter().try_for_each(|figure| writeln!(out, "{figure}"))?;
                }
            }
        }
        let Some(path) = &self.svg else { return Ok(()) };
        let svg = match measured.is_empty() {
            true => nic::chart::draw(figures),
            false => Some(dispatch::draw(dispatch::require(stages.as_ref())?)),
        };
        let Some(svg) = svg else {
            bail!("none of these rows is drawn: --svg is for rows of nic.table and guest.dispatch");
        };
        let written = std::fs::write(path, svg);
        written.with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// Prints figures, each summary after the last of its parts: as JSON, or as a table.
fn show(figures: &[Figure], rounds: u32, global: &Global) -> Result {
    let mut out = std::io::stdout().lock();
    let (mut table, mut explained) = (Table::new(&COLUMNS), String::new());
    for at in 0..figures.len() {
        let summaries = SUMMARIES.iter().filter_map(|it| Figure::of_parts(it, &figures[..=at]));
        for figure in std::iter::once(figures[at].clone()).chain(summaries) {
            if global.json {
                writeln!(out, "{}", serde_json::to_string(&figure)?)?;
            }
            explained += &format!("{}: {}\n", figure.id, figure.how);
            figure.lines().into_iter().for_each(|line| table.row(line));
        }
    }
    if !global.json {
        write!(out, "{table}{}\n{explained}", about_intervals(rounds))?;
    }
    Ok(())
}

fn list(rows: &[&Row]) -> Result {
    let mut table = Table::new(&["id", "unit", "peer", "bar", "what each core does"]);
    for row in rows {
        let bar = row.bar.text().unwrap_or_else(|| "-".to_owned());
        table.row([row.id, row.unit, row.peer.name(), &bar, row.how].map(str::to_owned));
        for summary in SUMMARIES.iter().filter(|summary| summary.parts.last() == Some(&row.id)) {
            let first = rows.iter().find(|row| row.id == summary.parts[0]).unwrap_or(row);
            let how = format!("the worst, or the first, of {}", summary.parts.join(", "));
            let cells = [summary.id, first.unit, row.peer.name(), "those of its parts", &how];
            table.row(cells.map(str::to_owned));
        }
    }
    write!(std::io::stdout().lock(), "{table}")?;
    Ok(())
}

/// A run on this machine: each value has the distance of the cores just before and just after it,
/// and how long threads waited for a processor.
struct Run<'a> {
    lab: &'a Lab,
    rows: &'a [&'a Row],
    rounds: u32,
}

/// Runs `measure` between two measurements of the distance.
fn between<T>(measure: impl FnOnce() -> T) -> (T, Conditions) {
    let before = distance::measure();
    waiting::take();
    let measured = measure();
    let waited = waiting::take();
    (measured, Conditions { before, after: distance::measure(), waited })
}

impl rounds::Bench for Run<'_> {
    fn ours(&mut self, row: usize) -> anyhow::Result<Reading> {
        let (value, conditions) = between(|| (self.rows[row].ours)(self.lab));
        let conditions = self.lab.conditions(conditions);
        Ok(Reading { value: value?, conditions })
    }

    fn peers(&mut self, row: usize) -> Vec<anyhow::Result<Reading>> {
        let one = |value: &dyn Fn() -> anyhow::Result<f64>| {
            let (value, conditions) = between(value);
            let conditions = self.lab.conditions(conditions);
            Ok(Reading { value: value?, conditions })
        };
        let peer = &self.rows[row].peer;
        (0..peer.count()).map(|number| one(&|| peer.measure(self.lab, number))).collect()
    }

    fn notes(&mut self) -> Vec<String> {
        self.lab.notes()
    }

    fn progress(&mut self, row: usize, round: u32) {
        let (id, number, rows) = (self.rows[row].id, row + 1, self.rows.len());
        eprint!("\r\x1b[Kround {round}/{} [{number}/{rows}] {id}", self.rounds);
    }
}
