//! The learning switch: table, policies, two-pass batched forwarding, statistics.
//!
//! The crate has no threads, file descriptors or clock. Time comes in as [`port::Nanos`].
#![allow(unsafe_code, reason = "the table is marked Shareable here")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod fdb;
mod filter;
mod finish;
mod forward;
mod journal;
mod ports;
mod record;
mod rules;
mod sender;
pub mod why;

pub use self::rules::{Interrupts, Rules, VlanMode};
pub use fdb::{Entries, Fdb, FdbEntry, Filter, Learned, Origin, Station};
pub use filter::{Connections, Filters, Logged, PortFilter};
pub use finish::{Delivery, Finisher, Handed};
pub use forward::{Forwarder, StallTime, Turn};
pub use journal::{Change, Journal};
/// What rules say of links.
pub use link::{
    Impairment, LinkConfig, LinkStats, PRESETS as LINK_PRESETS, RateLimiter, TokenBucket,
};
pub use ports::{Monitor, PortSpec, Ports};
pub use record::{Fate, Observer, RECORDS, Record, Recorded, Recorder};
pub use sender::{PortMemory, Sender, Sending};
