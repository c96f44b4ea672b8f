//! The rows of `toklat bench guest`, and the bars that they must clear. All times are core times.

use super::bar::Bar;
use super::peer::Peer;
use super::rows::{Better, Row, less};
use super::{calls, isolated, stacks, stacks_linux};

const TCP: &str = "core 0: sender, switch and receiver in one thread, copies into and out of both \
    applications; Gb/s a second of its time. Peer: both ends of iperf3 on core 0";
const LOSS: &str = "the same, frames lost at random in both directions. Peer: without loss";
const HTTP: &str = "core 0: httpd, switch and load generator in one thread, 16 connections, offloads, documents sent \
    from where they lie; pages a second of its time. Peer: nginx on core 1, wrk on core 0, pages a second of the busier's time";
const UDP: &str = "core 0: client, switch and server in one thread, UDP over IPv4, or over IPv6 with its checksums; 10 \
                   bytes. Peer: raw Ethernet";
const RAW: Peer = Peer::Toklat("raw Ethernet", |lab| calls::burst(lab, 1, 10));
const CONNECTIONS: &str = "pages of 64 bytes over 10,000 connections, all busy. Peer: over 16";

const RPC_RINGS: &str = "core 0: 1,000 sessions ask at once, client, switch and server in one thread; us until \
    half of them have replies. The client's ring has as many slots, so bursts are cut to it, too";

const fn tcp(
    id: &'static str,
    bar: Bar,
    how: &'static str,
    ours: fn(&super::lab::Lab) -> anyhow::Result<f64>,
    peer: Peer,
) -> Row {
    Row { id, unit: "Gb/s", bar, better: Better::More, how, ours, peer }
}

macro_rules! http {
    ($id:literal, $bar:expr, $len:expr) => {
        Row {
            id: $id,
            unit: "pages/s",
            bar: $bar,
            better: Better::More,
            how: HTTP,
            ours: |lab| stacks::pages(lab, $len, 16),
            peer: Peer::Toklat("nginx", |lab| stacks_linux::pages(lab, $len)),
        }
    };
}

macro_rules! rpc {
    ($id:literal, $bar:expr, $n:literal, $len:literal) => {
        less(
            $id,
            "us",
            $bar,
            concat!(
                "core 0: client, switch and server in one thread, which polls; no checksums; ",
                $n,
                " requests at once, ",
                $len,
                " bytes each way; us for each"
            ),
            |lab| calls::burst(lab, $n, $len),
            Peer::None,
        )
    };
    ($id:literal, p99 $bar:expr, $len:literal) => {
        less(
            $id,
            "us",
            $bar,
            concat!(
                "core 0: client, switch and server in one thread, which polls; no checksums; one request at a time, ",
                $len,
                " bytes each way; the 99th percentile"
            ),
            |lab| calls::late(lab, $len),
            Peer::None,
        )
    };
}

macro_rules! rings {
    ($id:literal, $slots:literal) => {
        less($id, "us", Bar::NONE, RPC_RINGS, |lab| calls::rings(lab, $slots), Peer::None)
    };
}

