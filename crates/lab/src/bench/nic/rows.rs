//! Rows of `toklat bench nic`: a model alone, and the paper's table over trap costs.

use std::time::Duration;

use anyhow::{Context, Result};
use driver::e1000::Doorbells;
use nic::csb::Version;
use nic::e1000::Chip;

use super::cards;
use super::guest;
use super::machine::{self, Outcome, Variant, Work};
use super::model;
use super::one_access;
use super::pcnet::{self, Technique};
use crate::bench::bar::Bar;
use crate::bench::lab::Lab;
use crate::bench::peer::Peer;
use crate::bench::rows::{Better, Row, less, more};

const MODEL: &str = "core 0: driver (polls, rings of 256) and model in one thread, 64 frames at a time; \
    gather, complete and settle are timed, or deliver and settle";
const DRIVEN: &str = "core 0: 82540EM driver, a frame at a time, interrupts by its pin; core 1: the \
    model and its worker, which sleeps when there was nothing to do for 50 us and is woken in no time. Each register \
    access, and each interrupt, costs its driver that much more";

/// Frames sent per second, each with a doorbell: Mpps.
fn tx(lab: &Lab, variant: Variant, trap: Duration) -> Result<Outcome> {
    let time = lab.duration();
    let outcome = machine::run(
        variant,
        Work::Sink,
        trap,
        Box::new(move |driver, raised| guest::send(driver, raised, guest::SHORT, time)),
    )?;
    Ok(Outcome { value: outcome.value / 1e6, ..outcome })
}

/// Frames received per second, which arrive one at a time: Mpps.
fn rx(lab: &Lab, variant: Variant, trap: Duration) -> Result<Outcome> {
    let (time, work) = (lab.duration(), Work::Source(guest::SHORT as usize));
    let outcome = machine::run(
        variant,
        work,
        trap,
        Box::new(move |driver, raised| guest::receive(driver, raised, time)),
    )?;
    Ok(Outcome { value: outcome.value / 1e6, ..outcome })
}

/// Round trips to the switch and back, one at a time: the median in us.
fn trip(lab: &Lab, variant: Variant, trap: Duration) -> Result<Outcome> {
    let (time, mut late) = (lab.duration(), 0.0);
    let outcome = machine::run(
        variant,
        Work::Echo,
        trap,
        Box::new(|driver, raised| {
            let times = guest::round_trips(driver, raised, time)?;
            late = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
            times.get(times.len() / 2).copied().context("no frame came back")
        }),
    )?;
    Ok(Outcome { p99: late, ..outcome })
}

/// Notes the cost of a figure.
fn note(lab: &Lab, outcome: &Outcome) {
    let Outcome { reads, writes, interrupts, model_ns, p99, .. } = outcome;
    let late = if *p99 > 0.0 { format!("p99 {p99:.2} us; ") } else { String::new() };
    let traps = reads + writes;
    lab.note(
        "traps",
        format!(
            "{late}a frame: {traps:.3} traps ({reads:.3} reads, {writes:.3} writes), \
             {interrupts:.3} interrupts, {model_ns:.0} ns of model"
        ),
    );
}

/// A cell of the paper's table.
macro_rules! cell {
    ($way:ident, $name:literal, $cost:literal, $nanos:literal, $variant:expr, $peer:expr) => {
        Row {
            id: concat!("nic.table.", $cost, ".", stringify!($way), ".", $name),
            unit: unit(stringify!($way)),
            bar: Bar::NONE,
            better: better(stringify!($way)),
            how: DRIVEN,
            ours: |lab| {
                let outcome = $way(lab, $variant, Duration::from_nanos($nanos))?;
                note(lab, &outcome);
                Ok(outcome.value)
            },
            peer: $peer,
        }
    };
}

/// The table's rows. Each is compared with a driver without means to need fewer traps.
macro_rules! table {
    ($($way:ident $name:literal $variant:expr),* $(,)?) => {
        &[$(
            table!(row $way, $name, "0.1us", 100, $variant),
            table!(row $way, $name, "1us", 1_000, $variant),
            table!(row $way, $name, "4us", 4_000, $variant),
            table!(row $way, $name, "10us", 10_000, $variant),
        )*]
    };
    (row $way:ident, "baseline", $cost:literal, $nanos:literal, $variant:expr) => {
        cell!($way, "baseline", $cost, $nanos, $variant, Peer::None)
    };
    (row $way:ident, $name:literal, $cost:literal, $nanos:literal, $variant:expr) => {
        cell!($way, $name, $cost, $nanos, $variant, Peer::Toklat("baseline", |lab| {
            Ok($way(lab, Variant::Baseline, Duration::from_nanos($nanos))?.value)
        }))
    };
}

const fn is_trip(way: &str) -> bool {
    way.len() > 2
}

const fn unit(way: &str) -> &'static str {
    if is_trip(way) { "us" } else { "Mpps" }
}

const fn better(way: &str) -> Better {
    if is_trip(way) { Better::Less } else { Better::More }
}

