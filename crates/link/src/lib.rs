//! The link between a port and its switch: what may happen to a frame on its way, in either
//! direction.
//!
//! ```text
//!   owner  ->  ring  -- sent: a frame waits in the ring until there are tokens -->  switch
//!   owner  <-  ring  <-- received: a frame beyond the limit is lost, or its sender waits --  switch
//! ```
//!
//! A [`RateLimiter`] limits what passes; an [`Impairment`] loses, delays, reorders and duplicates,
//! by a seed. What is limited waits where it is; what is delayed is copied into a bounded pool.
//!
//! Everything here is pure: time is an argument. A limit allocates nothing once it is made, an
//! impairment nothing once its pool has grown. A port without either has no link; its turn looks
//! for one, which takes two instructions.

mod bucket;
mod channel;
mod impaired;
mod impairment;
mod limited;
mod limiter;

pub use bucket::{RateError, RateLimiter, TokenBucket};
pub use channel::{Channel, Tally};
pub use impaired::{Flushed, Impaired};
pub use impairment::{Impairment, ImpairmentError};
pub use limited::Limited;
pub use limiter::Limiter;
