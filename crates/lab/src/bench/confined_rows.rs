//! The rows of `toklat bench guest` about confined guests.

use anyhow::Result;

use super::bar::Bar;
use super::lab::Lab;
use super::peer::Peer;
use super::rows::{Better, Row, less};
use super::{confined, livelock, stacks_linux, taps};

const SCALE: &str = "confined httpd guests; a light guest in this process on core 0 has 32 connections to each, \
    which ask for 1 KiB as soon as they have an answer; pages a second of all parties: guests, data process, generator. \
    Peer: one guest";
const HTTP: &str = "one confined guest has 16 connections to another; pages a second of all parties: both guests and \
    the data process. Peer: nginx and wrk, a second of both";
const BATCHING: &str = "as guest.scale; interrupts (kicks of guests by the switch) for each frame that guests receive. \
    Peer: one guest";

const IPERF3: &str = "iperf3 in a namespace behind a tap, and a confined guest that is its server, at one switch; Gb/s \
    for each second of all parties: both ends and the data process. Peer: an iperf3 behind another tap is the server";
const LOSS: &str = "one confined guest sends to another, offloads, frames lost at random in both directions; Gb/s for \
    each second of all parties. Peer: iperf3 to iperf3 behind taps, the same losses at the same kind of switch";

/// A row in which more is better.
const fn row(
    (id, unit): (&'static str, &'static str),
    bar: Bar,
    how: &'static str,
    ours: fn(&Lab) -> Result<f64>,
    peer: Peer,
) -> Row {
    Row { id, unit, bar, better: Better::More, how, ours, peer }
}

const fn iperf3<const BACK: bool>(id: &'static str) -> Row {
    let linux = Peer::Toklat("Linux", |lab| taps::iperf3_of_linux(lab, BACK));
    row((id, "Gb/s"), Bar::ratio(0.9), IPERF3, |lab| taps::iperf3_with_guest(lab, BACK), linux)
}

/// The row with this many lost frames in a million.
const fn lossy<const PPM: u32>(id: &'static str) -> Row {
    let linux = Peer::Toklat("Linux", |lab| taps::lossy_linux(lab, PPM));
    row((id, "Gb/s"), Bar::ratio(1.0), LOSS, |lab| taps::lossy_guests(lab, PPM), linux)
}

const fn scale<const COUNT: u32>(id: &'static str, bar: Bar) -> Row {
    let one = Peer::Toklat("one guest", |lab| confined::scale(lab, 1));
    row((id, "pages/s"), bar, SCALE, |lab| confined::scale(lab, COUNT), one)
}

/// The row with pages of this many bytes.
const fn http<const LEN: usize>(id: &'static str, ours: fn(&Lab) -> Result<f64>) -> Row {
    let nginx = Peer::Toklat("nginx", |lab| stacks_linux::pages_of_both(lab, LEN));
    row((id, "pages/s"), Bar::ratio(3.0), HTTP, ours, nginx)
}

/// The row for this many guests.
const fn batching<const COUNT: u32>(id: &'static str) -> Row {
    let one = Peer::Toklat("one guest", |lab| confined::batching(lab, 1));
    less(id, "kicks/frame", Bar::NONE, BATCHING, |lab| confined::batching(lab, COUNT), one)
}

/// All rows.
pub const ROWS: &[Row] = &[
    Row {
        id: "guest.tcp.isolated",
        unit: "Gb/s",
        bar: Bar::ratio(1.0),
        better: Better::More,
        how: "one confined guest sends to another, copies into and out of both applications; bytes at the receiver's \
              port, for each second of all parties: both guests and the data process. Peer: both ends of iperf3 on core 0",
        ours: confined::bulk,
        peer: Peer::Toklat("iperf3", stacks_linux::offloads),
    },
    http::<1024>("guest.http.isolated.1k", |lab| confined::pages(lab, "/1k")),
    http::<4096>("guest.http.isolated.4k", |lab| confined::pages(lab, "/4k")),
    lossy::<1_000>("guest.tcp.loss.1000.linux"),
    lossy::<10_000>("guest.tcp.loss.10000.linux"),
    iperf3::<false>("guest.iperf3"),
    iperf3::<true>("guest.iperf3.back"),
    Row {
        id: "guest.http.linux",
        unit: "pages/s",
        bar: Bar::ratio(1.0),
        better: Better::More,
        how: "wrk behind a tap has 16 connections to a confined guest, for pages of 1 KiB; pages for each second of all \
              parties: wrk, guest, data process. Peer: nginx behind another tap of the switch",
        ours: taps::pages_of_guest,
        peer: Peer::Toklat("nginx", taps::pages_of_nginx),
    },
    less(
        "guest.start",
        "ms",
        Bar::most(2.5),
        "from the request for a guest's port to its report that it serves behind all walls",
        confined::start_one,
        Peer::None,
    ),
    less(
        "guest.start.1000",
        "s",
        Bar::most(3.0),
        "from the command until 1,000 confined guests serve",
        confined::start_thousand,
        Peer::None,
    ),
    less(
        "guest.idle",
        "% of a core",
        Bar::most(0.0),
        "1,000 confined httpd guests without requests, their manager and the data process",
        confined::idle,
        Peer::None,
    ),
    less(
        "guest.memory",
        "KiB",
        Bar::most(256.0),
        "memory of one of 1,000 idle httpd guests, shared pages by their share (Pss)",
        confined::memory,
        Peer::None,
    ),
    Row {
        id: "guest.scale.1",
        unit: "pages/s",
        bar: Bar::NONE,
        better: Better::More,
        how: SCALE,
        ours: |lab| confined::scale(lab, 1),
        peer: Peer::None,
    },
    scale::<10>("guest.scale.10", Bar::NONE),
    scale::<100>("guest.scale.100", Bar::NONE),
    scale::<1000>("guest.scale.1000", Bar::ratio(0.3)),
    Row {
        id: "guest.scale.process",
        unit: "pages/s",
        bar: Bar::ratio(0.5),
        better: Better::More,
        how: "the same, with 64 guests in one process. Peer: one guest",
        ours: |lab| confined::scale_in_one(lab, 64),
        peer: Peer::Toklat("one guest", |lab| confined::scale(lab, 1)),
    },
    Row {
        id: "guest.fair",
        unit: "Jain",
        bar: Bar::least(0.95),
        better: Better::More,
        how: "eight confined guests send at once, one by 16 connections, the others by one; receivers in one thread on \
              core 0; Jain's index of what each has sent",
        ours: confined::fair,
        peer: Peer::None,
    },
    Row {
        id: "guest.livelock",
        unit: "M/s",
        bar: Bar::ratio(0.9),
        better: Better::More,
        how: "a generator on core 0 sends datagrams of 64 bytes to a confined echo as fast as the switch takes them; \
              answers for each second of the guest's own. Peer: its peak, with 64 datagrams under way",
        ours: livelock::flooded,
        peer: Peer::Toklat("its peak", livelock::peak),
    },
    batching::<10>("guest.batching.10"),
    batching::<100>("guest.batching.100"),
];
