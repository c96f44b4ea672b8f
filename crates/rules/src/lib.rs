//! Who may talk to whom: rules as people write them, compiled to what a worker can judge a batch
//! of frames by.
//!
//! ```text
//!   "allow tcp from any to me 80,443"   text, ipfw     lines into rules, errors at their word
//!                 |
//!               Rule ------------------ first_match    the slow list: what the rules mean
//!                 |
//!              Program                  compile, tree  a flat array of words, checked when loaded
//!                 |
//!        judge a batch of packets ----- Connections    answers pass without a rule
//! ```
//!
//! Pure: no threads, descriptors or clock. Time is an argument, and so are random numbers.
//! Anything that a sender can write is bounded by the head of its frame.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod budget;
mod bundle;
mod cache;
mod compile;
mod connections;
mod cubes;
mod hidden;
mod ipfw;
mod packet;
mod policy;
mod prefixes;
mod program;
mod rule;
mod slow;
mod text;
mod tree;

pub use budget::{Budget, CompileError};
pub use bundle::{Bundle, BundlePort};
pub use cache::Cache;
pub use compile::compile;
pub use connections::{Admitted, Connection, Connections, End, Layout, Quota, State, Tuple};
pub use hidden::{Hidden, hidden};
pub use ipfw::{Ipfw, Pipe, parse_ipfw};
pub use packet::{Direction, Packet, Sides};
pub use policy::{Policy, is_housekeeping};
pub use prefixes::{Prefixes, Tables};
pub use program::{Context, LoadError, NO_RULE, Outcome, Program, Stop};
pub use rule::{Action, Hosts, Matches, Prefix, Protocols, Rate, Rule, Side};
pub use slow::first_match;
pub use text::{Problem, TextError, parse_line, parse_lines};
