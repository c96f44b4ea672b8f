//! iperf3's protocol over TCP, both ends: one control connection with states and JSON, and the data
//! connections of a test.
//!
//! The real iperf3 (3.1 and later) may be at the other end, forwards, in reverse (`-R`), both ways
//! (`--bidir`) and with parallel streams (`-P`). UDP is refused.

mod client;
mod command;
mod server;
mod wire;

pub use client::{Client, Line, run};
pub use command::Command;
pub use server::Server;
pub use wire::{Params, Results, StreamResult};

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
    /// What the other end has counted.
    pub peer: Results,
}