/// The paper's table, by trap cost.
pub const TABLE: &[Row] = table! {
    tx "baseline" Variant::Baseline,
    tx "moderation" Variant::Moderation,
    tx "combining" Variant::Combining,
    tx "both" Variant::Both,
    tx "held" Variant::Held,
    tx "csb1" Variant::Block(Version::One),
    tx "csb2" Variant::Block(Version::Two),
    tx "doorbells" Variant::SharedDoorbells,
    rx "baseline" Variant::Baseline,
    rx "moderation" Variant::Moderation,
    rx "csb1" Variant::Block(Version::One),
    rx "csb2" Variant::Block(Version::Two),
    rx "doorbells" Variant::SharedDoorbells,
    trip "baseline" Variant::Baseline,
    trip "moderation" Variant::Moderation,
    trip "both" Variant::Both,
    trip "csb1" Variant::Prompt(Version::One),
    trip "csb2" Variant::Prompt(Version::Two),
    trip "doorbells" Variant::SharedDoorbells,
};

/// Rows of a model alone.
macro_rules! alone {
    ($($id:literal $way:ident $chip:expr, $doorbells:expr, $len:literal);* $(;)?) => {
        &[$(less($id, "ns/frame", Bar::most(60.0), MODEL, |lab| {
            model::$way($chip, $doorbells, $len, lab.duration())
        }, Peer::None)),*]
    };
}

/// A model alone.
pub const ALONE: &[Row] = alone! {
    "nic.model.64.tx" to_switch Chip::Em82540, Doorbells::Each, 60;
    "nic.model.64.rx" from_switch Chip::Em82540, Doorbells::Each, 60;
    "nic.model.64.tx.csb" to_switch Chip::Em82540, Doorbells::Block(Version::Two), 60;
    "nic.model.64.rx.csb" from_switch Chip::Em82540, Doorbells::Block(Version::Two), 60;
    "nic.model.64.tx.82574l" to_switch Chip::L82574, Doorbells::Each, 60;
    "nic.model.64.rx.82574l" from_switch Chip::L82574, Doorbells::Each, 60;
};

const COUNTED: &str = "a driver as pcnet32 in one thread with its model: every millisecond a burst of 64 \
    frames, one a microsecond, looked at at once, interrupted as soon as it is sent; the worker sleeps when \
    nothing came for 50 us; accesses are counted, whatever they take";

/// Register accesses per frame, compared with a stock driver.
const fn counted(id: &'static str, peer: Peer, ours: fn(&Lab) -> Result<f64>) -> Row {
    less(id, "1/frame", Bar::NONE, COUNTED, ours, peer)
}

/// A driver without means to need fewer accesses.
const STOCK: Peer = Peer::Toklat("stock", |_| Ok(pcnet::accesses(Technique::Stock)?.0));

/// Register accesses per frame sent.
fn accesses(lab: &Lab, way: Technique) -> Result<f64> {
    let (accesses, words) = pcnet::accesses(way)?;
    lab.note("traps", words);
    if matches!(way, Technique::Block(_)) {
        let why =
            "its number follows from the scenario: between two frames of a burst, the worker polls";
        lab.note("scenario", why.into());
    }
    Ok(accesses)
}

/// The template: its model alone, and its driver's accesses.
pub const ONE_ACCESS: &[Row] = &[
    less(
        "nic.model.64.tx.one-access",
        "ns/frame",
        Bar::NONE,
        MODEL,
        |lab| one_access::to_switch(60, lab.duration()),
        Peer::None,
    ),
    less(
        "nic.model.64.rx.one-access",
        "ns/frame",
        Bar::NONE,
        MODEL,
        |lab| one_access::from_switch(60, lab.duration()),
        Peer::None,
    ),
    counted("nic.one-access.accesses.tx", STOCK, |_| Ok(one_access::accesses()?.0)),
    counted("nic.one-access.accesses.rx", Peer::None, |_| Ok(one_access::accesses()?.1)),
];

/// PCnet: its model alone, and its driver's accesses.
pub const PCNET: &[Row] = &[
    less(
        "nic.model.64.tx.pcnet",
        "ns/frame",
        Bar::most(60.0),
        MODEL,
        |lab| pcnet::to_switch(60, lab.duration()),
        Peer::None,
    ),
    less(
        "nic.model.64.rx.pcnet",
        "ns/frame",
        Bar::most(60.0),
        MODEL,
        |lab| pcnet::from_switch(60, lab.duration()),
        Peer::None,
    ),
    counted("nic.pcnet.accesses.stock", Peer::None, |lab| accesses(lab, Technique::Stock)),
    counted("nic.pcnet.accesses.held", STOCK, |lab| accesses(lab, Technique::Held)),
    counted("nic.pcnet.accesses.csb1", STOCK, |lab| accesses(lab, Technique::Block(Version::One))),
    counted("nic.pcnet.accesses.csb2", STOCK, |lab| accesses(lab, Technique::Block(Version::Two))),
];

const CARDS: &str = "core 0: two 82540EM drivers in one thread, by vfio-user, which send (a frame at a time) \
    and receive, each looking when it is interrupted; core 1: the switch's worker, polling";
