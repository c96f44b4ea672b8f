//! Remote procedure calls in microseconds: a protocol of our own on raw Ethernet, or on UDP.
//!
//! ```text
//!   Client::call --Request--> Server::frame -> Handler::call   reads the request in the receive ring,
//!   Replies::done <--Reply--                                   writes the reply into the send ring
//! ```
//!
//! - **At most once.** A server opens a session for each client, and gives it a random token. A
//!   session has slots. Each runs one request at a time, and keeps the last sequence number and
//!   reply: a request that comes again gets the kept reply. Tokens are not used again, so what a
//!   restarted client or server meets of an earlier one is recognized. Requests whose fate is
//!   unknown end with [`Failure::Ambiguous`], and are never repeated in another session.
//! - **Credits instead of loss.** A server grants each session its share of the receive ring. A
//!   client has no more frames in flight.
//! - **Long messages** (to 8 MiB) travel as fragments. Receivers report which have arrived; only
//!   the missing ones are sent again.
//! - **The client drives.** It alone has timers. A server answers, and keeps no deadlines.
//! - **All memory is bounded**: sessions in all and of a peer, assembled requests, kept replies.
//!   Nothing is kept for an opening until its sender has shown, by a cookie, that it receives.
//!
//! [`Server`] and [`Client`] do no I/O and read no clock; [`Serving`] and [`Calling`] run them on a
//! [`Nic`](crate::Nic). [`bay`] hands requests that take long to other threads.

mod budget;
mod carrier;
mod client;
mod fragments;
mod host;
mod network;
mod server;
mod slots;
mod wire;
mod workers;

use std::num::NonZeroU16;

use frame::{ETHERNET_HEADER, Mac};
use tcp::{Nanos, Secret};

use crate::nic::Room;

pub use carrier::{Carrier, ETHERTYPE, Peer};
pub use client::{CallError, Client, ClientCounters, Failure, Replies, SessionId};
pub use host::{Calling, Serving};
pub use server::{Answer, Call, Handler, Server, ServerCounters};
use wire::End;
pub use wire::{HEAD, HEADER};
pub use workers::{Dispatch, Worker, bay};

/// The longest message.
pub const MAX_MESSAGE: usize = 8 << 20;
/// The maximum number of slots of a session.
pub const MAX_SLOTS: u8 = 64;
/// The shortest length that a link's fragments may have, so that their number fits 16 bits.
const MIN_FRAGMENT: u16 = 256;

/// Settings of a client or a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The MAC address of this end.
    pub mac: Mac,
    /// What packets travel in.
    pub carrier: Carrier,
    /// Packets carry a checksum, and those without one are dropped. Frames between ring ports stay
    /// in memory, and do without.
    pub checksum: bool,
    /// The maximum number of bytes of a frame after the Ethernet header. It is lowered to what the
    /// NIC can send.
    pub mtu: u16,
    /// The key of sessions' tokens, for runs that are to be repeated: different for each end, and
    /// for an end that starts again. `None` for a random one.
    pub secret: Option<Secret>,
    /// Slots of a session: requests that it has at once. At most [`MAX_SLOTS`].
    pub slots: u8,
    /// The maximum number of fragments that may be in flight to this end, of one session.
    pub credits: u16,
    /// Fragments that the receive ring takes. A server shares them among its sessions.
    pub receive_room: u16,
    /// The longest message that is received, at most [`MAX_MESSAGE`].
    pub max_message: usize,
    /// Server: most sessions.
    pub max_sessions: usize,
    /// Server: most sessions of one peer.
    pub max_sessions_of_peer: usize,
    /// Server: most bytes of assembled requests and kept replies. A peer gets a quarter.
    pub memory: usize,
    /// Server: sessions that were not used for this long may be replaced by new ones. Clients renew
    /// their sessions in half the time.
    pub idle: u64,
    /// Client: the time after which a request is repeated, in nanoseconds. It doubles each time.
    pub timeout: u64,
    /// Client: how long a server may be silent, after a first repetition, before it is taken for
    /// dead, in nanoseconds. Paused and migrating machines are silent for a minute.
    pub patience: u64,
}

impl Config {
    /// The defaults for a host with this address.
    #[must_use]
    pub fn new(mac: Mac) -> Self {
        Self {
            mac,
            carrier: Carrier::Ethernet,
            checksum: true,
            mtu: 1500,
            secret: None,
            slots: 8,
            credits: 32,
            receive_room: 256,
            max_message: MAX_MESSAGE,
            max_sessions: 20_000,
            max_sessions_of_peer: 5_000,
            memory: 128 << 20,
            idle: 60 * Nanos::SECOND,
            timeout: 5 * Nanos::MILLI,
            patience: 100 * Nanos::SECOND,
        }
    }

    fn secret(&self) -> Secret {
        self.secret.unwrap_or_else(crate::config::random)
    }

    fn slots(&self) -> u8 {
        self.slots.clamp(1, MAX_SLOTS)
    }

    /// The longest payload of frames to `room`.
    fn fragment(&self, room: &impl Room) -> Option<NonZeroU16> {
        let longest = room.max_frame().min(ETHERNET_HEADER + usize::from(self.mtu));
        checked_fragment(longest.saturating_sub(self.end().head()))
    }

    /// This end of the packets.
    #[inline]
    fn end(&self) -> End {
        let Self { mac, carrier, checksum, .. } = *self;
        End { mac, carrier, checksum }
    }

    fn max_message(&self) -> usize {
        self.max_message.min(MAX_MESSAGE)
    }
}

/// The longest payload of packets, if it is long enough.
fn checked_fragment(payload: usize) -> Option<NonZeroU16> {
    let payload = payload.min(u16::MAX.into()) as u16;
    NonZeroU16::new(payload).filter(|payload| payload.get() >= MIN_FRAGMENT)
}
