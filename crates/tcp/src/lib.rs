//! TCP as a machine without I/O: segments and time go in, segments and events come out.
//!
//! ```text
//!   frames -> codec::parse -> Machine::on_batch  -> events, data       -> application
//!   slots  <- Emit         <- Machine::transmit  <- chunks, referenced <- application
//! ```
//!
//! A turn: parse the packets of a batch ([`Machine::parse`]), hand them in ([`Machine::on_batch`]), let the application
//! read and send ([`Machine::next_event`]), then send what is due ([`Machine::transmit`]). Sleep until a packet comes or
//! [`Machine::deadline`].
//!
//! What it follows: RFC 9293 (TCP), 7323 (timestamps, PAWS, window scaling), 2018, 2883 and 6675 (SACK), 8985
//! (RACK-TLP), 6937 (PRR), 9438 (CUBIC), 5681 and 6582 (Reno, NewReno), 6928 (initial window), 3168 (ECN), 5961 (blind
//! attacks), 6528 (initial numbers), 6056 (ports), 4987 (SYN cookies), 1337 and 6191 (TIME-WAIT), 1191 and 8201 (path
//! MTU).
//!
//! - **No walk.** Segments find their connection by a keyed hash, deadlines stand in a timer wheel, work in a list.
//! - **No allocation per segment.** Send buffers refer to the application's memory; what must be copied lies in blocks
//!   from a pool.
//! - **Whoever sends is hostile.** Memory is bounded by [`Config`]; each drop is counted under a name ([`Drop`]).
//!
//! ## Not here yet
//!
//! Pacing, HyStart, F-RTO (RFC 5682), Fast Open (RFC 7413), the urgent pointer (its data is in the stream), black hole
//! detection (RFC 4821), AccECN, per-route metrics.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

extern crate alloc;

pub mod codec;
mod config;
mod congestion;
mod connection;
mod cookie;
mod counters;
mod flow;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod gro;
mod machine;
mod options;
mod pool;
mod rack;
mod ranges;
mod receive;
mod rtt;
mod scoreboard;
mod segment;
mod send;
mod seq;
mod table;
mod time;
mod time_wait;
mod wheel;

pub use bytes::Bytes;
pub use config::{Algorithm, Config, KeepAlive, Tuning};
pub use connection::{CloseReason, Events, State};
pub use counters::{Counters, Drop};
pub use flow::{Flow, Secret};
pub use machine::{
    Buffered, ConnId, ListenerId, Machine, OpenError, Path, Receive, SendError, Usage,
};
pub use options::{BadOption, MAX_OPTIONS, Options, SackBlocks, Timestamp};
pub use segment::{Ecn, Emit, Flags, Full, Header, Request, Segment};
pub use send::Payload;
pub use seq::Seq;
pub use time::Nanos;