/// All rows.
pub const ROWS: &[Row] = &[
    tcp(
        "guest.tcp.plain",
        Bar::ratio(4.0),
        TCP,
        stacks::plain,
        Peer::Toklat("iperf3", stacks_linux::plain),
    ),
    tcp(
        "guest.tcp",
        Bar::ratio(1.5),
        TCP,
        stacks::offloads,
        Peer::Toklat("iperf3", stacks_linux::offloads),
    ),
    tcp(
        "guest.tcp.loss.1000",
        Bar::ratio(0.25),
        LOSS,
        |lab| stacks::lossy(lab, 1_000),
        Peer::Toklat("without loss", stacks::plain),
    ),
    tcp(
        "guest.tcp.loss.10000",
        Bar::ratio(0.05),
        LOSS,
        |lab| stacks::lossy(lab, 10_000),
        Peer::Toklat("without loss", stacks::plain),
    ),
    Row {
        id: "guest.conns",
        unit: "pages/s",
        bar: Bar::ratio(0.5),
        better: Better::More,
        how: CONNECTIONS,
        ours: |lab| stacks::pages(lab, 64, 10_000),
        peer: Peer::Toklat("16 connections", |lab| stacks::pages(lab, 64, 16)),
    },
    http!("guest.http.1k", Bar::ratio(8.0), 1 << 10),
    http!("guest.http.4k", Bar::ratio(8.0), 4 << 10),
    http!("guest.http.16k", Bar::ratio(6.0), 16 << 10),
    http!("guest.http.50k", Bar::ratio(1.2), 50 << 10),
    http!("guest.http.100k", Bar::ratio(1.2), 100 << 10),
    http!("guest.http.1m", Bar::ratio(1.2), 1 << 20),
    rpc!("guest.rpc.rtt", Bar::most(0.4), 1, 10),
    rpc!("guest.rpc.rtt.100", Bar::most(0.4), 1, 100),
    rpc!("guest.rpc.rtt.p99", p99 Bar::most(1.0), 10),
    rpc!("guest.rpc.rtt.100.p99", p99 Bar::most(1.0), 100),
    less(
        "guest.rpc.rtt.daemon",
        "us",
        Bar::ratio(0.71),
        "core 0: client and server in one thread; core 1: the switch's worker, polling; 10 bytes, no checksums. Peer: bare \
         frames, switch.rtt.daemon",
        calls::round_trip_daemon,
        Peer::Toklat("bare frames", isolated::round_trip),
    ),
    less(
        "guest.rpc.rtt.csb",
        "us",
        Bar::most(1.7),
        "core 0: client, switch and server in one thread, guests on 82540EMs with status blocks; 10 bytes, no checksums. Peer: \
         ring ports",
        calls::round_trip_cards,
        Peer::Toklat("ring ports", |lab| calls::burst(lab, 1, 10)),
    ),
    less("guest.rpc.rtt.udp", "us", Bar::NONE, UDP, |lab| calls::round_trip_udp(lab, false), RAW),
    less("guest.rpc.rtt.udp6", "us", Bar::NONE, UDP, |lab| calls::round_trip_udp(lab, true), RAW),
    Row {
        id: "guest.rpc.rate",
        unit: "M/s",
        bar: Bar::least(14.0),
        better: Better::More,
        how: "core 0: client, switch and server in one thread, 8 sessions with 8 requests of 10 bytes each, no \
              checksums; a second of its time",
        ours: calls::rate,
        peer: Peer::None,
    },
    tcp(
        "guest.rpc.bulk",
        Bar::least(60.0),
        "core 0: client, switch and server in one thread; no checksums; messages of 8 MiB, put together at the server; \
         MTU 9000; a second of its time. Peer: MTU 1500",
        |lab| calls::bulk(lab, 9000),
        Peer::Toklat("MTU 1500", |lab| calls::bulk(lab, 1500)),
    ),
    less(
        "guest.rpc.workers",
        "us",
        Bar::NONE,
        "round trip of 10 bytes that a thread on core 1 answers, no checksums: with both hand-overs. Peer: the handler runs in \
         the thread that serves",
        calls::workers,
        Peer::Toklat("no hand-over", |lab| calls::burst(lab, 1, 10)),
    ),
    rpc!("guest.burst.1", Bar::NONE, 1, 10),
    rpc!("guest.burst.2", Bar::NONE, 2, 10),
    rpc!("guest.burst.10", Bar::NONE, 10, 10),
    less(
        "guest.first",
        "us",
        Bar::NONE,
        "core 0: one thread sleeps for 10 ms, then makes one request; inline. Peer: without the pause",
        calls::first,
        Peer::Toklat("no pause", |lab| calls::burst(lab, 1, 10)),
    ),
    rings!("guest.rings.16", 16),
    rings!("guest.rings.64", 64),
    rings!("guest.rings.256", 256),
    rings!("guest.rings.1024", 1024),
    rings!("guest.rings.4096", 4096),
];
