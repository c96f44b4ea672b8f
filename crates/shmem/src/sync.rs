//! The atomics of this crate: the language's, or loom's under `--cfg loom`. So the model checker
//! runs the shipped code.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
