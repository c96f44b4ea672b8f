//! Ingress, egress, effects and time.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

use crate::{Batch, FrameIdx, OffloadSet, Picked, Scratch, Software};

/// A time of the monotonic clock, in nanoseconds. Each turn reads it once and passes it on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Nanoseconds in a millisecond.
    pub const MILLI: u64 = 1_000_000;
    /// Nanoseconds in a second.
    pub const SECOND: u64 = 1_000_000_000;

    /// Whole seconds since the clock's start.
    #[inline]
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.0 / Self::SECOND
    }
}

impl Add<u64> for Nanos {
    type Output = Self;
    #[inline]
    fn add(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;
    fn add(self, time: Duration) -> Self {
        self + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Sub for Nanos {
    type Output = u64;
    #[inline]
    fn sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// What the worker must do for a port after a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "effects are executed by the worker"]
pub struct Effects {
    /// The port's owner sleeps and asked to be woken.
    pub kick: bool,
}

/// Limits on how an egress may treat a list of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the largest frame on a wire ([`Batch::wire_len`]); longer ones are dropped and
    /// counted.
    pub max_frame: u32,
    /// True to stall without room, instead of dropping.
    pub lossless: bool,
}

/// What an egress did with a list of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "stalled frames must be kept"]
pub struct Delivered {
    /// How many frames, from the list's start, are finished: delivered, or dropped and counted by
    /// the egress. The rest is stalled; only a lossless egress does that.
    pub finished: usize,
}

/// The right to deliver to a switch's egresses without their locks. The switch's only worker holds
/// it.
#[derive(Debug)]
pub struct SoleWorker(());

impl SoleWorker {
    /// The token for a switch with one worker.
    ///
    /// # Safety
    /// As long as the token is used, no other thread delivers to an egress of the same switch.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

/// Takes frames from a port's owner: one per send queue. One worker at a time owns it.
pub trait Ingress: Send {
    /// Takes up to `max` frames that the owner has published into `scratch`, and counts them.
    /// Returns how many. Every descriptor is read once and checked. The bytes stay lent until
    /// completed.
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize;

    /// Gives the oldest `frames` gathered frames back to the owner, and publishes once.
    fn complete(&mut self, frames: usize);

    /// Says whether the owner must be woken. The caller has fenced, as for [`Egress::settle`].
    fn settle(&mut self, now: Nanos) -> Effects;
}

/// Delivers a switch's frames to a port's owner: one per receive queue. All workers share it; it
/// locks itself for a batch.
pub trait Egress: Send + Sync {
    /// Copies the frames of `list` to the owner, in order, and publishes them once.
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered;

    /// Like [`deliver`](Self::deliver), for copies of what another port's owner has `sent`, or was
    /// to receive: monitors tell their owner which, and when.
    fn deliver_copies(
        &self,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
        _sent: bool,
    ) -> Delivered {
        self.deliver(batch, list, limits)
    }

    /// Delivers and publishes a single frame without an offload request, if that is simple. Returns
    /// false, with nothing delivered, if it needs [`deliver`](Self::deliver). Traffic to many
    /// receivers consists of such frames. With the token of a switch's only worker, it takes no
    /// lock.
    fn deliver_one(&self, _frame: Picked<'_>, _limits: Limits, _sole: Option<&SoleWorker>) -> bool {
        false
    }

    /// Says whether the owner must be woken. The caller has fenced (`SeqCst`) after the deliveries,
    /// once for all the egresses of a batch.
    fn settle(&self, now: Nanos) -> Effects;

    /// The offload requests that its receiver accepts. Frames that request more are finished in
    /// software before delivery, once for each receiver that needs it.
    fn takes(&self) -> OffloadSet {
        OffloadSet::NONE
    }

    /// Counts work that was done in software for this egress's receiver.
    fn count_software(&self, _done: Software) {}

    /// How many frames a bad link before the receiver has lost so far.
    fn lost(&self) -> u64 {
        0
    }

    /// True while the egress accepts no frames because a limit lacks tokens, although there may be
    /// room. That is no stall.
    fn is_throttled(&self, _now: Nanos) -> bool {
        false
    }

    /// Fetches what [`prefetch`](Self::prefetch) reads.
    fn prefetch_self(&self) {}

    /// Prefetches what `deliver` will touch. For a batch to many receivers, it is called for all of
    /// them first, so that their cache misses overlap.
    fn prefetch(&self) {}
}

impl<E: Egress + ?Sized> Egress for Arc<E> {
    #[inline(always)]
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        (**self).deliver(batch, list, limits)
    }

    fn deliver_copies(
        &self,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        limits: Limits,
        sent: bool,
    ) -> Delivered {
        (**self).deliver_copies(batch, list, limits, sent)
    }

    #[inline(always)]
    fn deliver_one(&self, frame: Picked<'_>, limits: Limits, sole: Option<&SoleWorker>) -> bool {
        (**self).deliver_one(frame, limits, sole)
    }

    #[inline(always)]
    fn settle(&self, now: Nanos) -> Effects {
        (**self).settle(now)
    }

    fn takes(&self) -> OffloadSet {
        (**self).takes()
    }

    fn count_software(&self, done: Software) {
        (**self).count_software(done);
    }

    fn lost(&self) -> u64 {
        (**self).lost()
    }

    fn is_throttled(&self, now: Nanos) -> bool {
        (**self).is_throttled(now)
    }

    #[inline(always)]
    fn prefetch_self(&self) {
        let this: *const u8 = std::ptr::from_ref(&**self).cast();
        shmem::prefetch(this);
        shmem::prefetch(this.wrapping_add(shmem::CACHE_LINE));
    }

    #[inline(always)]
    fn prefetch(&self) {
        (**self).prefetch();
    }
}
