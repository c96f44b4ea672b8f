//! A block shared by a device's parts: a register announces it, and each queue's owner notices it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use port::Nanos;
use shmem::GuestMemory;

use super::{Block, Direction, Fault, MapError, QueueHost, Spin};

/// The block that a driver announced last, if any.
#[derive(Debug, Default)]
pub struct Announced {
    block: Mutex<Option<Block>>,
    /// How many blocks were announced or taken away.
    ///
    /// # Protocol: `csb::Announced.count`
    /// - Writer: home worker, when a driver announces a block or takes it away
    /// - Reader: the holder of a queue, once a batch
    /// - Ordering: add acquire-release, after the block was put under its mutex / load acquire,
    ///   then the mutex
    /// - Partner: the block
    /// - Without it: a queue keeps using a block that was taken away
    /// - Shown by: `nic` tests `e1000` (`block`), `pcnet_csb`
    count: AtomicU32,
}

impl Announced {
    /// Takes the old block away, and maps the one at guest-physical `at` unless that is 0. If the
    /// device works on a copy of the guest's memory, no block is mapped: the driver gets no answer,
    /// and rings its doorbells.
    ///
    /// # Errors
    /// [`MapError`]; then there is none.
    pub fn map(&self, memory: &GuestMemory, at: u64, queues: [usize; 2]) -> Result<(), MapError> {
        let at = if memory.is_copy() { 0 } else { at };
        let block = Block::map(memory, at, queues);
        let (block, mapped) = match block {
            Ok(block) => (block, Ok(())),
            Err(error) => (None, Err(error)),
        };
        *self.block.lock().unwrap_or_else(PoisonError::into_inner) = block;
        self.count.fetch_add(1, Ordering::AcqRel);
        mapped
    }

    /// True if any block was ever announced.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Tells the driver why its device has stopped.
    pub fn report(&self, fault: Fault) {
        if let Some(block) = &*self.block.lock().unwrap_or_else(PoisonError::into_inner) {
            block.report(fault);
        }
    }
}

/// A queue's part of the block, held by the queue's owner.
#[derive(Debug, Default)]
pub struct Host {
    queue: Option<QueueHost>,
    /// The block counter when this part was taken.
    seen: u32,
    /// True if doorbells are asked for.
    asks: bool,
    /// How long to poll.
    pub spin: Spin,
}

impl Host {
    /// Picks up another block, or none. Returns true if there is a new one.
    #[inline]
    pub fn notice(&mut self, announced: &Announced, way: Direction, queue: usize) -> bool {
        let count = announced.count.load(Ordering::Acquire);
        count != self.seen && self.take(announced, count, way, queue)
    }

    #[cold]
    fn take(&mut self, announced: &Announced, count: u32, way: Direction, queue: usize) -> bool {
        let block = announced.block.lock().unwrap_or_else(PoisonError::into_inner);
        self.queue = block.as_ref().and_then(|block| block.queue(way, queue));
        self.spin = block.as_ref().map_or_else(Spin::default, Block::spin);
        (self.seen, self.asks) = (count, true);
        self.queue.is_some()
    }

    /// The queue's part, while the queue uses it. Call it once per decision.
    #[inline]
    #[must_use]
    pub fn on(&self) -> Option<&QueueHost> {
        self.queue.as_ref().filter(|queue| queue.is_on())
    }

    /// True if there is a block that contains this queue.
    #[inline]
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.queue.is_some()
    }

    /// Restarts the queue's ring at `head`.
    pub fn restart(&mut self, head: u32) {
        if let Some(queue) = &mut self.queue {
            queue.restart();
            queue.publish_head(head);
            self.asks = true;
        }
    }

    /// Publishes the device's head.
    #[inline]
    pub fn publish_head(&self, head: u32) {
        if let Some(queue) = &self.queue {
            queue.publish_head(head);
        }
    }

    /// True if the driver must be interrupted; `None` if the queue does not use the block.
    #[inline]
    pub fn wants_interrupt(&mut self, head: u32, size: u32) -> Option<bool> {
        let queue = self.queue.as_mut().filter(|queue| queue.is_on())?;
        Some(queue.wants_interrupt(head, size))
    }

    /// Asks for no doorbells: the device polls by itself.
    #[inline]
    pub fn wake(&mut self) {
        if self.asks
            && let Some(queue) = &mut self.queue
        {
            queue.wake();
            self.asks = false;
        }
    }

    /// Asks for doorbells and fences. Returns true if there is work; then it asks for nothing.
    /// There is work if the driver's tail is not `seen`, or, without `seen`, if the tail moves
    /// during the call. `None` if the queue does not use the block.
    pub fn sleep(
        &mut self,
        seen: Option<u32>,
        size: u32,
        now: Nanos,
    ) -> Option<Result<bool, Fault>> {
        let queue = self.queue.as_mut().filter(|queue| queue.is_on())?;
        let seen = seen.map_or_else(|| queue.tail(size), Ok);
        let work = seen.and_then(|seen| queue.sleep(seen, size, now));
        self.asks = work == Ok(false);
        Some(work)
    }

    /// While asleep: when to check without a doorbell.
    #[must_use]
    pub fn recheck_at(&self) -> Option<Nanos> {
        self.queue.as_ref()?.recheck_at()
    }
}
