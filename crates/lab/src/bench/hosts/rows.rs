//! The rows of `toklat bench hosts`, and the bars that they must clear.

use super::super::bar::Bar;
use super::super::lab::Lab;
use super::super::peer::Peer;
use super::super::rows::{Better, Row, less};
use super::tunnel::Frames;
use super::{life, stations, tunnel};

const COST: &str = "two hosts, frames from ring to ring; processor time of both data processes for a frame. Peer: \
    frames into the kernel's VXLAN by AF_PACKET, the sender's time, in which the receiver's part runs. Both \
    underlays cut trains in software (tx-udp-segmentation off)";
const TCP: &str = "two hosts, iperf3 between taps of guests, inner MTU 1450. Peer: veth pairs at bridges of the \
    kernel's VXLAN. Real time: a loaded machine spoils it";
const RTT: &str =
    "two hosts, ping between taps, median. Peer: veth pairs at bridges of the kernel's VXLAN";
const OUT: &str = "a new station's frame here until it is in the FDB of Linux with FRR, by a route reflector; p99";
const IN: &str = "a new station's frame at Linux with FRR until it is in the table here; p99. FRR waits 50 ms by itself";
const MANY_IN: &str = "1,000 simulated hosts tell a route reflector at once; until all stations are in the table here; the supervisor may have 200 MiB";
const MANY_OUT: &str =
    "frames of as many stations here until the route reflector has all their routes";
const MOVES: &str = "1,000 simulated hosts with 100 stations each, of which 1,000 move each second; the supervisor's part of a core; a move that is lost fails the row (with --quick 10 each, 3 s)";
const MOVE: &str = "three hosts; pings at 10 ms to a station whose interface goes down at one and comes up at another: lost \
    pings, the time for both commands included";
const MIGRATION: &str = "three hosts; pings at 10 ms to a virtual machine that QEMU migrates from one to another: lost \
    pings of those that were sent once it ran there. Peer: at taps of bridges of the kernel's VXLAN with FRR";

/// Frames of one length through a tunnel.
const fn cost<const LEN: usize, const TRAINS: bool>(id: &'static str, bar: Bar) -> Row {
    let ours = |lab: &Lab| tunnel::cost(lab, Frames { len: LEN, trains: TRAINS });
    let kernel = |lab: &Lab| tunnel::kernel_cost(lab, Frames { len: LEN, trains: TRAINS });
    less(id, "ns/frame", bar, COST, ours, Peer::Toklat("kernel", kernel))
}

const fn tcp<const OFFLOADS: bool>(id: &'static str, bar: Bar) -> Row {
    Row {
        id,
        unit: "Gb/s",
        bar,
        better: Better::More,
        how: TCP,
        ours: |lab| tunnel::tcp(lab, OFFLOADS),
        peer: Peer::Toklat("kernel", |lab| tunnel::kernel_tcp(lab, OFFLOADS)),
    }
}

/// Round trips, with workers that sleep at once or as they do.
const fn rtt<const SLEEP: bool>(id: &'static str, bar: Bar) -> Row {
    const fn how<const SLEEP: bool>() -> (&'static str, f64) {
        if SLEEP { ("sleep", 0.01) } else { ("auto", 0.002) }
    }
    let ours = |lab: &Lab| tunnel::round_trip(lab, how::<SLEEP>().0, how::<SLEEP>().1);
    let kernel = |lab: &Lab| tunnel::kernel_round_trip(lab, how::<SLEEP>().1);
    less(id, "us", bar, RTT, ours, Peer::Toklat("kernel", kernel))
}

/// The row for this many stations of other hosts.
const fn many_in<const COUNT: u32>(id: &'static str, bar: Bar) -> Row {
    less(id, "s", bar, MANY_IN, |lab| stations::many_in(lab, COUNT), Peer::None)
}

/// The row for this many local stations.
const fn many_out<const COUNT: u32>(id: &'static str, bar: Bar) -> Row {
    less(id, "s", bar, MANY_OUT, |lab| stations::many_out(lab, COUNT), Peer::None)
}

/// All rows.
pub const ROWS: &[Row] = &[
    cost::<64, false>("hosts.vxlan.cpu.64", Bar::ratio(0.59)),
    cost::<1514, false>("hosts.vxlan.cpu.1514", Bar::ratio(0.59)),
    cost::<64, true>("hosts.vxlan.trains.64", Bar::ratio(1.18)),
    cost::<1514, true>("hosts.vxlan.trains.1514", Bar::ratio(1.18)),
    tcp::<true>("hosts.tcp", Bar::ratio(0.8)),
    tcp::<false>("hosts.tcp.plain", Bar::ratio(1.0)),
    rtt::<false>("hosts.rtt", Bar::ratio(0.67)),
    rtt::<true>("hosts.rtt.sleep", Bar::NONE),
    less(
        "hosts.mac.out",
        "ms",
        Bar::most(50.0),
        OUT,
        stations::out,
        Peer::Toklat("FRR to FRR", stations::between_frr),
    ),
    less(
        "hosts.mac.in",
        "ms",
        Bar::most(150.0),
        IN,
        stations::inward,
        Peer::Toklat("FRR to FRR", stations::between_frr),
    ),
    many_in::<10_000>("hosts.macs.in.10k", Bar::most(3.0)),
    many_out::<10_000>("hosts.macs.out.10k", Bar::most(3.0)),
    many_in::<100_000>("hosts.macs.in.100k", Bar::most(60.0)),
    many_out::<100_000>("hosts.macs.out.100k", Bar::most(60.0)),
    less("hosts.moves", "% of a core", Bar::most(50.0), MOVES, stations::moves, Peer::None),
    less(
        "hosts.move",
        "pings",
        Bar::most(5.0),
        MOVE,
        life::moved,
        Peer::Toklat("FRR", life::moved_between_frr),
    ),
    less(
        "hosts.move.guest",
        "pings",
        Bar::ratio(1.0),
        MIGRATION,
        life::guest_moved,
        Peer::Toklat("FRR", life::guest_moved_between_frr),
    ),
    less(
        "hosts.kill.gobgpd",
        "pings",
        Bar::most(0.0),
        "pings at 10 ms between guests of two hosts; one host's gobgpd is killed: lost pings",
        life::without_gobgpd,
        Peer::None,
    ),
    less(
        "hosts.kill.supervisor",
        "pings",
        Bar::most(0.0),
        "the same; one host's supervisor is killed, and another one started: lost pings",
        life::without_supervisor,
        Peer::None,
    ),
    less(
        "hosts.kill.data",
        "ms",
        Bar::most(1000.0),
        "pings at 10 ms between guests of two hosts; one host's data process is killed: lost pings, times 10 ms",
        life::without_data_process,
        Peer::None,
    ),
    less(
        "hosts.bfd",
        "ms",
        Bar::most(1500.0),
        "the route reflector's link goes down (not a far host's), BFD every 300 ms, three may be missed; until its \
         routes are gone here",
        life::without_reflector,
        Peer::None,
    ),
];
