//! The atomics this crate is built on: the language's, or loom's under `--cfg loom`, so that
//! the model checker runs the very code that ships.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
