//! Tools that need more than the client library (whose own tools are the crate `tools`): captures
//! of a running switch, cards, programs, virtual machines, and the demo.

pub mod cap;
pub mod card;
pub mod demo;
pub mod run;
pub mod uplink;
pub mod vm;

pub use ::tools::{
    SINK_MAC, bridge, generate, pace, pcap, ping, roundtrip, session, sink, tally, traffic,
};
