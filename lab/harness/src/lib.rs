//! For tests: daemons in directories of their own, their clients and neighbours, and what the tests
//! of all crates share.
//!
//! A test that cannot run here calls [`skip`] and returns. One that uses what cargo builds, but not
//! for it, asks [`artifacts`], and fails where it is missing. Everything else that fails, fails the
//! test: these functions panic, and say why.
#![allow(missing_debug_implementations, reason = "tests show what these say, not what they are")]

pub mod artifacts;
pub mod children;
pub mod cli;
mod daemon;
pub mod frames;
mod http;
pub mod namespace;
pub mod passt;
mod processes;
mod programs;
pub mod raw;
mod report;
pub mod tcp;
pub mod underlay;
pub mod users;
mod waiting;

#[cfg(feature = "stack")]
pub mod card;
#[cfg(feature = "stack")]
pub mod front_end;
#[cfg(feature = "stack")]
pub mod guests;
#[cfg(feature = "stack")]
pub mod inside;
#[cfg(feature = "stack")]
pub mod netmap;
#[cfg(feature = "stack")]
pub mod routers;
#[cfg(feature = "stack")]
pub mod stack;
#[cfg(feature = "stack")]
pub mod strangers;

pub use self::artifacts::{library, program, root};
pub use self::daemon::{Daemon, small};
pub use self::http::{exchange, head_and_body, text, try_exchange};
pub use self::processes::{
    Running, descriptors, done, end_of, is_alive, kill_process, must, processes_that_hold,
    processes_with, run, said, wait,
};
pub use self::report::{seed, skip};
pub use self::waiting::{PATIENCE, wait_for, wait_until};
