//! The device side of virtio-net's queues (virtio 1.2, 2.6 to 2.8 and 5.1): a guest's transmit
//! queue as an ingress, its receive queue as an egress.
//!
//! ```text
//!   guest's transmit queue --> Transmit: Ingress --> the switch --> Receive: Egress --> guest's receive queue
//!        descriptors snapshotted and checked once; buffers lent as the batch; one copy into the receiver's
//! ```
//!
//! Everything in guest memory is hostile. A queue whose driver breaks the rules stops. Its
//! [`QueueState`] holds the [`Fault`], and its counter goes up. Frames gathered before the fault
//! are delivered; frames to the queue are dropped as `down`. Other queues keep running.
//!
//! A queue's position is in its [`QueueState`], which the code that makes the queue keeps in memory
//! that survives a data process. To stop a queue, drop its half when no worker uses it any more.
//! Then [`QueueState::base`] gives its position, and a new half over the same state resumes there.

mod config;
mod inflight;
mod interrupts;
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
