//! Ports for programs that use libpcap or packet sockets, without hooks.
//!
//! ```text
//!   Capture (pcap_t) --+
//!   Capture (pcap_t) --+-- Reader: filter, queue --+-- Interface --- netring::Port --- the switch
//!   a packet socket  --+                           |
//!                      send ------------------------
//! ```
//!
//! An [`Interface`] is one port of this process. Several captures and sockets share it, as they
//! share a network card: programs such as arping receive by libpcap and send by a socket.
//!
//! Each [`Reader`] has a queue and a filter of its own. A frame is filtered in place and copied
//! once, so a program gets pointers only to memory that no other process can change.
//!
//! | module | what it is |
//! |---|---|
//! | [`name`] | which names are ports |
//! | [`interface`] | one port for many readers and senders |
//! | `reader`, `queue` | what gets its frames, and waits for them |
//! | [`capture`] | libpcap's handle: settings, states, error codes |
//! | [`lock`] | a lock that can be held over a fork |
#![allow(unsafe_code, reason = "the lock hands out what it guards")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod capture;
pub mod interface;
pub mod lock;
pub mod name;
mod queue;
mod reader;

pub use capture::{Capture, Code, Failure, Next};
pub use interface::{Counts, Descriptors, Filter, Interface, Interfaces};
pub use name::Device;
pub use queue::Frame;
pub use reader::{Reader, ReaderWaker, Sleeper};
