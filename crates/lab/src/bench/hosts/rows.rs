//! The rows of `toklat bench hosts`, and the bars that they must clear.

use super::super::peer::Peer;
use super::super::rows::{Better, Row, less};
use super::tunnel::Frames;
use super::{life, stations, tunnel};

const COST: &str = "two hosts, frames from ring to ring; processor time of both data processes for a frame. Peer: \
    frames into the kernel's VXLAN by AF_PACKET, the sender's time, in which the receiver's part runs";
const TCP: &str = "two hosts, iperf3 between taps of guests, inner MTU 1450. Peer: veth pairs at bridges of the \
    kernel's VXLAN. Real time: a loaded machine spoils it";
const RTT: &str =
    "two hosts, ping between taps, median. Peer: veth pairs at bridges of the kernel's VXLAN";
const OUT: &str = "a new station's frame here until it is in the FDB of Linux with FRR, by a route reflector; p99";
const IN: &str = "a new station's frame at Linux with FRR until it is in the table here; p99. FRR waits 50 ms by itself";
const MANY_IN: &str = "1,000 simulated hosts tell a route reflector at once; until all stations are in the table here";
const MANY_OUT: &str =
    "frames of as many stations here until the route reflector has all their routes";
const MOVES: &str = "1,000 simulated hosts with 100 stations each, of which 1,000 move each second; the supervisor's part of a core; a move that is lost fails the row (with --quick 10 each, 3 s)";
const MOVE: &str = "three hosts; pings at 10 ms to a station whose interface goes down at one and comes up at another: lost \
    pings, the time for both commands included";

macro_rules! cost {
    ($id:literal, $bar:literal, $len:literal, $trains:literal) => {
        less(
            $id,
            "ns/frame",
            $bar,
            COST,
            |lab| tunnel::cost(lab, Frames { len: $len, trains: $trains }),
            Peer::Toklat("kernel", |lab| {
                tunnel::kernel_cost(lab, Frames { len: $len, trains: $trains })
            }),
        )
    };
}

macro_rules! tcp {
    ($id:literal, $bar:literal, $offloads:literal) => {
        Row {
            id: $id,
            unit: "Gb/s",
            bar: $bar,
            better: Better::More,
            how: TCP,
            ours: |lab| tunnel::tcp(lab, $offloads),
            peer: Peer::Toklat("kernel", |lab| tunnel::kernel_tcp(lab, $offloads)),
        }
    };
}

/// All rows.
pub const ROWS: &[Row] = &[
    cost!("hosts.vxlan.cpu.64", "ratio >= 0.59", 64, false),
    cost!("hosts.vxlan.cpu.1514", "ratio >= 0.59", 1514, false),
    cost!("hosts.vxlan.trains.64", "ratio >= 1.18", 64, true),
    cost!("hosts.vxlan.trains.1514", "ratio >= 1.18", 1514, true),
    tcp!("hosts.tcp", "ratio >= 0.8", true),
    tcp!("hosts.tcp.plain", "ratio >= 1", false),
    less(
        "hosts.rtt",
        "us",
        "ratio >= 0.67",
        RTT,
        |lab| tunnel::round_trip(lab, "auto", 0.002),
        Peer::Toklat("kernel", |lab| tunnel::kernel_round_trip(lab, 0.002)),
    ),
    less(
        "hosts.rtt.sleep",
        "us",
        "-",
        RTT,
        |lab| tunnel::round_trip(lab, "sleep", 0.01),
        Peer::Toklat("kernel", |lab| tunnel::kernel_round_trip(lab, 0.01)),
    ),
    less(
        "hosts.mac.out",
        "ms",
        "<= 50",
        OUT,
        stations::out,
        Peer::Toklat("FRR to FRR", stations::between_frr),
    ),
    less(
        "hosts.mac.in",
        "ms",
        "<= 150",
        IN,
        stations::inward,
        Peer::Toklat("FRR to FRR", stations::between_frr),
    ),
    less(
        "hosts.macs.in.10k",
        "s",
        "<= 3",
        MANY_IN,
        |lab| stations::many_in(lab, 10_000),
        Peer::None,
    ),
    less(
        "hosts.macs.out.10k",
        "s",
        "<= 3",
        MANY_OUT,
        |lab| stations::many_out(lab, 10_000),
        Peer::None,
    ),
    less(
        "hosts.macs.in.100k",
        "s",
        "<= 60",
        MANY_IN,
        |lab| stations::many_in(lab, 100_000),
        Peer::None,
    ),
    less(
        "hosts.macs.out.100k",
        "s",
        "<= 60",
        MANY_OUT,
        |lab| stations::many_out(lab, 100_000),
        Peer::None,
    ),
    less("hosts.moves", "% of a core", "<= 50", MOVES, stations::moves, Peer::None),
    less(
        "hosts.move",
        "pings",
        "<= 5",
        MOVE,
        life::moved,
        Peer::Toklat("FRR", life::moved_between_frr),
    ),
    less(
        "hosts.kill.gobgpd",
        "pings",
        "0",
        "pings at 10 ms between guests of two hosts; one host's gobgpd is killed: lost pings",
        life::without_gobgpd,
        Peer::None,
    ),
    less(
        "hosts.kill.supervisor",
        "pings",
        "0",
        "the same; one host's supervisor is killed, and another one started: lost pings",
        life::without_supervisor,
        Peer::None,
    ),
    less(
        "hosts.kill.data",
        "ms",
        "<= 1000",
        "pings at 10 ms between guests of two hosts; one host's data process is killed: lost pings, times 10 ms",
        life::without_data_process,
        Peer::None,
    ),
];
