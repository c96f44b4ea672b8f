//! The table of all stages.

use anyhow::Result;
use client::table::Table;
use port::stamp::{Spent, Stage};
use serde_json::{Value, json};

use super::{Card, wake};
use crate::bench::stages::{self, Block, DATAGRAMS, Measured, RECEIVE, TRANSMIT};

/// A direction, its stages with their ticks, and its register accesses.
type Way<'c> = (&'static str, &'c [Ticks], f64);
/// A stage's name, and its ticks.
pub type Ticks = (&'static str, f64);

/// The stages of one card and size, in order.
#[derive(Debug)]
pub struct Column {
    /// The card and the payload's bytes.
    pub name: String,
    nic: &'static str,
    len: usize,
    pub transmit: Vec<Ticks>,
    pub receive: Vec<Ticks>,
    /// Register accesses of a datagram: the sender's and the receiver's.
    accesses: [f64; 2],
}

/// What all rows have measured, stage by stage.
#[derive(Debug)]
pub struct Report {
    pub columns: Vec<Column>,
    /// Ticks of a stamp, and ticks of a nanosecond.
    stamp: f64,
    rate: f64,
    /// Ticks of the kernel's wake-up: by a byte on a socket, and by an eventfd.
    wake: Option<[f64; 2]>,
}

/// The name of a stage in the table.
fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Outside => "outside",
        Stage::Application => "application",
        Stage::Stack => "TCP/IP",
        Stage::Driver => "driver",
        Stage::Kick => "kick",
        Stage::Gather | Stage::Deliver => "NIC model",
        Stage::Switch => "switch",
        Stage::Copy => "copy",
        Stage::Publish => "publish",
        Stage::WakeUp => "wake-up",
    }
}

impl Column {
    fn new(nic: &'static str, len: usize, blocks: &[Block], cost: f64) -> Self {
        let middle = stages::middle(blocks);
        let of = |way: fn(&Block) -> Spent, of: &[Stage]| {
            let ticks = |stage: &Stage| stages::ticks(middle.iter().map(way), *stage, cost);
            of.iter().map(|stage| (name(*stage), ticks(stage))).collect()
        };
        let datagrams = (middle.len() as f64 * f64::from(DATAGRAMS)).max(1.0);
        let accesses = |end: usize| middle.iter().map(|block| block.accesses[end]).sum::<u64>();
        Self {
            name: format!("{nic} {len}"),
            nic,
            len,
            transmit: of(|block| block.transmit, &TRANSMIT),
            receive: of(|block| block.receive, &RECEIVE),
            accesses: [0, 1].map(|end| accesses(end) as f64 / datagrams),
        }
    }

    fn ways(&self) -> [Way<'_>; 2] {
        [
            ("transmit", &self.transmit, self.accesses[0]),
            ("receive", &self.receive, self.accesses[1]),
        ]
    }
}

impl Report {
    /// The report of these measurements; `None` if there are none, or no stamps.
    pub fn of(measured: &[Measured]) -> Option<Self> {
        if !port::stamp::STAMPED || measured.is_empty() {
            return None;
        }
        let stamp = stages::cost_of_stamp();
        let column = |it: &Measured| Column::new(it.nic, it.len, &it.blocks, stamp);
        let columns = measured.iter().map(column).collect();
        Some(Self { columns, stamp, rate: wake::ticks_of_ns(), wake: wake::measure().ok() })
    }

    /// A table with a column for each card, and lines that explain it.
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            ">payload",
            "way",
            "stage",
            ">ring",
            ">e1000-csb",
            ">e1000",
            ">pcnet",
            ">one-access",
        ]);
        let mut sizes: Vec<usize> = self.columns.iter().map(|column| column.len).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for (len, way) in sizes.iter().flat_map(|len| [(*len, 0), (*len, 1)]) {
            let find =
                |card: Card| self.columns.iter().find(|it| (it.nic, it.len) == (card.name(), len));
            let ways = Card::ALL.map(|card| find(card).map(|column| column.ways()[way]));
            let Some((direction, stages, _)) = ways.into_iter().flatten().next() else { continue };
            let mut row = |stage: &str, of: &dyn Fn(&Way<'_>) -> String| {
                let cells = ways.each_ref().map(|way| way.as_ref().map_or_else(|| "-".into(), of));
                let [a, b, c, d, e] = cells;
                table.row([len.to_string(), direction.into(), stage.into(), a, b, c, d, e]);
            };
            for (at, (stage, _)) in stages.iter().enumerate() {
                row(stage, &|(_, stages, _)| format!("{:.0}", stages[at].1));
            }
            row("all", &|(_, stages, _)| format!("{:.0}", stages.iter().map(|s| s.1).sum::<f64>()));
            row("(accesses)", &|(_, _, accesses)| format!("{accesses:.2}"));
        }
        format!("{table}Ticks of a datagram, and register accesses. {}\n", self.explanation())
    }

    /// What the figures mean, in a few lines.
    pub fn explanation(&self) -> String {
        let Self { stamp, rate, .. } = self;
        let wake = match self.wake {
            Some([socket, eventfd]) => format!(
                "A sleeper on the same core runs {socket:.0} ticks after a byte on its socket, {eventfd:.0} \
                 after its eventfd (not in the table)."
            ),
            None => "The kernel's wake-up could not be measured.".to_owned(),
        };
        format!(
            "A tick is {:.3} ns. A stamp costs {stamp:.1} ticks, which are subtracted. The counter does not wait for \
             earlier instructions, so neighbours share some ticks.\nEach register access is a trap in a virtual machine \
             (1 to 10 us); here it is a call, in `kick` or `wake-up`. {wake}",
            1.0 / rate
        )
    }

    /// One JSON object for each stage, in the form of a row's figure.
    pub fn figures(&self) -> Vec<Value> {
        let mut all = Vec::new();
        let how = self.explanation();
        for column in &self.columns {
            for (way, stages, _) in column.ways() {
                for (stage, ticks) in stages {
                    all.push(json!({
                        "id": format!("guest.dispatch.{}.{}.{way}.{}", column.nic, column.len,
                            stage.replace(' ', "-")),
                        "value": ticks, "unit": "ticks", "median_of": 1, "low": null, "high": null,
                        "peer": "-", "peer_value": null, "ratio": null,
                        "profile": client::PROFILE, "how": how,
                    }));
                }
            }
        }
        all
    }
}

/// Fails if there is nothing to report.
pub fn require(report: Option<&Report>) -> Result<&Report> {
    report.ok_or_else(|| {
        anyhow::anyhow!(
            "the stages are not told apart; build with: cargo build --release --features stamps"
        )
    })
}
