//! The rows of `toklat bench switch`, and the bars that they must clear.

use anyhow::Result;

use super::bar::Bar;
use super::lab::Lab;
use super::peer::Peer;
use super::{broadcast, inline, isolated, life, pipe, ports};

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is better.
    More,
    /// Less is better.
    Less,
}

impl Better {
    /// One figure relative to another, inverted where less is better: more is better.
    pub fn gain(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Self::More => ours / theirs,
            Self::Less => theirs / ours,
        }
    }
}

/// A figure to be measured.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub id: &'static str,
    /// The unit of the row's value and of its peer's value.
    pub unit: &'static str,
    /// The bar that the figure must clear.
    pub bar: Bar,
    /// Which way is better.
    pub better: Better,
    /// The work of each core.
    pub how: &'static str,
    /// Measures our value once.
    pub ours: fn(&Lab) -> Result<f64>,
    /// The peer that our value is compared with.
    pub peer: Peer,
}

const ISOLATED: &str = "core 0: generator and sink in one thread of one process, ports isolated; \
    core 1: the switch's worker, polling";
const ISOLATED_TOUCH: &str = "core 0: generator (writes every byte) and sink (compares every byte, as \
    the floor's does) in one thread; core 1: the switch's worker, polling";
const BESIDE_PEER: &str = "core 0: generator and sink in one thread of one process; core 1: the \
    switch's worker, polling. Peer: generator and sink in one process on core 0, its switch on core 1, \
    frames of both directions counted";
/// The floor of traffic to many ports; [`ports::uniform_beside_floor`] notes its cost with two.
const UNIFORM_FLOOR: &[&str] = &["scatter", "ports=1024", "addresses=8000"];
const INLINE: &str = "core 0: generator, switch and sink in one thread; core 1: nothing";

/// A row in millions of frames per second, of which more is better.
pub const fn more(
    id: &'static str,
    bar: Bar,
    how: &'static str,
    ours: fn(&Lab) -> Result<f64>,
    peer: Peer,
) -> Row {
    Row { id, unit: "Mpps", bar, better: Better::More, how, ours, peer }
}

/// A row of which less is better.
pub const fn less(
    id: &'static str,
    unit: &'static str,
    bar: Bar,
    how: &'static str,
    ours: fn(&Lab) -> Result<f64>,
    peer: Peer,
) -> Row {
    Row { id, unit, bar, better: Better::Less, how, ours, peer }
}

/// A row that summarizes several others in one line, after the last of them.
#[derive(Debug)]
pub struct Summary {
    /// The row's name, which is the prefix of its parts' names.
    pub id: &'static str,
    /// The row's parts. It shows the one with the lowest ratio, or the first if they have no
    /// ratios. It misses its bar if one of them does.
    pub parts: &'static [&'static str],
}

/// All summaries.
pub const SUMMARIES: &[Summary] = &[
    Summary {
        id: "switch.broadcast",
        parts: &["switch.broadcast.4", "switch.broadcast.64", "switch.broadcast.1024"],
    },
    Summary { id: "switch.idle", parts: &["switch.idle.memory", "switch.idle.cpu"] },
];

