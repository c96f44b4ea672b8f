//! iperf3's protocol over TCP and UDP, both ends: one control connection with states and JSON, and
//! the streams of a test.
//!
//! The real iperf3 (3.1 and later) may be at the other end, forwards, in reverse (`-R`), both ways
//! (`--bidir`) and with parallel streams (`-P`). Over UDP, datagrams are sent at a rate, and the
//! receiver counts those that are missing or late, and their jitter.

mod client;
mod command;
mod server;
mod udp;
mod wire;

pub use client::{Client, Line, run};
pub use command::Command;
pub use server::Server;
pub use udp::Counted;
pub use wire::{Params, Results, StreamResult, Udp};

/// The port of servers.
pub const PORT: u16 = 5201;

/// One end of a finished test.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Seconds that data was exchanged.
    pub seconds: f64,
    /// Bytes that this end has sent.
    pub sent: u64,
    /// Bytes that this end has received.
    pub received: u64,
    /// Over UDP: what this end has counted on each stream that it has received.
    pub datagrams: Vec<Counted>,
    /// What the other end has counted.
    pub peer: Results,
}
