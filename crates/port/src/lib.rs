//! The contract between a switch and what plugs into it.
//!
//! ```text
//!   Ingress::gather --> Scratch (frames, private heads) --> the fabric decides --> Egress::deliver
//!        ^                                                                              |
//!        +---------------- complete, settle --> Effects <-- settle ---------------------+
//! ```
//!
//! Directions are named from the switch's side: an *ingress* hands frames in, an *egress* hands them
//! out. Per batch, never per frame: virtual calls, fences, locks, clock reads, kicks.
#![allow(
    unsafe_code,
    reason = "MapGuard and Sole are where promises about mappings and threads are made"
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod batch;
mod counters;
mod traits;

pub use batch::{Batch, Frame, FrameIdx, HEAD, Head, MAX_SEGS, MapGuard, Picked, Scratch};
pub use counters::{
    Counter, DropReason, EgressCounters, HISTOGRAM_BUCKETS, IngressCounters, Software,
    histogram_bucket,
};
pub use frame::{Mac, Offload, OffloadSet, VlanId};
pub use traits::{Delivered, Effects, Egress, Ingress, Limits, Nanos, Sole};
