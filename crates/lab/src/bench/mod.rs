//! `toklat bench`: measures this project. Each figure stands beside a floor or a peer, which is
//! measured in turn in the same run.
//!
//! [`rows`] defines what a row measures, and [`figure`] how samples become a figure. [`peer`] has
//! the floor program and the runners of peers.

mod broadcast;
mod calls;
mod cards;
mod confined;
mod confined_rows;
mod dispatch;
mod figure;
mod guests;
mod hosts;
mod inline;
mod isolated;
mod lab;
mod life;
mod livelock;
mod netmap;
mod nic;
mod peer;
mod pipe;
mod ports;
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

use std::io::Write;

use anyhow::{Context, bail};

use self::figure::{COLUMNS, Figure, Sample, about_intervals};
use self::lab::Lab;
use self::rows::{Row, SUMMARIES};
use self::stages::Measured;
use control::table::Table;
use control::{Global, Result};

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
    /// Measure switches of several hosts: tunnels, EVPN, against the kernel's VXLAN and FRR
    Hosts(RowsArgs),
}

/// Which rows to measure, and how often.
#[derive(Clone, Debug, clap::Args)]
pub struct RowsArgs {
    /// Only the rows whose id begins with this; see --list
    #[arg(long, value_name = "ID")]
    row: Vec<String>,
    /// Repetitions; the median is reported
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    reps: u32,
    /// One short repetition: shows that everything runs; its figures mean little
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
    /// measured says so in its place.
    pub fn run(&self, global: &Global) -> Result {
        match self {
            Self::Switch(args) => args.run(&[rows::ROWS], global),
            Self::Netmap(args) => args.run(&[netmap::ROWS, nic::netmap::ROWS, cards::ROWS], global),
            Self::Guest(args) => {
                args.run(&[stacks_rows::ROWS, confined_rows::ROWS, dispatch::ROWS], global)
            }
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
        let reps = if self.quick { 1 } else { self.reps };
        let mut table = Table::new(&COLUMNS);
        let (mut explained, mut figures) = (String::new(), Vec::new());
        let mut show = |figure: &Figure, bar: &str| -> Result {
            if global.json {
                writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(figure)?)?;
            }
            explained += &format!("{}: {}\n", figure.id, figure.how);
            table.row(figure.cells(bar));
            Ok(())
        };
        for (i, row) in rows.iter().enumerate() {
            figures.push(measure(&lab, row, reps, &format!("[{}/{}]", i + 1, rows.len())));
            show(&figures[i], row.bar)?;
            for summary in SUMMARIES {
                if let Some(figure) = Figure::of_parts(summary, &figures) {
                    show(&figure, summary.bar)?;
                }
            }
        }
        if !global.json {
            let intervals = about_intervals(reps);
            write!(std::io::stdout().lock(), "{table}{intervals}\n{explained}")?;
        }
        self.show_stages(&lab.dispatch(), &figures, global)
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

fn list(rows: &[&Row]) -> Result {
    let mut table = Table::new(&["id", "unit", "peer", "bar", "what each core does"]);
    for row in rows {
        let cells = [row.id, row.unit, row.peer.name(), row.bar, row.how];
        table.row(cells.map(str::to_owned));
        for summary in SUMMARIES.iter().filter(|summary| summary.parts.last() == Some(&row.id)) {
            let first = rows.iter().find(|row| row.id == summary.parts[0]).unwrap_or(row);
            let how = format!("the worst, or the first, of {}", summary.parts.join(", "));
            let cells = [summary.id, first.unit, row.peer.name(), summary.bar, &how];
            table.row(cells.map(str::to_owned));
        }
    }
    write!(std::io::stdout().lock(), "{table}")?;
    Ok(())
}

/// Measures a row and its peer in turn, so that changes of the machine's speed affect both.
fn measure(lab: &Lab, row: &Row, reps: u32, progress: &str) -> Figure {
    let (mut ours, mut theirs) = (Sample::default(), Vec::<Sample>::new());
    for rep in 1..=reps {
        eprint!("\r\x1b[K{progress} {} {rep}/{reps}", row.id);
        ours.add((row.ours)(lab));
        for (peer, value) in row.peer.measure(lab).into_iter().enumerate() {
            if theirs.len() <= peer {
                theirs.push(Sample::default());
            }
            theirs[peer].add(value);
        }
        if ours.failure().is_some() {
            break;
        }
    }
    eprint!("\r\x1b[K");
    Figure::new(row, &ours, &theirs, &lab.notes())
}
