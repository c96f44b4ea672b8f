//! Tools on the client library: generator, sink, round trips, bridge, monitor, and the demo.
//!
//! What they decide (frames, pace, findings, percentiles) is pure and stands in files of its own;
//! each tool's file has its options and its loop.

pub mod pace;
pub mod pcap;
pub mod roundtrip;
pub mod tally;
pub mod traffic;
pub mod units;
