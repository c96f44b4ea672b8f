//! The interface between a switch and what is attached to it.
//!
//! ```text
//!   Ingress::gather --> Scratch (frames, private heads) --> the fabric decides --> Egress::deliver
//!        ^                                                                              |
//!        +---------------- complete, settle --> Effects <-- settle ---------------------+
//! ```
//!
//! Directions are named from the switch's side: an *ingress* hands frames in, an *egress* hands
//! them out. Virtual calls, fences, locks, clock reads and kicks happen per batch, never per frame.
#![allow(
    unsafe_code,
    reason = "MapGuard and SoleWorker are where promises about mappings and threads are made; stamps read a counter"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod batch;
mod counters;
pub mod stamp;
pub mod stats;
mod traits;

pub use batch::{Batch, Frame, FrameIdx, HEAD, Head, MAX_SEGS, MapGuard, Picked, Scratch};
pub use counters::{
    Counter, DropReason, EgressCounters, HISTOGRAM_BUCKETS, IngressCounters, Software,
    histogram_bucket,
};
pub use frame::{Mac, Offload, OffloadSet, VlanId};
pub use traits::{Delivered, Effects, Egress, Ingress, Limits, Nanos, SoleWorker};

/// A port's number in its switch: its place in every table of it.
pub type PortId = u16;
