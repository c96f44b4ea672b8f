//! The rows of `toklat bench guest`, and the bars that they must clear. All times are core times.

use super::peer::Peer;
use super::rows::{Better, Row};
use super::{stacks, stacks_linux};

const TCP: &str = "core 0: sender, switch and receiver in one thread, copies into and out of both \
    applications; Gb/s a second of its time. Peer: both ends of iperf3 on core 0";
const LOSS: &str = "the same, frames lost at random in both directions. Peer: without loss";
const HTTP: &str = "core 0: httpd, switch and load generator in one thread, 16 connections, offloads, documents sent \
    from where they lie; pages a second of its time. Peer: nginx on core 1, wrk on core 0, pages a second of the busier's time";
const CONNECTIONS: &str = "pages of 64 bytes over 10,000 connections, all busy. Peer: over 16";

const fn tcp(
    id: &'static str,
    bar: &'static str,
    how: &'static str,
    ours: fn(&super::lab::Lab) -> anyhow::Result<f64>,
    peer: Peer,
) -> Row {
    Row { id, unit: "Gb/s", bar, better: Better::More, how, ours, peer }
}

macro_rules! http {
    ($id:literal, $bar:literal, $len:expr) => {
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

/// All rows.
pub const ROWS: &[Row] = &[
    tcp(
        "guest.tcp.plain",
        "ratio >= 4",
        TCP,
        stacks::plain,
        Peer::Toklat("iperf3", stacks_linux::plain),
    ),
    tcp(
        "guest.tcp",
        "ratio >= 1.5",
        TCP,
        stacks::offloads,
        Peer::Toklat("iperf3", stacks_linux::offloads),
    ),
    tcp(
        "guest.tcp.loss.1000",
        "ratio >= 0.25",
        LOSS,
        |lab| stacks::lossy(lab, 1_000),
        Peer::Toklat("without loss", stacks::plain),
    ),
    tcp(
        "guest.tcp.loss.10000",
        "ratio >= 0.05",
        LOSS,
        |lab| stacks::lossy(lab, 10_000),
        Peer::Toklat("without loss", stacks::plain),
    ),
    Row {
        id: "guest.conns",
        unit: "pages/s",
        bar: "ratio >= 0.5",
        better: Better::More,
        how: CONNECTIONS,
        ours: |lab| stacks::pages(lab, 64, 10_000),
        peer: Peer::Toklat("16 connections", |lab| stacks::pages(lab, 64, 16)),
    },
    http!("guest.http.1k", "ratio >= 8", 1 << 10),
    http!("guest.http.4k", "ratio >= 8", 4 << 10),
    http!("guest.http.16k", "ratio >= 6", 16 << 10),
    http!("guest.http.50k", "ratio >= 1.2", 50 << 10),
    http!("guest.http.100k", "ratio >= 1.2", 100 << 10),
    http!("guest.http.1m", "ratio >= 1.2", 1 << 20),
];
