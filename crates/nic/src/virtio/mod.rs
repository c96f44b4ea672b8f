//! The device side of virtio-net's queues (virtio 1.2, 2.6 to 2.8 and 5.1): a guest's transmit queue as
//! an ingress, its receive queue as an egress.
//!
//! ```text
//!   guest's transmit queue --> Transmit: Ingress --> the switch --> Receive: Egress --> guest's receive queue
//!        descriptors snapshotted and checked once; buffers lent as the batch; one copy into the receiver's
//! ```
//!
//! Everything in guest memory is hostile. A queue whose driver breaks the rules stops: a [`Fault`] is in
//! its [`QueueState`], its counter goes up, frames gathered before it are delivered, frames to it are
//! dropped as `down`; other queues run on.
//!
//! A queue's position is in its [`QueueState`], which its maker keeps (in memory that survives a data
//! process). Stopping a queue: drop its half, when no worker uses it any more; then
//! [`QueueState::base`] says where it stands, and a new half over the same state goes on there.

mod config;
mod inflight;
mod net;
mod packed;
mod receive;
mod ring;
mod split;
mod transmit;

pub use abi::virtio::{Features, QueueLayout};
pub use config::{Fault, QueueConfig, QueueError, QueueState, check_areas, check_size};
pub use inflight::Inflight;
pub use receive::Receive;
pub use transmit::Transmit;