/// With a status block, where no side waits for a notification.
const BLOCKS: &str = "core 0: two 82540EM drivers in one thread, by vfio-user, with a status block, which send \
    (a frame at a time) and receive; core 1: the switch's worker; all parties poll: no driver waits for an \
    interrupt, no doorbell is needed. The baseline's drivers are interrupted";

/// Mpps, by vfio-user.
fn card(lab: &Lab, variant: Variant) -> Result<f64> {
    let (rate, words) = cards::rate(lab, variant, guest::SHORT as usize)?;
    lab.note("traps", words);
    Ok(rate / 1e6)
}

/// Gb/s over vfio-user, of frames of 1,500 bytes.
fn card_gbits(lab: &Lab, variant: Variant) -> Result<f64> {
    let (rate, words) = cards::rate(lab, variant, 1500)?;
    lab.note("traps", words);
    Ok(rate * 1500.0 * 8.0 / 1e9)
}

/// A driver without means to need fewer traps.
const PLAIN: Peer = Peer::Toklat("baseline", |lab| {
    Ok(cards::rate(lab, Variant::Baseline, guest::SHORT as usize)?.0 / 1e6)
});

const fn carded(id: &'static str, bar: Bar, peer: Peer, ours: fn(&Lab) -> Result<f64>) -> Row {
    more(id, bar, CARDS, ours, peer)
}

/// Like [`carded`], for drivers with a status block.
const fn by_block(id: &'static str, bar: Bar, peer: Peer, ours: fn(&Lab) -> Result<f64>) -> Row {
    more(id, bar, BLOCKS, ours, peer)
}

/// A round trip over vfio-user, in us.
fn card_trip(lab: &Lab, variant: Variant) -> Result<f64> {
    let (median, late) = cards::trips(lab, variant)?;
    lab.note("p99", format!("p99 {late:.2} us"));
    Ok(median)
}

/// The same without moderation, combining or block.
const PLAIN_TRIP: Peer =
    Peer::Toklat("baseline", |lab| Ok(cards::trips(lab, Variant::Baseline)?.0));

/// About a microsecond in the register ITR, in units of 256 ns.
const A_MICROSECOND: u16 = 4;

/// Rows over vfio-user: real traps, but no virtual machine.
pub const BY_SOCKET: &[Row] = &[
    carded("nic.card.baseline", Bar::NONE, Peer::None, |lab| card(lab, Variant::Baseline)),
    carded("nic.card.moderation", Bar::NONE, PLAIN, |lab| card(lab, Variant::Moderation)),
    carded("nic.card.combining", Bar::NONE, PLAIN, |lab| card(lab, Variant::Combining)),
    carded("nic.card.held", Bar::NONE, PLAIN, |lab| card(lab, Variant::Held)),
    carded("nic.itr.0", Bar::NONE, PLAIN, |lab| card(lab, Variant::Interval(0))),
    carded("nic.itr.20", Bar::NONE, PLAIN, |lab| card(lab, Variant::Interval(20 * A_MICROSECOND))),
    carded("nic.itr.100", Bar::NONE, PLAIN, |lab| {
        card(lab, Variant::Interval(100 * A_MICROSECOND))
    }),
    carded("nic.itr.500", Bar::NONE, PLAIN, |lab| {
        card(lab, Variant::Interval(500 * A_MICROSECOND))
    }),
    carded("nic.combine.gain", Bar::ratio(10.0), PLAIN, |lab| card(lab, Variant::Both)),
    by_block("nic.card.csb1", Bar::NONE, PLAIN, |lab| card(lab, Variant::Block(Version::One))),
    by_block("nic.csb.gain", Bar::ratio(20.0), PLAIN, |lab| {
        card(lab, Variant::Block(Version::Two))
    }),
    by_block("nic.csb.64", Bar::least(5.0), Peer::None, |lab| {
        card(lab, Variant::Block(Version::Two))
    }),
    Row {
        unit: "Gb/s",
        ..by_block("nic.csb.1500", Bar::least(25.0), Peer::None, |lab| {
            card_gbits(lab, Variant::Block(Version::Two))
        })
    },
    less(
        "nic.card.trip.baseline",
        "us",
        Bar::NONE,
        CARDS,
        |lab| card_trip(lab, Variant::Baseline),
        Peer::None,
    ),
    less(
        "nic.card.trip.csb",
        "us",
        Bar::NONE,
        BLOCKS,
        |lab| card_trip(lab, Variant::Prompt(Version::Two)),
        PLAIN_TRIP,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_rows_of_cards_with_a_block_say_that_all_parties_poll() {
        let says = |row: &&Row| row.how.contains("all parties poll");
        let of_blocks = |row: &&Row| row.id.contains("csb");
        let polled: Vec<_> = BY_SOCKET.iter().filter(says).map(|row| row.id).collect();
        let blocks: Vec<_> = BY_SOCKET.iter().filter(of_blocks).map(|row| row.id).collect();
        assert_eq!((polled, blocks.len()), (blocks.clone(), 5));
    }
}
