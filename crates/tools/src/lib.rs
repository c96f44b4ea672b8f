//! Tools on the client library: generator, sink, round trips, bridge, captures.
//!
//! Their logic (frames, pace, findings, percentiles) is pure and has files of its own. Each tool's
//! file has its options and its loop. The loops are in a crate of their own because generic code is
//! compiled at the level of the crate that uses it: this one is optimised in every build.

use frame::Mac;

pub mod bridge;
pub mod generate;
pub mod pace;
pub mod pcap;
pub mod ping;
pub mod roundtrip;
pub mod session;
pub mod sink;
pub mod tally;
pub mod traffic;

/// The default address of `toklat sink`, to which `toklat gen` sends by default.
pub const SINK_MAC: Mac = Mac::local(2);
