//! An impaired link in front of a receive queue.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, MapGuard,
    Nanos, OffloadSet, Scratch, Software,
};
use shmem::Shared;

use crate::{Channel, Impairment, ImpairmentCounts};

/// The maximum number of frames in a batch that is handed on.
const BATCH: usize = 64;
/// The maximum number of batches handed on in one turn.
const BATCHES: usize = 4;

/// A receive queue at the far end of a [`Channel`]. Deliveries only put frames into the channel.
/// The port's own worker [hands on](Self::flush) what is due, so frames arrive even if no more are
/// sent.
#[derive(Debug)]
pub struct Impaired<E> {
    queue: E,
    counters: Shared<EgressCounters>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    channel: Channel,
    scratch: Box<Scratch>,
    /// The limits of the last delivery.
    limits: Limits,
}

/// The result of a [flush](Impaired::flush).
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "effects are executed by the worker"]
pub struct Flushed {
    /// Frames that were handed on.
    pub frames: usize,
    /// Counts of the frames that entered.
    pub tally: ImpairmentCounts,
    /// What the worker must do for the queue's owner.
    pub effects: Effects,
}

impl<E: Egress> Impaired<E> {
    /// Puts a channel in front of queue number `number` of a port, whose counters are `counters`.
    pub fn new(
        queue: E,
        number: usize,
        config: Impairment,
        counters: Shared<EgressCounters>,
    ) -> Self {
        let limits = Limits { max_frame: 0, lossless: false };
        let scratch = Box::new(Scratch::new(BATCH));
        let inner = Inner { channel: Channel::new(config, number), scratch, limits };
        Self { queue, counters, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next frame is due.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        self.inner().channel.due()
    }

    /// Makes all frames due at once.
    pub fn make_all_due(&self) {
        self.inner().channel.make_all_due();
    }

    /// Drops the frames in flight. Returns how many they were, and the counts of the frames that
    /// entered.
    pub fn abandon(&self) -> (usize, ImpairmentCounts) {
        let mut inner = self.inner();
        (inner.channel.abandon(), inner.channel.take_tally())
    }

    /// Hands on due frames, a few batches at most.
    pub fn flush(&self, map: &MapGuard<'_>, now: Nanos) -> Flushed {
        let mut inner = self.inner();
        let Inner { channel, scratch, limits } = &mut *inner;
        let mut flushed = Flushed { tally: channel.take_tally(), ..Flushed::default() };
        for _ in 0..BATCHES {
            scratch.clear();
            let due = channel.release(scratch, BATCH, now);
            if due == 0 {
                break;
            }
            scratch.judge(map, &mut [(); BATCH], |_, _| ());
            let list: [FrameIdx; BATCH] = std::array::from_fn(|i| i as FrameIdx);
            let batch = scratch.batch(map);
            let Delivered { finished } = self.queue.deliver(&batch, &list[..due], *limits);
            channel.complete(finished);
            flushed.frames += finished;
            if finished < due {
                channel.put_back();
                break;
            }
        }
        if flushed.frames > 0 {
            fence(Ordering::SeqCst);
            flushed.effects = self.queue.settle(now);
        }
        flushed
    }
}

impl<E: Egress> Egress for Impaired<E> {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut inner = self.inner();
        inner.limits = limits;
        for (n, i) in list.iter().enumerate() {
            if inner.channel.room() == 0 {
                if limits.lossless {
                    return Delivered { finished: n };
                }
                self.counters.drop_frames(DropReason::Full, (list.len() - n) as u64);
                break;
            }
            inner.channel.admit(batch.pick(*i), (batch.offload(*i), 0), batch.now());
        }
        Delivered { finished: list.len() }
    }

    /// Does nothing: [`flush`](Impaired::flush) settles what it hands on.
    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }

    fn takes(&self) -> OffloadSet {
        self.queue.takes()
    }

    fn count_software(&self, done: Software) {
        self.queue.count_software(done);
    }

    fn lost(&self) -> u64 {
        self.inner().channel.lost()
    }

    fn is_throttled(&self, now: Nanos) -> bool {
        self.due().is_some_and(|due| due > now) || self.queue.is_throttled(now)
    }
}
