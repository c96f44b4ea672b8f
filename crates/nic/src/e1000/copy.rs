//! How far the copy of a guest's memory goes, if the memory is reached by messages.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::csb::Direction;
use crate::model::ring::of_queue;

/// Words of a descriptor.
pub(super) type Words = [u64; 2];

/// How far each ring is fetched into the copy, and pushed out of it.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// For each direction and queue: descriptors before it are in the copy, and the model may read
    /// them.
    ///
    /// # Protocol: e1000: `Copied.shown`, a tail; PCnet: OWN bits in the copy
    /// - Writer: home worker, after the data that they show was laid into the copy
    /// - Reader: holder of a receive queue's lock; worker
    /// - Ordering: store release / load acquire
    /// - Partner: descriptors and buffers in the copy
    /// - Without it: a frame is sent before its bytes are there
    /// - Shown by: `nic` tests `e1000` (`remote`), `pcnet_remote`
    pub shown: [[AtomicU32; 2]; 2],
    /// For each direction and queue: the descriptor up to which all were handed to the DMA proxy.
    /// Those before the place in state memory have left.
    pub pushed: [[AtomicU32; 2]; 2],
    /// For each direction and queue: counts moves of the ring.
    pub moved: [[AtomicU32; 2]; 2],
    /// True if all rings were reset.
    pub reset: AtomicBool,
    /// State of the home worker.
    pub inner: Mutex<Inner>,
}

/// What the home worker keeps about the copy.
#[derive(Debug, Default)]
pub(super) struct Inner {
    /// The values of `moved` at which the rings were copied.
    pub moved: [[u32; 2]; 2],
    /// For each direction and queue: the next of the predecessor's descriptors.
    pub lost: [[Option<u32>; 2]; 2],
    /// For each direction and queue: those of the predecessor's descriptors that must be given
    /// back, with their addresses.
    pub mended: [[VecDeque<(u64, Words)>; 2]; 2],
    /// For each receive queue and descriptor: the descriptor as its driver wrote it.
    pub offered: [Vec<Words>; 2],
}

impl Inner {
    /// True if some of the predecessor's descriptors were not given back yet.
    pub fn has_lost(&self, way: Direction, queue: usize) -> bool {
        let mended = &self.mended[way as usize][queue];
        self.lost[way as usize][queue].is_some() || !mended.is_empty()
    }
}

impl Copied {
    #[inline]
    pub fn shown(&self, way: Direction, queue: usize) -> u32 {
        of_queue(&self.shown[way as usize], queue).load(Acquire)
    }

    pub fn pushed(&self, way: Direction, queue: usize) -> &AtomicU32 {
        of_queue(&self.pushed[way as usize], queue)
    }

    pub fn show(&self, way: Direction, queue: usize, to: u32) {
        of_queue(&self.shown[way as usize], queue).store(to, Release);
    }

    /// Marks everything from a ring's head on as not fetched.
    pub fn restart(&self, way: Direction, queue: usize, head: u32) {
        self.show(way, queue, head);
        of_queue(&self.moved[way as usize], queue).fetch_add(1, Relaxed);
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
