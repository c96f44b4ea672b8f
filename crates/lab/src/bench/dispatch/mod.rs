//! Packet dispatch: what a UDP datagram costs from one guest's application to another's, stage by
//! stage (Figure 2 of Denali, OSDI 2002).
//!
//! ```text
//!   application -> TCP/IP -> driver -> kick -> NIC model -> switch                      transmit
//!     NIC model -> copy -> publish -> wake-up -> driver -> TCP/IP -> application        receive
//! ```
//!
//! Both guests and the switch run in one thread, a datagram at a time. [`port::stamp`] separates
//! the stages, in programs that are built with the feature `stamps`. Others measure the sum.

mod chart;
pub(super) mod nics;
mod report;
mod wake;
mod world;

pub use self::report::{Report, require};

use anyhow::Result;

use super::bar::Bar;
use super::lab::Lab;
use super::peer::Peer;
use super::rows::{Row, less};
use super::stages::{self, Measured};
use super::traffic::on_core;

/// The NICs, in the order of the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Card {
    /// A port of shared rings.
    Ring,
    /// An 82540EM with a shared status block.
    Block,
    /// An 82540EM with a stock driver.
    E1000,
    /// An Am79C970A with a stock driver.
    Pcnet,
    /// Denali's own NIC: one register access for each frame.
    OneAccess,
}

impl Card {
    /// All of them, in order.
    const ALL: [Self; 5] = [Self::Ring, Self::Block, Self::E1000, Self::Pcnet, Self::OneAccess];

    /// The card's name in the rows' names and in the chart.
    const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Block => "e1000-csb",
            Self::E1000 => "e1000",
            Self::Pcnet => "pcnet",
            Self::OneAccess => "one-access",
        }
    }
}

const HOW: &str = "core 0: a guest sends a UDP datagram, the switch forwards it, another guest receives it, in \
    one thread; ticks of the time stamp counter, the receiver asleep before each, without the kernel's wake-up";

macro_rules! row {
    ($id:literal, $card:ident, $len:literal) => {
        less($id, "ticks", Bar::NONE, HOW, |lab| measure(lab, Card::$card, $len), Peer::None)
    };
}

/// The rows of this measurement.
pub const ROWS: &[Row] = &[
    row!("guest.dispatch.ring.100", Ring, 100),
    row!("guest.dispatch.ring.1400", Ring, 1400),
    row!("guest.dispatch.e1000-csb.100", Block, 100),
    row!("guest.dispatch.e1000-csb.1400", Block, 1400),
    row!("guest.dispatch.e1000.100", E1000, 100),
    row!("guest.dispatch.e1000.1400", E1000, 1400),
    row!("guest.dispatch.pcnet.100", Pcnet, 100),
    row!("guest.dispatch.pcnet.1400", Pcnet, 1400),
    row!("guest.dispatch.one-access.100", OneAccess, 100),
    row!("guest.dispatch.one-access.1400", OneAccess, 1400),
];

/// Draws the report as SVG.
pub fn draw(report: &Report) -> String {
    chart::draw(&report.columns, &report.explanation())
}

/// Ticks of a datagram; the lab keeps what its stages have taken.
fn measure(lab: &Lab, card: Card, len: usize) -> Result<f64> {
    let time = lab.duration();
    let blocks = on_core(0, move || match card {
        Card::Ring => world::run(&nics::Rings, len, time),
        Card::Block => world::run(&nics::E1000 { block: true }, len, time),
        Card::E1000 => world::run(&nics::E1000 { block: false }, len, time),
        Card::Pcnet => world::run(&nics::Pcnet, len, time),
        Card::OneAccess => world::run(&nics::OneAccess, len, time),
    })?;
    let all = stages::total(&blocks);
    if !port::stamp::STAMPED {
        let how = "for its stages: cargo run --release --features stamps -- bench guest --row guest.dispatch";
        lab.note("dispatch", how.into());
    }
    lab.keep_dispatch(Measured { nic: card.name(), len, blocks });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use port::stamp::{Spent, Stage};

    use super::*;

    /// Every NIC carries datagrams, and where there are stamps, each stage has its own.
    #[test]
    fn every_nic_has_all_stages() {
        let lab = Lab::new(0.01).unwrap();
        for row in ROWS {
            let ticks = (row.ours)(&lab).unwrap_or_else(|error| panic!("{}: {error:#}", row.id));
            assert!(ticks > 0.0, "{}", row.id);
        }
        let measured = lab.dispatch();
        let report = Report::of(&measured);
        assert_eq!(report.is_some(), port::stamp::STAMPED);
        let Some(report) = report else { return };
        for Measured { nic, len, blocks } in &measured {
            let block = &blocks[0];
            let passed = |spent: &Spent, stage: Stage| spent.stamps[stage as usize] > 0;
            for stage in stages::TRANSMIT {
                assert!(passed(&block.transmit, stage), "{nic} {len} transmits: {stage:?}");
            }
            // Owners of rings have no interrupts.
            let interrupted = |stage: &Stage| *stage != Stage::WakeUp || *nic != Card::Ring.name();
            for stage in stages::RECEIVE.into_iter().filter(interrupted) {
                assert!(passed(&block.receive, stage), "{nic} {len} receives: {stage:?}");
            }
        }
        let count = report.columns[0].transmit.len() + report.columns[0].receive.len();
        assert_eq!(draw(&report).matches("<title>ring 100 ").count(), count);
        assert_eq!(report.figures().len(), count * ROWS.len());
    }
}
