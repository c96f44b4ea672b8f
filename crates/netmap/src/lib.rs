//! netmap's interface without a kernel module, and without hooks: requests in, replies out.
//!
//! ```text
//!   program --ioctl--> preload --> client::Device --Ask--> daemon: broker::Broker --> switches
//!                         |             |                      |  lays regions out, knows names,
//!                         |             |                      |  regions and descriptors
//!                         v             v                      v
//!                        mmap      client::Bound  <-- memory file, wake-up descriptors
//!                                  rings: sync, readiness
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | netmap's numbers and structures |
//! | [`extmem`] | regions in memory of the program's own |
//! | [`wire`] | messages between the library in a program and the daemon |
//! | [`broker`] | daemon's side: names, regions, descriptors |
//! | [`client`] | program's side: requests copied in and out, rings synced |
//!
//! The broker makes each region's memory file, and reads and writes it as a file. It maps nothing
//! that a program can write to.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod abi;
pub mod broker;
pub mod client;
pub mod extmem;
pub mod wire;
