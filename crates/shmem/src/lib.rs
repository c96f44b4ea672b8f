//! Memory that another party may write at any time.
//!
//! ```text
//!   Memfd (sealed, fixed size) --map--> Mapping --bytes(at, len)--> Bytes<'m>   checked window, copy in and out
//!                                         |
//!                                         +------shared::<T>(at)--> Shared<T>   words both sides use: Cursor, WakeFlag, ...
//! ```
//!
//! Invariants:
//! - A mapped [`Memfd`] can neither shrink nor grow (sealed). So access to it raises SIGBUS only
//!   for lost pages, which the [`guard`] handles.
//! - No code gets a `&[u8]` to shared memory. Bytes are copied in or out through [`Bytes`]; words
//!   that both sides write are atomics with a named ordering ([`Cursor`], [`WakeFlag`]).
//!
//! toklat's `unsafe` code for memory is in this crate. It does not allocate inside a region
//! (`netring` does), or decide when to unmap (`dataplane` does).
//!
//! Without the feature `std`, it offers windows, words and tables of guest memory over memory that
//! something else maps ([`Mapping::raw`]). Drivers on a bare machine use that.
#![cfg_attr(not(feature = "std"), no_std)]
#![allow(unsafe_code, reason = "this crate is where toklat touches memory that others may write")]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

extern crate alloc;

#[cfg(all(not(loom), feature = "std"))]
pub mod budget;
mod bytes;
#[cfg(all(not(loom), feature = "std"))]
pub mod guard;
#[cfg(not(loom))]
mod guest;
#[cfg(not(loom))]
mod heap;
#[cfg(all(not(loom), feature = "std"))]
mod lent;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod mmio;
#[cfg(feature = "std")]
mod place;
#[cfg(all(not(loom), feature = "std"))]
mod region;
#[cfg(all(not(loom), feature = "std"))]
pub mod robust;
pub mod sync;
mod wake;

pub use bytes::{Bytes, Span, prefetch, prefetch_all, prefetch_to_write};
#[cfg(not(loom))]
pub use guest::{DirtyLog, GuestMemory, GuestMemoryError, GuestRange, Near};
#[cfg(not(loom))]
pub use heap::Heap;
#[cfg(all(not(loom), feature = "std"))]
pub use lent::LentWindow;
#[cfg(not(loom))]
pub use mapping::{Buffers, Mapping, Pool, Shared, SharedSlice, Windows};
#[cfg(not(loom))]
pub use mmio::Mmio;
#[cfg(loom)]
pub use place::Place;
#[cfg(all(not(loom), feature = "std"))]
pub use region::{Memfd, Pages, RegionError};
pub use wake::{Cursor, WakeFlag};

/// The size of a cache line. Words of different sides are this far apart.
pub const CACHE_LINE: usize = 64;

/// Types that live in shared memory and may be written by the other side at any time.
///
/// # Safety
/// Every bit pattern of the type's size must be a valid value, and the type must have no padding
/// that matters. All its fields must be atomics (or arrays and structs of atomics), so that `&T`
/// may be held while another process stores to it.
pub unsafe trait Shareable: Sync {}

// SAFETY: an atomic integer accepts every bit pattern and concurrent stores.
unsafe impl Shareable for sync::AtomicU32 {}
// SAFETY: as above.
unsafe impl Shareable for sync::AtomicU64 {}
// SAFETY: an array of shareable values has no padding between them.
unsafe impl<T: Shareable, const N: usize> Shareable for [T; N] {}
// SAFETY: an atomic integer accepts every bit pattern and concurrent stores.
#[cfg(not(loom))]
unsafe impl Shareable for core::sync::atomic::AtomicU16 {}
