//! A limit in front of a receive queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, Limits, Nanos,
    OffloadSet, Software,
};
use shmem::Shared;

use crate::Limiter;

/// A receive queue behind a limit that it shares with the port's other queues. It drops frames
/// beyond the limit and counts them (`rate_limit`). If the port is lossless, the sender waits
/// instead.
#[derive(Debug)]
pub struct Limited<E> {
    queue: E,
    limiter: Arc<Mutex<Limiter>>,
    counters: Shared<EgressCounters>,
}

impl<E: Egress> Limited<E> {
    /// Puts a limiter in front of a queue, whose counters are `counters`.
    pub fn new(queue: E, limiter: Arc<Mutex<Limiter>>, counters: Shared<EgressCounters>) -> Self {
        Self { queue, limiter, counters }
    }

    fn limiter(&self) -> MutexGuard<'_, Limiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Egress> Egress for Limited<E> {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut limiter = self.limiter();
        limiter.refill(batch.now());
        let admitted = if batch.any_offload() {
            list.iter().take_while(|i| limiter.admit(batch.on_wire(**i))).count()
        } else {
            list.iter().take_while(|i| limiter.admit((1, batch.frame(**i).len()))).count()
        };
        let mut finished = 0;
        if admitted > 0 {
            finished = self.queue.deliver(batch, &list[..admitted], limits).finished;
        }
        if finished < admitted {
            let refused = list[finished..admitted].iter().map(|i| batch.on_wire(*i));
            let add = |(frames, bytes), (more, len): (usize, usize)| (frames + more, bytes + len);
            let (frames, bytes) = refused.fold((0, 0), add);
            limiter.refund(frames, bytes as u64);
        } else if !limits.lossless {
            self.counters.drop_frames(DropReason::RateLimit, (list.len() - admitted) as u64);
            finished = list.len();
        }
        Delivered { finished }
    }

    fn settle(&self, now: Nanos) -> Effects {
        self.queue.settle(now)
    }

    fn takes(&self) -> OffloadSet {
        self.queue.takes()
    }

    fn count_software(&self, done: Software) {
        self.queue.count_software(done);
    }

    fn is_throttled(&self, now: Nanos) -> bool {
        self.limiter().opens_at(now) > now
    }
}
