//! Ports for programs that use libpcap or packet sockets, without hooks, and capture files.
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
//! Each [`Reader`] has a queue and a filter of its own (classic BPF, [`frame::bpf`]). A frame is
//! filtered in place and copied once, so a program gets pointers only to memory that no other
//! process can change.
//!
//! | module | what it is |
//! |---|---|
//! | [`name`] | which names are ports |
//! | [`interface`] | one port for many readers and senders |
//! | `reader`, `queue`, `waker` | what gets its frames, and waits for them |
//! | [`capture`] | libpcap's handle: settings, states |
//! | `failure` | error codes, of libpcap and of the system |
//! | [`lock`] | a lock that can be held over a fork |
//! | [`file`](mod@file) | capture files: pcap and pcapng, for all of toklat |
#![allow(unsafe_code, reason = "the lock hands out what it guards")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod capture;
mod failure;
pub mod file;
pub mod interface;
pub mod lock;
pub mod name;
mod queue;
mod reader;
mod waker;

pub use capture::{Capture, Next};
pub use failure::{Code, Failure};
pub use interface::{Counts, Descriptors, Interface, Interfaces};
pub use name::Device;
pub use queue::Frame;
pub use reader::{Reader, Sleeper};
pub use waker::ReaderWaker;
