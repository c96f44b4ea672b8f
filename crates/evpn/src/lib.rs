//! EVPN (RFC 7432, RFC 8365): which stations are behind which host, by an existing BGP daemon.
//!
//! ```text
//!   stations here --> Rib --> own routes ------> Client ---gRPC---> GoBGP <---BGP---> other hosts
//!   tables, tunnels <-- changes -- Rib <-- paths (checked) <-- watch ---/
//! ```
//!
//! - [`route`], [`path`]: routes as bytes and as GoBGP's messages.
//! - [`rib`], [`segment`]: what follows from them. No I/O, no clock.
//! - [`client`]: GoBGP's API. [`gobgp`] is generated from `proto/gobgp.proto`; a test compares it.
//! - [`speaker`]: the task that joins them.
//!
//! Types 2 (stations) and 3 (hosts that want floods) are read. Others are ignored.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod addresses;
pub mod client;
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated: the names and fields of GoBGP's API"
)]
pub mod gobgp;
mod hosts;
pub mod path;
pub mod report;
pub mod rib;
pub mod route;
pub mod segment;
pub mod speaker;
mod told;
