//! How far the copy of a guest's memory goes, if the memory is reached by messages.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use port::Nanos;

use super::ring::Ring;

/// How far each ring is fetched into the copy, and pushed out of it.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// The driver has announced frames.
    pub demanded: AtomicBool,
    /// State of the home worker.
    pub inner: Mutex<Inner>,
}

/// What the home worker keeps about the copy.
#[derive(Debug, Default)]
pub(super) struct Inner {
    pub epoch: Option<u32>,
    /// The state of each direction.
    pub halves: [Half; 2],
}

/// The state of the copy in one direction.
#[derive(Debug, Default)]
pub(super) struct Half {
    pub ring: Option<Ring>,
    /// The descriptor up to which all were handed to the DMA proxy. Those before the place in state
    /// memory have left.
    pub pushed: u32,
    /// The number of shown descriptors after `pushed`.
    pub count: u32,
    /// The next descriptor that a predecessor had given back and may not have pushed.
    pub lost: Option<u32>,
    /// The predecessor's descriptors to give back, with their addresses.
    pub mended: VecDeque<(u64, Vec<u8>)>,
    /// True while descriptors are being fetched; and true if they must then be fetched again. The
    /// next fields say when to fetch otherwise (0: at once), and how often there were none.
    pub asking: bool,
    pub again: bool,
    pub look_at: Nanos,
    pub misses: u32,
    /// Bytes of a received frame before the descriptor that is pushed next.
    pub before: u32,
}

impl Copied {
    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