/// All rows.
pub const ROWS: &[Row] = &[
    more(
        "switch.unicast.64",
        Bar::ratio(0.7),
        ISOLATED,
        |lab| isolated::throughput(lab, 64, false),
        Peer::Floor(&["isolated", "frame=64"]),
    ),
    more(
        "switch.unicast.64.touch",
        Bar::ratio(0.7),
        ISOLATED_TOUCH,
        |lab| isolated::throughput(lab, 64, true),
        Peer::Floor(&["isolated", "frame=64", "touch=1"]),
    ),
    more(
        "switch.unicast.64.ovs",
        Bar::ratio(3.5),
        BESIDE_PEER,
        |lab| isolated::throughput(lab, 64, false),
        Peer::Runner("ovs", "64"),
    ),
    more(
        "switch.unicast.64.testpmd",
        Bar::ratio(2.4),
        BESIDE_PEER,
        |lab| isolated::throughput(lab, 64, false),
        Peer::Runner("testpmd", "64"),
    ),
    more(
        "switch.unicast.1500",
        Bar::ratio(0.75),
        ISOLATED,
        |lab| isolated::throughput(lab, 1500, false),
        Peer::Floor(&["isolated", "frame=1500"]),
    ),
    more(
        "switch.unicast.1500.touch",
        Bar::ratio(0.75),
        ISOLATED_TOUCH,
        |lab| isolated::throughput(lab, 1500, true),
        Peer::Floor(&["isolated", "frame=1500", "touch=1"]),
    ),
    more(
        "switch.unicast.1500.ovs",
        Bar::ratio(3.0),
        BESIDE_PEER,
        |lab| isolated::throughput(lab, 1500, false),
        Peer::Runner("ovs", "1500"),
    ),
    more(
        "switch.inline.64",
        Bar::ratio(0.5),
        INLINE,
        |lab| inline::throughput(lab, 64),
        Peer::Floor(&["inline", "frame=64"]),
    ),
    more(
        "switch.inline.1500",
        Bar::ratio(0.75),
        INLINE,
        |lab| inline::throughput(lab, 1500),
        Peer::Floor(&["inline", "frame=1500"]),
    ),
    less(
        "switch.limited.64",
        "ns/frame",
        Bar::beyond(5.0),
        "as switch.inline.64, with both ports limited in both directions, in bytes and frames, by more than there is. Peer: \
         without limits",
        inline::limited,
        Peer::Toklat("no limits", inline::plain),
    ),
    less(
        "switch.sampled.64",
        "ns/frame",
        Bar::beyond(1.0),
        "as switch.inline.64, with one in 10,000 frames sampled for sFlow. Peer: without",
        inline::sampled,
        Peer::Toklat("no sampling", inline::plain),
    ),
    more(
        "switch.pipe.64",
        Bar::ratio(0.6),
        "core 0: consumer, reads lengths; core 1: producer, writes slots; twin rings",
        pipe::throughput,
        Peer::Floor(&["twin", "frame=64"]),
    ),
    less(
        "switch.ports.idle",
        "ns/frame",
        Bar::ratio(0.87),
        "core 0: generator and sink in one thread, and 1,022 open ports that are idle; core 1: the \
         switch's worker, polling. Peer: without the idle ports",
        |lab| ports::beside_idle(lab, 1022),
        Peer::Toklat("2 ports", |lab| ports::beside_idle(lab, 0)),
    ),
    less(
        "switch.ports.uniform",
        "ns/frame",
        Bar::ratio(0.5),
        "core 0: one port sends to 1,024 ports and 8,000 addresses at random; core 1: the switch's \
         worker, whose non-empty passes are timed. Peer: to 2 ports, 2 addresses, at random, too",
        |lab| ports::uniform(lab, 1024, 8000),
        Peer::Toklat("2 ports", |lab| ports::uniform(lab, 2, 2)),
    ),
    less(
        "switch.ports.uniform.pair",
        "ns/frame",
        Bar::NONE,
        "as switch.ports.uniform. Peer: an ordinary pair, one port that sends to one other, one address, \
         timed alike",
        |lab| ports::uniform(lab, 1024, 8000),
        Peer::Toklat("a pair", |lab| ports::uniform(lab, 1, 1)),
    ),
    less(
        "switch.ports.uniform.floor",
        "ns/frame",
        Bar::NONE,
        "as switch.ports.uniform. Peer: a C program that does no more than it must",
        ports::uniform_beside_floor,
        Peer::Floor(UNIFORM_FLOOR),
    ),
    less(
        "switch.broadcast.4",
        "ns/copy",
        Bar::ratio(0.91),
        "core 0: bursts of 32 broadcasts, inline; the sender's turns are timed, idle ports are not looked \
         at. Peer: the same frames sent to each port",
        |lab| broadcast::flood(lab, 4),
        Peer::Toklat("unicast", |lab| broadcast::unicast(lab, 4)),
    ),
    less(
        "switch.broadcast.64",
        "ns/copy",
        Bar::ratio(0.91),
        "as switch.broadcast.4",
        |lab| broadcast::flood(lab, 64),
        Peer::Toklat("unicast", |lab| broadcast::unicast(lab, 64)),
    ),
    less(
        "switch.broadcast.1024",
        "ns/copy",
        Bar::ratio(0.91),
        "as switch.broadcast.4",
        |lab| broadcast::flood(lab, 1024),
        Peer::Toklat("unicast", |lab| broadcast::unicast(lab, 1024)),
    ),
    less(
        "switch.rtt.pipe",
        "us",
        Bar::most(0.6),
        "core 0: asks; core 1: answers; both poll; 10 B of payload. Peer: a word to and fro",
        pipe::round_trip,
        Peer::Floor(&["rtt"]),
    ),
    less(
        "switch.rtt.inline",
        "us",
        Bar::most(0.8),
        "core 0: one thread holds both ports and runs the switch; core 1: nothing. Peer: memif",
        inline::round_trip,
        Peer::Runner("memif", "rtt"),
    ),
    less(
        "switch.rtt.daemon",
        "us",
        Bar::most(1.5),
        "core 0: one thread holds both ports and polls; core 1: the switch's worker, polling; twice \
         through the switch. Peer: OVS-DPDK, twice",
        isolated::round_trip,
        Peer::Runner("ovs", "rtt"),
    ),
    less(
        "switch.rtt.sleep",
        "us",
        Bar::NONE,
        "core 0: asks, sleeping; core 1: answers, sleeping, and the switch's worker (auto). Peer: \
         blocking UDP over loopback with the same pinning",
        isolated::sleeping_time,
        Peer::Runner("udp", "rtt"),
    ),
    less(
        "switch.rtt.sleep.wakeups.auto",
        "wake-ups/trip",
        Bar::most(2.0),
        "as switch.rtt.sleep; kicks in both directions, counted by the switch",
        |lab| isolated::sleeping_wake_ups(lab, "auto"),
        Peer::None,
    ),
    less(
        "switch.rtt.sleep.wakeups.sleep",
        "wake-ups/trip",
        Bar::most(4.0),
        "as switch.rtt.sleep, the worker sleeping at once",
        |lab| isolated::sleeping_wake_ups(lab, "sleep"),
        Peer::None,
    ),
    more(
        "switch.demo.64",
        Bar::least(20.0),
        "core 0: toklat gen and toklat sink, two processes, yielding; core 1: the switch's worker, \
         polling; egress lossless: a lost frame fails the row",
        life::demo,
        Peer::None,
    ),
    less(
        "switch.idle.memory",
        "KiB/port",
        Bar::most(64.0),
        "1,000 open ports of 1,024 slots, 4 KiB pages: daemon, data process and client together",
        life::idle_memory,
        Peer::None,
    ),
    less(
        "switch.idle.cpu",
        "% of a core",
        Bar::most(0.0),
        "a switch with 1,000 open ports without traffic: daemon and data process",
        life::idle_cpu,
        Peer::None,
    ),
    less(
        "switch.restart",
        "ms",
        Bar::most(1000.0),
        "core 0: generator and sink; core 1: the data process, killed under traffic; until frames \
         arrive again",
        life::restart,
        Peer::None,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_traffic_to_many_ports_stands_beside_an_ordinary_pair() {
        let peers = ROWS.iter().filter(|row| row.id.starts_with("switch.ports.uniform"));
        let peers: Vec<_> = peers.map(|row| row.peer.name()).collect();
        assert_eq!(peers, ["2 ports", "a pair", "floor"]);
    }
}
