//! The link between a port and its switch: what may happen to a frame on its way, in either direction.
//!
//! ```text
//!   owner  ->  ring  -- sent: a frame waits in the ring until there are tokens -->  switch
//!   owner  <-  ring  <-- received: a frame beyond the limit is lost, or its sender waits --  switch
//! ```
//!
//! Everything here is pure: time is an argument, and nothing is allocated once a link is made. A port without a
//! limit has no link; its turn looks for one, which takes two instructions.

mod bucket;
mod limited;
mod limiter;

pub use bucket::{RateError, RateLimiter, TokenBucket};
pub use limited::Limited;
pub use limiter::Limiter;
