//! A receive queue behind a link.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, MapGuard,
    Nanos, OffloadSet, Scratch, Software,
};
use shmem::Shared;

use crate::{Link, LinkConfig, SharedMeter, Tally};

/// The maximum number of frames in a batch that is handed on.
const BATCH: usize = 64;
/// The maximum number of batches handed on in one turn.
const BATCHES: usize = 4;

/// A receive queue at the far end of a [`Link`]. Deliveries only put frames onto the link. The
/// port's own worker [hands on](Self::flush) what is due, so frames arrive even if no more are
/// sent.
#[derive(Debug)]
pub struct Linked<E> {
    queue: E,
    counters: Shared<EgressCounters>,
    meter: SharedMeter,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Link,
    scratch: Box<Scratch>,
    /// The limits of the last delivery.
    limits: Limits,
    /// Counts since the last flush.
    tally: Tally,
    /// Drops of `tally` that the queue's counters have.
    counted: u64,
    /// Frames that were lost as they were delivered, so far.
    lost: u64,
    /// The worker that flushes, while it sleeps.
    sleeper: Option<Sleeper>,
}

/// A worker that sleeps until a frame is due.
#[derive(Debug)]
struct Sleeper {
    waker: Waker,
    due: Option<Nanos>,
}

impl Inner {
    /// Wakes the worker if it has something to do earlier than it knows.
    fn wake_sleeper(&mut self) {
        let due = self.link.due();
        let earlier = |known: Option<Nanos>| due.is_some_and(|due| known.is_none_or(|k| due < k));
        if let Some(Sleeper { waker, .. }) = self.sleeper.take_if(|s| earlier(s.due)) {
            waker.wake();
        }
    }
}

/// The result of a [flush](Linked::flush).
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "effects are executed by the worker"]
pub struct Flushed {
    /// Frames that were handed on.
    pub frames: usize,
    /// Counts of the frames that entered.
    pub tally: Tally,
    /// What the worker must do for the queue's owner.
    pub effects: Effects,
}

impl<E: Egress> Linked<E> {
    /// Puts a link in front of queue number `number` of a port, whose counters are `counters`.
    pub fn new(
        queue: E,
        number: usize,
        config: LinkConfig,
        meter: SharedMeter,
        counters: Shared<EgressCounters>,
    ) -> Self {
        let limits = Limits { max_frame: 0, lossless: false };
        let scratch = Box::new(Scratch::new(BATCH));
        let link = Link::new(config, number, SharedMeter::clone(&meter));
        let tally = Tally::default();
        let inner = Inner { link, scratch, limits, tally, counted: 0, lost: 0, sleeper: None };
        Self { queue, counters, meter, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link's counters.
    #[must_use]
    pub fn meter(&self) -> &SharedMeter {
        &self.meter
    }

    /// When the link has something to do.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        self.inner().link.due()
    }

    /// The same for a worker that is about to sleep until then. A delivery, perhaps by another
    /// worker, wakes it if the link has something to do earlier.
    #[must_use]
    pub fn due_or_wake(&self, waker: &Waker) -> Option<Nanos> {
        let mut inner = self.inner();
        let due = inner.link.due();
        inner.sleeper = Some(Sleeper { waker: waker.clone(), due });
        due
    }

    /// Changes the link for later frames.
    pub fn set(&self, config: LinkConfig) {
        self.inner().link.set(Some((config, SharedMeter::clone(&self.meter))));
    }

    /// Makes all frames due at once.
    pub fn make_all_due(&self) {
        self.inner().link.make_all_due();
    }

    /// Drops the frames in flight. Returns how many they were, and the counts of the frames that
    /// entered.
    pub fn abandon(&self) -> (usize, Tally) {
        let mut inner = self.inner();
        let dropped = inner.link.abandon();
        (dropped, self.take_tally(&mut inner))
    }

    /// Hands on due frames, a few batches at most.
    pub fn flush(&self, map: &MapGuard<'_>, now: Nanos) -> Flushed {
        let mut inner = self.inner();
        let mut flushed = Flushed::default();
        inner.sleeper = None;
        for _ in 0..BATCHES {
            let Inner { link, scratch, limits, .. } = &mut *inner;
            scratch.clear();
            let due = link.release(scratch, BATCH, now);
            if due == 0 {
                break;
            }
            scratch.judge(map, &mut [(); BATCH], |_, _| ());
            let list: [FrameIdx; BATCH] = std::array::from_fn(|i| i as FrameIdx);
            let batch = scratch.batch(map);
            let Delivered { finished } = self.queue.deliver(&batch, &list[..due], *limits);
            link.complete(finished);
            flushed.frames += finished;
            if finished < due {
                link.put_back();
                break;
            }
        }
        flushed.tally = self.take_tally(&mut inner);
        if flushed.frames > 0 {
            fence(Ordering::SeqCst);
            flushed.effects = self.queue.settle(now);
        }
        flushed
    }

    /// Counts frames that the queue of the link dropped. Returns the other counts.
    fn take_tally(&self, inner: &mut Inner) -> Tally {
        let mut all = std::mem::take(&mut inner.tally);
        all.add(&inner.link.take_tally());
        let uncounted = all.queue_drops() - std::mem::take(&mut inner.counted);
        self.counters.drop_frames(DropReason::Full, uncounted);
        Tally { full: 0, early: 0, memory: 0, ..all }
    }
}

impl<E: Egress> Egress for Linked<E> {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut inner = self.inner();
        inner.limits = limits;
        let (mut finished, mut full) = (0, 0);
        for i in list {
            let frame = batch.pick(*i);
            if limits.lossless && inner.link.room_at(frame.len(), batch.now()) == 0 {
                break;
            }
            match inner.link.admit(frame, (batch.offload(*i), 0), batch.now()) {
                None => {}
                Some(DropReason::Impaired) => inner.lost += 1,
                Some(_) => full += 1,
            }
            finished += 1;
        }
        // Other frames that the queue dropped meanwhile are counted by `flush`: a recorder takes
        // what is counted here for frames of the list.
        self.counters.drop_frames(DropReason::Full, full);
        inner.counted += full;
        let tally = inner.link.take_tally();
        inner.tally.add(&tally);
        inner.wake_sleeper();
        Delivered { finished }
    }

    /// Does nothing: [`flush`](Linked::flush) settles what it hands on.
    fn settle(&self, _now: Nanos) -> Effects {
        Effects::default()
    }

    /// A link carries frames as on a wire.
    fn takes(&self) -> OffloadSet {
        OffloadSet::NONE
    }

    fn count_software(&self, done: Software) {
        self.queue.count_software(done);
    }

    fn lost(&self) -> u64 {
        self.inner().lost
    }

    fn is_throttled(&self, now: Nanos) -> bool {
        self.due().is_some_and(|due| due > now) || self.queue.is_throttled(now)
    }
}
