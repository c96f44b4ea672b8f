//! A library OS: the program is a small machine of its own, with a NIC on a switch, a TCP/IP stack
//! and applications.
//!
//! ```text
//!   frames -> Nic -> input -> ARP, neighbour discovery, ICMP, UDP
//!                      +----> tcp::Machine -> App         data is lent to the application from the frame
//!   slots  <- Nic <- link <-- tcp::Machine <- App         documents are referenced until they are acknowledged
//! ```
//!
//! ```no_run
//! use guest::{App, Bytes, Config, Guest, Io, RingNic, Stack};
//! use frame::Mac;
//!
//! /// Sends back what comes.
//! struct Echo;
//!
//! impl App for Echo {
//!     type Conn = ();
//!     fn accepted(&mut self, _: &mut Io<'_>) {}
//!     fn data(&mut self, _: &mut (), io: &mut Io<'_>, data: &[u8]) -> usize {
//!         io.send(Bytes::copy_from_slice(data));
//!         data.len()
//!     }
//! }
//!
//! let port = netring::Port::open("vale0:echo")?;
//! let config = Config::new(Mac::of_name("vale0:echo"), "10.0.0.2".parse()?, 24);
//! let mut guest = Guest::new(Stack::new(RingNic::new(port), &config), Echo);
//! guest.listen(7, 128)?;
//! guest.run(|_| false)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `nic` | [`Nic`], and a ring port as one: [`RingNic`] |
//! | `device` | NICs that the guest drives: [`CardNic`] (e1000, PCnet, one-access), [`VhostNic`] (virtio) |
//! | `input`, `link` | the ways in and out below TCP: ARP, IPv4, ICMP, UDP |
//! | `dhcp` | the DHCP client, without I/O |
//! | `v6` | the same for IPv6: neighbour discovery, addresses, routers, ICMPv6 |
//! | `stack` | [`Stack`]: a host without an application; a turn is [`poll`](Stack::poll) |
//! | [`rpc`] | remote procedure calls on raw Ethernet or UDP, at most once, in microseconds |
//! | [`apps`] | applications that examples, benchmarks and fuzz targets share |
//! | `app`, `guest` | [`App`]: callbacks for each connection; [`Guest`]: a stack that runs one |
//! | [`sockets`] | async sockets and tasks, with the traits of `futures-io` and `hyper::rt` |
//! | `host` | [`Host`]: a program as a guest, confined if a manager starts it |
//!
//! - **Time is an argument.** A turn reads no clock and does not block; [`Guest::run`] is the loop
//!   that does both.
//! - **Segments are written straight into send slots.** Their payload stays in the application's
//!   memory until then.
//! - **Checksums and segmentation are left to others** where the port carries such requests. Long
//!   segments go out, and come in, as one frame over a chain of slots.
//! - **Received frames are copied once** to private memory, as another process can write to a
//!   ring's buffers. [`RingNic::in_place`] lends them in place, for switches in the same thread.
//! - **All memory is bounded**: neighbours, packets that wait for them, answers, sockets, and all
//!   of TCP. Each drop is counted under a name ([`Drop`], [`tcp::Drop`]).
//!
//! ## Not here yet
//!
//! - Groups of applications, fragments of IPv6, VLAN tags (but those of priority alone), redirects,
//!   temporary IPv6 addresses.
//! - Sockets that block.
//! - Timers of applications: an idle connection stays until its peer closes it, or TCP's keep-alive
//!   finds it dead.
//! - Address conflict detection (RFC 5227).
//! - A TCP connection to a neighbour that does not answer ARP ends by TCP's own time-out.
//! - A port that its daemon has closed is not opened again.
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod app;
pub mod apps;
mod clock;
mod config;
mod counters;
mod device;
mod dhcp;
mod fragments;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod guest;
mod host;
mod input;
mod link;
mod lookup;
mod neighbours;
mod nic;
pub mod rpc;
pub mod sockets;
mod stack;
mod udp;
mod up;
mod v6;

pub use app::{App, Io};
pub use clock::now;
pub use config::{Config, Ipv6Config};
pub use counters::{Counters, Drop};
pub use device::{Bus, CardError, CardNic, Documents, Drive, VhostError, VhostNic};
pub use guest::Guest;
pub use host::{
    Host, HostError, MAX_PORTS, OTHER_DESCRIPTORS, OTHER_PROCESSES, Order, Passed, Place,
};
pub use lookup::{Lookup, LookupError, Step};
pub use nic::{BATCH, Exchange, Frame, Nic, Pieces, RingNic, Room, SendRing};
pub use stack::{ConnectError, Stack, Usage};
pub use tcp::{self, Bytes, CloseReason, Nanos};
pub use udp::{UdpError, UdpId};
