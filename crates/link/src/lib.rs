//! The link between a port and its switch: limits and impairments for frames in either direction.
//!
//! ```text
//!   owner  ->  ring  -- sent: a frame waits in the ring until there are tokens -->  switch
//!   owner  <-  ring  <-- received: a frame beyond the limit is lost, or its sender waits --  switch
//! ```
//!
//! A [`RateLimiter`] limits the rate; an [`Impairment`] loses, delays, reorders and duplicates
//! frames, by a seed. Limited frames wait where they are; delayed frames are copied into a bounded
//! pool.
//!
//! The crate does no I/O: time is an argument. A limit allocates nothing once it is made, an
//! impairment nothing once its pool has grown. A port without either has no link; its turn checks
//! for one, which takes two instructions.

mod bucket;
mod channel;
mod impaired;
mod impairment;
mod limited;
mod limiter;

pub use bucket::{RateError, RateLimiter, TokenBucket};
pub use channel::{Channel, ImpairmentCounts};
pub use impaired::{Flushed, Impaired};
pub use impairment::{Impairment, ImpairmentError};
pub use limited::Limited;
pub use limiter::Limiter;
