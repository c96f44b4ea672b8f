//! The link between a port and its switch: limits, and lines with a rate, a queue, delay and loss,
//! for frames in either direction.
//!
//! ```text
//!   owner  ->  ring  -- sent: a frame waits in the ring until there are tokens -->  switch
//!   owner  <-  ring  <-- received: a frame beyond the limit is lost, or its sender waits --  switch
//! ```
//!
//! A [`RateLimiter`] says when frames may pass. A [`Link`] keeps them: it queues, delays, loses and
//! changes frames, by a seed. Limited frames wait where they are; frames on a link are copied into
//! memory whose size follows from the [`LinkConfig`]. Both count frames as they are on a wire.
//!
//! The crate does no I/O: time is an argument. A limit allocates nothing once it is made, a link
//! nothing once its memory has grown. A port without either has no link; its turn checks for one,
//! which takes two instructions.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod aqm;
mod bucket;
mod clock;
mod config;
mod fate;
mod impairment;
mod limited;
mod limiter;
mod line;
mod linked;
mod meter;
mod pacer;
mod random;
mod store;
mod trace;
mod words;

pub use bucket::{RateError, RateLimiter, TokenBucket};
pub use config::{
    Aqm, FlowMask, Flows, LinkConfig, LinkError, Loss, QueueSize, Room, Spread, Target, Weight,
};
pub use impairment::{Impairment, ImpairmentError};
pub use limited::Limited;
pub use limiter::Limiter;
pub use line::Link;
pub use linked::{Flushed, Linked};
pub use meter::{LinkStats, Meter, SharedMeter, Tally};
pub use pacer::Pacer;
pub use trace::{Bandwidth, Series, TraceError, parse_table};
pub use words::PRESETS;
