//! The atomics this crate is built on: the standard library's, or loom's under `--cfg loom`, so that
//! the model checker runs the very code that ships.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
