//! TCP as a machine without I/O: segments and time go in, segments and events come out.
//!
//! ```text
//!   frames -> codec::parse -> Machine::on_batch  -> events, data       -> application
//!   slots  <- Emit         <- Machine::transmit  <- chunks, referenced <- application
//! ```
//!
//! A turn: parse the packets of a batch ([`Machine::parse`]), hand them in ([`Machine::on_batch`]),
//! let the application read and send ([`Machine::next_event`]), then send what is due
//! ([`Machine::transmit`]). Sleep until a packet comes or [`Machine::deadline`].
//!
//! ```
//! use std::net::{IpAddr, Ipv4Addr};
//! use toklat_tcp::codec::{self, MAX_HEADERS, Summing, Verify};
//! use toklat_tcp::{Buffered, Bytes, Config, Emit, Full, Machine, Nanos, Request, Secret};
//!
//! /// A wire: packets in the order in which they were sent.
//! #[derive(Default)]
//! struct Wire(Vec<Vec<u8>>);
//!
//! impl Emit for Wire {
//!     fn emit(&mut self, request: &Request<'_>) -> Result<(), Full> {
//!         let mut packet = vec![0; MAX_HEADERS];
//!         let len = codec::write_headers(request, &mut packet, Summing::Full).ok_or(Full)?;
//!         packet.truncate(len);
//!         request.payload.pieces().for_each(|piece| packet.extend_from_slice(piece));
//!         self.0.push(packet);
//!         Ok(())
//!     }
//! }
//!
//! let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
//! let mut client = Machine::new(Config::default(), Secret([1, 2]));
//! let mut server = Machine::new(Config::default(), Secret([3, 4]));
//! let now = Nanos(Nanos::SECOND);
//!
//! let listener = server.listen(None, 80, 16, None)?;
//! let id = client.connect((address(1), 0), (address(2), 80), None, now)?;
//! client.send(id, Bytes::from_static(b"hello")).map_err(|(error, _)| error)?;
//!
//! let mut wire = Wire::default();
//! for turn in 0..4 {
//!     let (from, to) = if turn % 2 == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
//!     from.transmit(now, &mut wire);
//!     for packet in wire.0.drain(..) {
//!         let segment = to.parse(&packet, Verify::Checksums).expect("the wire is good");
//!         to.on_segment(&segment, now, &mut Buffered);
//!     }
//! }
//! let accepted = server.accept(listener).expect("the handshake is done");
//! let mut data = [0; 5];
//! assert_eq!(server.receive_slice(accepted, &mut data), 5);
//! assert_eq!(&data, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it follows: RFC 9293 (TCP), 7323 (timestamps, PAWS, window scaling), 2018, 2883 and 6675
//! (SACK), 8985 (RACK-TLP), 6937 (PRR), 9438 (CUBIC), 5681 and 6582 (Reno, NewReno), 6928 (initial
//! window), 3168 (ECN), 5961 (blind attacks), 6528 (initial numbers), 6056 (ports), 4987 (SYN
//! cookies), 1337 and 6191 (TIME-WAIT), 1191 and 8201 (path MTU).
//!
//! - **No walk.** Segments find their connection by a keyed hash, deadlines stand in a timer wheel,
//!   work in a list.
//! - **No allocation per segment.** Send buffers refer to the application's memory; what must be
//!   copied lies in blocks from a pool.
//! - **Every sender is hostile.** [`Config`] bounds all memory; each drop is counted under a name
//!   ([`Drop`]).
//!
//! ## Not here yet
//!
//! Pacing, F-RTO (RFC 5682), Fast Open (RFC 7413), the urgent pointer (its data is in the
//! stream), black hole detection (RFC 4821), AccECN, per-route metrics.
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
mod handle;
mod hystart;
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
mod shared;
mod table;
mod time;
mod time_wait;
mod wheel;

pub use bytes::Bytes;
pub use config::{Algorithm, Config, KeepAlive, Tuning};
pub use connection::{CloseReason, Events, State};
pub use counters::{Counters, Drop};
pub use flow::{Flow, Secret};
pub use handle::{Buffered, ConnId, Path, Receive};
pub use machine::{ListenerId, Machine, OpenError, SendError, Usage};
pub use options::{MAX_OPTIONS, Options, SackBlocks, Timestamp};
pub use segment::{Ecn, Emit, Flags, Full, Header, Request, Segment};
pub use send::Payload;
pub use seq::Seq;
pub use time::Nanos;
