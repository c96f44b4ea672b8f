//! Tools on the client library: generator, sink, round trips, bridge, monitor, and the demo.
//!
//! Their logic (frames, pace, findings, percentiles) is pure and has files of its own. Each tool's
//! file has its options and its loop.

use frame::Mac;

pub mod bridge;
pub mod cap;
pub mod card;
pub mod demo;
pub mod generate;
pub mod pace;
pub mod pcap;
pub mod ping;
pub mod roundtrip;
pub mod run;
pub mod session;
pub mod sink;
pub mod tally;
pub mod traffic;
pub mod uplink;
pub mod vm;

/// The default address of `toklat sink`, to which `toklat gen` sends by default.
pub const SINK_MAC: Mac = Mac::local(2);
