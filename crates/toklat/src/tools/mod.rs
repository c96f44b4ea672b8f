//! Tools on the client library: generator, sink, round trips, bridge, monitor, and the demo.
//!
//! What they decide (frames, pace, findings, percentiles) is pure and stands in files of its own;
//! each tool's file has its options and its loop.

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

/// The address that `toklat sink` has and `toklat gen` sends to, unless told otherwise.
pub const SINK_MAC: Mac = Mac::local(2);
